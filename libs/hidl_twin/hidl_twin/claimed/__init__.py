"""Nodes that report more processors than this machine has: a site's, or as many as were asked for.

::

    processors   what is claimed: sockets, cores, threads, the model's name
    of_dress     which nodes claim what
    sysfs        /sys/devices/system/{cpu,node} and /proc/cpuinfo as such a node shows them
    affinity.c   CPU affinity on CPUs that are only claimed, preloaded into the node's processes
    build        all of it in the cluster's directory, made once per kind of node

``templates/claimed.sh.j2`` puts it in place, in the node's mount namespace only.
"""

"""A real Slurm on one machine: nodes that are sets of namespaces, and the daemons of a cluster around them.

::

    layout      where the files of a cluster lie: its state directory
    settings    what the user asked for, remembered there
    marks       which processes belong to the cluster: they carry its directory in their environment
    packages    the programs that it needs, from the distribution
    files       what its configuration files say, from templates/cluster/
    subnets     which network is free
    network     a switch in a network namespace of its own, and cables to the nodes and to this machine
    nodes       the nodes: pid 1, sshd, slurmd
    services    munged, MariaDB, slurmdbd, slurmctld
    cluster     all of it: up, down, status

No pid files: a process is found by its mark, so that ``down`` finds it whatever else was lost.
"""

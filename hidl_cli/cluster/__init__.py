"""A real Slurm on one machine: nodes that are sets of namespaces, and the daemons of a cluster around them.

It may be the twin of a site, dressed by the site's file; one on LSF has a stand-in for LSF in the place of Slurm.

::

    layout      where the files of a cluster lie: its state directory
    settings    what the user asked for, remembered there
    dress       what it looks like: its name, its hosts, its partitions
    twin        a site's file as a dress; its modules, MPI libraries, users
    claimed     nodes that claim processors which this machine has not
    standins    ibrun, mpirun_rsh, and the tools that list GPUs
    lsf, jsrun  a stand-in for LSF and its launcher
    rules       what a twin's Slurm refuses beside its partitions' limits
    marks       which processes belong to the cluster: they carry its directory and its key in their environment
    entry       a process's namespaces, entered
    packages    the programs that it needs, from the distribution
    files       what its configuration files say, from templates/cluster/
    subnets     which network is free
    network     a switch in a network namespace of its own, and cables to the nodes and to this machine
    nodes       the nodes: pid 1, sshd, slurmd
    services    munged, MariaDB, slurmdbd, slurmctld
    cluster     all of it: up, down, status

No pid files of daemons: a process is found by its mark, so that ``down`` finds it although ``up`` was killed.
"""

"""A stand-in for PBS Professional (OpenPBS), for twins of sites that have it: jobs really run, on the twin's hosts.

Its commands print what OpenPBS 23.06 printed when it was recorded (tests/schedulers/recorded/pbs). ``qsub`` names
itself as a stand-in on stderr. Chunks are whole nodes, as on the sites whose twins it serves.

    options   the command line of qsub, #PBS lines, -l resources
    admission queues and limits
    qsub      submission
    qstat     qstat: JSON, and a table
    commands  qdel, pbsnodes, qselect
    mpiexec   the launcher of PALS
    system    PBS as a ``System``
"""

"""A stand-in for Flux, for twins of sites that have it: jobs really run, on the twin's hosts.

Its one command, ``flux``, prints what flux-core 0.88 printed when it was recorded (tests/schedulers/recorded/flux).
``flux batch`` names itself as a stand-in on stderr. Chunks are whole nodes, as on the sites whose twins it serves.
Within a job, ``flux resource`` and ``flux hostlist`` tell of the job's own nodes, as in its subinstance.

    ids       job ids
    hosts     host lists
    options   the command line of batch, run and submit; #flux: lines; durations
    batch     flux batch, submit
    jobs      flux jobs, job, cancel
    resource  flux resource, queue, hostlist, getattr
    run       flux run
    system    Flux as a ``System``
"""

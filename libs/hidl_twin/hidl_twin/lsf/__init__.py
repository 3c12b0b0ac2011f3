"""A stand-in for IBM Spectrum LSF 10.1, for twins of sites that have it: jobs really run, on the twin's hosts.

It does what IBM's documentation says of LSF with whole-node allocations (``bsub -nnodes``), as on Summit and Lassen,
in LSF's own words. ``bsub`` names itself as a stand-in. Its directory holds all that it knows::

    settings.json       the cluster: hosts, queues, limits (settings.Settings)
    bin/                bsub, bjobs, bkill, bmod, bpeek, bhist, bqueues, bhosts, lshosts, lsid, bparams, jsrun
    calls               a line for each command that was called
    mbatchd.lock        held while the daemon lives
    jobs/ID/            request.json, environment.json (by bsub), state.json (by mbatchd), order (by bkill),
                        ended.json, alive (by the job's own host), out, err, hostfile, the script

Modules, from the bottom::

    settings      what the cluster is
    store         the directory and its jobs
    options       the command line of bsub, and #BSUB lines
    dependencies  jobs that wait for others
    admission     what the cluster refuses
    bsub          submission
    jobs          bjobs, bhist, bpeek, bkill, bmod
    tables        bqueues, bhosts, lshosts, lsid, bparams
    sbatchd       runs one job, on its first host
    mbatchd       the daemon: gives hosts to jobs
    programs      the commands by name; what bin/ calls
    twin          settings from a site's file
    service       the daemon as a service of a cluster

All but the last two import nothing beyond the standard library and hidl's own lowest modules: the commands must start
fast, also on nodes, with ``python -IS``.
"""

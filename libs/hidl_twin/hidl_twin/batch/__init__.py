"""What the stand-ins for batch schedulers share: jobs really run, on a twin's hosts.

A stand-in is a ``System`` (``hidl_twin/{lsf,pbs,flux}/system.py``), listed in ``systems``. It reads its own
command lines, decides what is refused, and prints in the scheduler's own formats; queueing, hosts, time limits,
signals and lost nodes are common. Its directory holds all that it knows::

    settings.json       the cluster: hosts, queues, limits (settings.Settings)
    bin/                the scheduler's commands
    calls               a line for each command that was called
    daemon.lock         held while the daemon lives
    jobs/ID/            request.json, environment.json (by the submission), state.json (by the daemon), order (by a
                        cancellation), ended.json, alive (by the job's own host), out, err, hostfile, the script

Modules, from the bottom::

    settings      what the cluster is
    store         the directory and its jobs
    system        what a stand-in adds
    host          runs one job, on its first host
    daemon        gives hosts to jobs
    programs      the commands by name; what bin/ calls
    systems       all stand-ins
    twin          settings from a site's file
    service       the daemon as a service of a cluster

All but the last three import nothing beyond the standard library and hidl's own lowest modules: the commands must start
fast, also on nodes, with ``python -IS``.
"""

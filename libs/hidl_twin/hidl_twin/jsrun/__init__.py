"""A stand-in for ``jsrun`` of IBM's Job Step Manager, for twins of sites that have it (Summit, Lassen, Sierra).

It takes the documented options, places resource sets and ranks on the job's hosts as documented, and has them started
by the MPI at hand: Open MPI's ``mpirun`` for Spectrum MPI, which is built on it, and Hydra's ``mpiexec`` where
``OMPI_LD_PRELOAD_PREPEND`` names the ``libmpi.so`` of an MPICH or MVAPICH2. It names itself in its first line (stderr).

Sources: IBM Job Step Manager 10.3, command jsrun; OLCF's user guide for Summit, "Job Launcher (jsrun)".

Modules, from the bottom::

    options     the command line
    placement   resource sets on hosts, ranks on resource sets, the cores of each
    claims      what the steps of a job have that run at the same time
    task        what starts one rank on its host: environment, binding, status
    step        a whole step: the runtime beneath, statuses, signals
"""

"""``hidl doctor``: find what is wrong with a machine, a site file, a stack or a run, before or after a job fails.

``rules/`` examine the host that hidl runs on, ``nodes/`` compute nodes; ``registry`` lists all rules, including those
of ``hidl_workloads.doctor``, which run inside jobs, and of ``hidl_cli.diagnoses``, which read a job's output.
"""

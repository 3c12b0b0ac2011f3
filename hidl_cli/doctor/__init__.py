"""``hidl doctor``: find problems with a machine, a site file, a stack or a run.

``rules`` examines the host that hidl runs on and ``nodes`` examines compute nodes. ``context`` lists all rules,
including those of ``hidl_workloads.doctor``, which run inside jobs, and of ``hidl_cli.diagnoses``, which search job
output.
"""

"""``hidl doctor``: what is wrong with a machine, a stack or a run before (or after) the job fails of it.

``probes/`` ask the machine and return facts; ``rules/`` are pure functions over facts (what holds inside a job is
judged by ``hidl_workloads.doctor``); ``catalogue`` knows all rules.
"""

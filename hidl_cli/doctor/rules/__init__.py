"""Rules on the host that hidl runs on. One subject per module: facts, their probe, rules, and a ``SUBJECT``.

``hidl_cli.doctor.context`` finds every module of this package by itself.
"""

"""Rules for the host that hidl runs on.

A module contains one or more subjects. Each has a class of facts, a probe that collects them, and rules; they are listed
in ``SUBJECTS``. ``hidl_cli.doctor.context`` discovers the modules of this package automatically.
"""

"""Rules for the host that hidl runs on.

A module contains one or more subjects, each with a class of facts, a probe that collects them, and rules. The module's
``SUBJECTS`` lists them. ``hidl_cli.doctor.context`` discovers this package's modules automatically.
"""

#: Modules whose rules are not applied before runs, so ``hidl run`` does not load them.
NOT_BEFORE_RUNS = frozenset({"configuration", "site"})

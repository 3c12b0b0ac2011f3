"""Rules for the host that hidl runs on.

Each module covers one subject: a class of facts, a probe that collects them, rules, and a ``SUBJECT``. Modules of this
package are discovered automatically by ``hidl_cli.doctor.context``.
"""

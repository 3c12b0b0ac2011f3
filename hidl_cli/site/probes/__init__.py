"""Probes: each asks the machine about one subject and returns what it learnt, unknown where it learnt nothing.

They ask through a :class:`~hidl_cli.site.probes.host.Host` alone, so that a recorded machine can answer as well.
"""

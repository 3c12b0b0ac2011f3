"""Probes, each of which detects one aspect of a machine. Values that cannot be detected are None.

Probes access the machine only through a :class:`~hidl_cli.site.probes.host.Host`, which can also be a recording.
"""

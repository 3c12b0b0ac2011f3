"""Probes, each of which detects one aspect of a machine; what they cannot detect is None.

They only access the machine through a :class:`~hidl_cli.site.probes.host.Host`, which can also be a recording.
"""

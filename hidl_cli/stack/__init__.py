"""Stacks: their schema, plans, lockfiles and installations."""

PORTABLE_PLATFORMS = ("linux-x86_64", "linux-aarch64")
"""Platforms whose lockfiles can be made on any machine."""

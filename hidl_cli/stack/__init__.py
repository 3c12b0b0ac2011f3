"""Stacks: schema, plan, lock, installation."""

PORTABLE_PLATFORMS = ("linux-x86_64", "linux-aarch64")
"""Platforms whose lockfiles can be made on any machine."""

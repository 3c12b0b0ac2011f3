"""Stacks built by Spack: an environment generated from site and stack, locked, fetched, built and shown by a view.

Spack sees nothing of the user's own configuration (``~/.spack``), and writes nothing there.
"""

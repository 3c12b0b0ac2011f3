"""Builds: what is compiled against a stack, once its wheels are in.

- ``planned``: a build as the plan knows it: its source, its patches, what it depends on
- ``contract``: what a kind of build does
- ``sources``: the archives that are here already
- ``fetch``: the archive of a planned build: found, or fetched; always held to its SHA-256
- ``archives``: unpacked without leaving the directory
- ``patches``: unified diffs, read and applied
- ``machine``: the compiler's identity, and how many jobs fit into the free memory
- ``kinds``: the commands that build and install, one module a kind
- ``cache``: what was built before, by the hash of all that it was built from
- ``diagnosis``: the first real error in a compiler's log
- ``building``: the act itself
"""

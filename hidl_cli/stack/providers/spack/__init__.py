"""Installation with Spack: an environment generated from site and stack, resolved, fetched, built and linked to a view.

Spack neither reads nor writes the user's own configuration (``~/.spack``).
"""

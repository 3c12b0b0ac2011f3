"""Installation with Spack, which resolves, builds and links an environment generated from the site and the stack.

Spack neither reads nor writes the user's own configuration (``~/.spack``).
"""

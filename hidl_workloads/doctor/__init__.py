"""Findings about the environment: a stable id, what was found, why it matters, and the fix.

Facts are dataclasses, with None for unknown fields. A rule is a pure function over one type of facts. The rules here
are applied inside jobs and need only the standard library; those of ``hidl_cli.doctor`` are applied outside.
"""

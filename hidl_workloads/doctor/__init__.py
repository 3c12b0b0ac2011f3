"""Rules that find problems of the environment inside jobs.

Facts are dataclasses whose unknown fields are None. A rule is a pure function of one type of facts and yields findings.
This package only requires the standard library. Rules that are applied outside jobs are in ``hidl_cli.doctor``.
"""

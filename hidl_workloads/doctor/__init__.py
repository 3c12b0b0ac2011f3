"""Findings of the environment, each with a stable id, what was seen, why it matters, and what mends it.

Facts are dataclasses whose fields are None where nothing was learnt. A rule is a pure function over one kind of facts.
What must hold inside a job lives here, beside the programs that run there, and needs nothing but Python itself;
what ``hidl`` sees from outside lives in ``hidl_cli.doctor``.
"""

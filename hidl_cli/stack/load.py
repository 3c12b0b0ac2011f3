"""Stacks by name."""

from __future__ import annotations

from hidl_cli.inputs.load import load
from hidl_cli.stack.checks import RULES
from hidl_cli.stack.schema import Stack


def load_stack(name: str) -> Stack:
    """The stack of that name with what it extends; ``UsageError`` if unknown, ``InvalidInput`` if faulty."""
    return load(RULES, name)

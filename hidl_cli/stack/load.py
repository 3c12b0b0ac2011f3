"""Stacks by name."""

from __future__ import annotations

from hidl_cli.inputs.load import Rules, load
from hidl_cli.stack.checks import mpi_is_installed, names_and_specifiers
from hidl_cli.stack.schema import Stack

RULES = Rules("stack", Stack, (names_and_specifiers, mpi_is_installed), appended=frozenset({("verify", "imports")}))


def load_stack(name: str) -> Stack:
    """The stack of that name with what it extends; ``UsageError`` if unknown, ``InvalidInput`` if faulty."""
    return load(RULES, name)

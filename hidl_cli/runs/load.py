"""Workloads by name."""

from __future__ import annotations

from hidl_cli.inputs.load import load
from hidl_cli.runs.checks import RULES
from hidl_cli.runs.workload import Workload


def load_workload(name: str) -> Workload:
    """The workload of that name with what it extends; ``UsageError`` if unknown, ``InvalidInput`` if faulty."""
    return load(RULES, name)

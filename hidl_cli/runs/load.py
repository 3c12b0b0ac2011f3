"""Workloads by name."""

from __future__ import annotations

from hidl_cli.inputs.load import Rules, load
from hidl_cli.runs.checks import one_program, parameters, scaling_metric, stack_conditions
from hidl_cli.runs.workload import Workload

RULES = Rules("workload", Workload, (one_program, parameters, stack_conditions, scaling_metric))


def load_workload(name: str) -> Workload:
    """The workload of that name with what it extends; ``UsageError`` if unknown, ``InvalidInput`` if faulty."""
    return load(RULES, name)

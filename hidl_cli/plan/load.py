"""Workloads by name."""

from __future__ import annotations

from pathlib import Path

from hidl_cli.inputs.load import examine, load, valid
from hidl_cli.inputs.overlay import at_path
from hidl_cli.plan.checks import RULES
from hidl_cli.plan.workload import Workload


def load_workload(name: str) -> Workload:
    """Load a workload, or a YAML file by its path, with what it extends.

    ``UsageError`` if unknown, ``InvalidInput`` if invalid.
    """
    file = Path(name)
    if file.suffix in (".yaml", ".yml") and file.is_file():
        return valid(examine(RULES, at_path("workload", file)))
    return load(RULES, name)

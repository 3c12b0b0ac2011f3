"""The stacks that a site's checks use: those of the workloads that they name."""

from __future__ import annotations

import ast
from pathlib import Path

from hidl_cli.inputs.overlay import list_all
from hidl_cli.plan.load import load_workload
from hidl_cli.stack.load import load_stack
from hidl_cli.validate.reframe import directories


def of_checks() -> tuple[str, ...]:
    """Every stack that a workload named in a file of checks can run on, the smallest first.

    The files are read and not run: ReFrame would take seconds.
    """
    known = {entry.name for entry in list_all("workload")}
    named = sorted(known & {word for directory in directories() for word in _words(directory)})
    used = {choice.stack for name in named for choice in load_workload(name).stacks}
    stacks = {name: load_stack(name) for name in used}
    return tuple(sorted(stacks, key=lambda name: (len(stacks[name].builds), len(stacks[name].packages), name)))


def _words(directory: Path) -> set[str]:
    """Every string in the Python files there; a file that is not Python has none."""
    found: set[str] = set()
    for file in sorted(directory.glob("*.py")):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        found |= {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return found

"""``python -m benchmarks [NAME...]``: measure, print each figure beside its bound; status 1 where one is not held."""

from __future__ import annotations

import sys
from importlib import import_module

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Outcome

NAMES = (
    "startup",
    "sites",
    "planning",
    "install",
    "spack",
    "run_overhead",
    "results_store",
    "omb_overhead",
    "data_parallel",
    "comm",
    "long_life",
    "long_training",
    "dask_apps",
    "pipeline",
    "first_step",
    "plan_accuracy",
)


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all."""
    table = Table("figure", "measured", "bound", "held", "", box=None, header_style="bold")
    outcomes: list[Outcome] = []
    for name in names or NAMES:
        Console(stderr=True).print(f"measuring {name} ...")
        outcomes += import_module(f"benchmarks.{name}").measure()
    for outcome in outcomes:
        figures = (f"{value:.3g} {outcome.unit}" for value in (outcome.value, outcome.bound))
        table.add_row(outcome.name, *figures, "yes" if outcome.held else "[red]no[/]", outcome.details)
    Console().print(table)
    return 0 if all(outcome.held for outcome in outcomes) else 1


sys.exit(main(sys.argv[1:]))

"""``python -m benchmarks [NAME...]``: measure, print each figure beside its bound.

The exit status is 1 if a bound is not held or a benchmark fails; the others are measured nevertheless.
"""

from __future__ import annotations

import sys
import traceback
from importlib import import_module

from rich.console import Console
from rich.markup import escape
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
    "recording",
    "recorded_training",
    "real_data",
    "data_parallel",
    "torch_distributed",
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
    errors = Console(stderr=True)
    outcomes: list[Outcome] = []
    failed: dict[str, str] = {}
    for name in names or NAMES:
        errors.print(f"measuring {name} ...")
        try:
            outcomes += import_module(f"benchmarks.{name}").measure()
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
    for outcome in outcomes:
        figures = (f"{value:.3g} {outcome.unit}" for value in (outcome.value, outcome.bound))
        table.add_row(outcome.name, *figures, "yes" if outcome.held else "[red]no[/]", outcome.details)
    for name, reason in failed.items():
        table.add_row(name, "-", "-", "[red]failed[/]", escape(reason))
    Console().print(table)
    return 0 if not failed and all(outcome.held for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

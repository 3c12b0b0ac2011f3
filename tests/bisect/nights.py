"""Good and bad runs that were planned and never ran."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hidl_cli.analysis.samples import Measure
from hidl_cli.bisect.journal import BisectMetric, Side
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.runs.verification import Provenance

PROGRAM = ("python", "train.py", "--batch", "8")


def planned(command: Sequence[str] = PROGRAM, **options: Any) -> Plan:
    """The plan of a program of the user's own on two ranks of this machine.

    Its id is the same each time: the seed of a search is made of those of its two sides.
    """
    options = {"site": "local", "ranks_per_node": 2, "directory": "/", "uses_mpi": False} | options
    plan = prepare(RunRequest(command=tuple(command), hypothetical=True, **options))
    digest = hashlib.sha256(repr((command, sorted(options.items()))).encode()).hexdigest()
    return replace(plan, run=f"20261121-080000-train-{digest[:4]}")


def side(plan: Plan, **provenance: Any) -> Side:
    """The side of a plan; ``lock`` and other fields of the plan, ``hosts``, ``packages`` and ``inputs``."""
    facts = {name: provenance.pop(name) for name in ("hosts", "packages") if name in provenance}
    inputs = provenance.pop("inputs", None)
    plan = replace(plan, **provenance)
    return Side(
        Provenance(plan, facts.get("hosts", ("n1",)), facts.get("packages", {})), plan.steps[0].placement, inputs
    )


def metric(good: Sequence[float] = (1.0, 1.01, 0.99), bad: Sequence[float] = (1.05, 1.06, 1.04)) -> BisectMetric:
    """The time of a step, which is slow where it is greater."""
    return BisectMetric(Measure("train", 1, 2, "wall_time", ""), "s", 1, tuple(good), tuple(bad))

"""Decide inside a job, between two rounds of a scaling study, whether it has been measured often enough.

::

    python -m hidl_workloads.enough RUN_DIRECTORY ROUNDS_DONE [--seconds-left S]

Ends with status 0 where the study is settled (or there is no time for another round), and leaves ``enough.json`` in
the run's directory; with 1 where it is to go on, and with 2 where it cannot tell, which is no reason to stop. It reads
``plan.json`` and the metrics that the steps left; of hidl it needs nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hidl_workloads.metrics import write_json
from hidl_workloads.repetitions import Decision, compared_enough, enough, rounding

SCHEMA = "hidl.enough/1"

_BETTER = {"weak": "higher", "strong": "lower"}
_STOP, _GO_ON, _CANNOT_TELL = 0, 1, 2
#: Files in a step's directory: another run of hidl used this machine's cores from the start, or some of them later.
UNBOUND, SHARED = "unbound", "shared"


class Measured(NamedTuple):
    """The efficiencies of a scaled step, one per round, and the error of their logarithms by the digits printed."""

    efficiencies: list[float]
    margin: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Decide, print why, and return the exit status."""
    parser = argparse.ArgumentParser(prog="hidl_workloads.enough", description="Decide if a study is settled.")
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("rounds", type=int, help="number of completed rounds")
    parser.add_argument("--seconds-left", type=float, default=math.inf, help="seconds until the job's time limit")
    options = parser.parse_args(arguments)
    try:
        decision = decide(options.directory, options.rounds, seconds_left=options.seconds_left)
    except (OSError, ValueError, ArithmeticError, KeyError, TypeError, StopIteration) as error:
        print(f"hidl: cannot determine whether the study is settled: {error!r}", file=sys.stderr)
        return _CANNOT_TELL
    print(f"# {'enough' if decision.stop else 'going on'}: {decision.why}")
    if decision.stop:
        document = {"schema": SCHEMA, "rounds": options.rounds, "why": decision.why}
        write_json(options.directory / "enough.json", document)
    return _STOP if decision.stop else _GO_ON


def decide(directory: Path, rounds: int, *, seconds_left: float = math.inf) -> Decision:
    """Return whether the study or comparison in ``directory`` is settled by its first ``rounds`` rounds.

    Raises ``OSError`` and ``ValueError`` for files that are not there or are no such documents, ``KeyError`` and
    ``TypeError`` for such as lack what is needed.
    """
    plan = _read(directory / "plan.json")
    planned = max(step["repetition"] for step in plan["steps"])
    if any(step.get("point") for step in plan["steps"]):
        better, (default, *settings) = read_points(directory, plan, rounds)
        decision = compared_enough(settings, default, better=better, rounds=planned, precision=plan.get("precision"))
    else:
        found = read_efficiencies(directory, plan, rounds).values()
        decision = enough(
            [step.efficiencies for step in found],
            float(plan["target"]),
            rounds=planned,
            precision=plan.get("precision"),
            margins=[step.margin for step in found],
        )
    one_round = (time.time() - float(_read(directory / "status.json")["started"])) / max(1, rounds)
    if not decision.stop and one_round > seconds_left:
        return Decision(True, f"a round takes {one_round:.0f} s, and {seconds_left:.0f} s are left")
    return decision


def is_disturbed(step: Path) -> bool:
    """Return whether another run used the machine's cores during the step with this directory."""
    return (step / UNBOUND).exists() or (step / SHARED).exists()


def _disturbed_rounds(directory: Path, plan: Mapping[str, Any]) -> set[int]:
    """Return the rounds with a disturbed step: they do not count, since the steps of a round are compared."""
    numbered = enumerate(plan["steps"], start=1)
    return {step["repetition"] for number, step in numbered if is_disturbed(directory / "steps" / str(number))}


def read_efficiencies(directory: Path, plan: Mapping[str, Any], rounds: int) -> dict[int, Measured]:
    """Return the efficiencies of each scaled step by its size.

    They are relative to the smallest step or the sum of copies. Sizes are those of the plan, or numbers of workers if
    some ranks do no work of their own (as in hidl's verdict). Rounds with a disturbed step are left out. Raises as
    ``decide``.
    """
    scaling = plan["workload"]["scaling"]
    better = plan["workload"].get("metrics", {}).get(scaling["metric"], {}).get("better")
    sign = 1 if (better or _BETTER[scaling["kind"]]) == "higher" else -1
    overhead = plan["workload"].get("overhead_ranks", 0)
    printed: dict[int, dict[int, float]] = {}
    of_copies: list[float] = []
    limits: dict[int, float] = {}
    sizes = [step["placement"]["ranks"] - overhead if overhead else step["size"] for step in plan["steps"]]
    size = min(sizes)
    counted = sorted(set(range(1, rounds + 1)) - _disturbed_rounds(directory, plan))
    for number, step in enumerate(plan["steps"], start=1):
        if step["repetition"] not in counted:
            continue
        place = directory / "steps" / str(number)
        copies = step.get("copies") or 0
        if copies:
            each = [_value(place / "copies" / str(copy), scaling["metric"]) for copy in range(1, copies + 1)]
            of_copies += each
            limits[step["repetition"]] = math.fsum(value**sign for value in each) / copies
        else:
            printed.setdefault(sizes[number - 1], {})[step["repetition"]] = _value(place, scaling["metric"])
    first = {} if limits else printed.pop(size, {})
    baseline = limits or {r: value**sign for r, value in first.items()}
    return {
        n: Measured(
            [by_round[r] ** sign * size / (n * baseline[r]) for r in counted],
            rounding(list(by_round.values()), of_copies or list(first.values())),
        )
        for n, by_round in sorted(printed.items())
    }


def read_points(directory: Path, plan: Mapping[str, Any], rounds: int) -> tuple[str, list[list[float]]]:
    """Return which direction is better, and the values of each point of a matrix, one per round; the default first.

    The metric is the one that hidl ranks by: that of the scaling, or the first with a direction. Rounds with a
    disturbed step are left out. Raises as ``decide``.
    """
    workload = plan["workload"]
    scaling, metrics = workload.get("scaling"), workload["metrics"]
    directions = {name: each.get("better") for name, each in metrics.items()}
    if scaling:
        directions = {scaling["metric"]: directions.get(scaling["metric"]) or _BETTER[scaling["kind"]]}
    metric, better = next((name, each) for name, each in directions.items() if each)
    points: list[Mapping[str, Any]] = []
    values: list[list[float]] = []
    disturbed = _disturbed_rounds(directory, plan)
    for number, step in enumerate(plan["steps"], start=1):
        if step["point"] not in points:
            points.append(step["point"])
            values.append([])
        if step["repetition"] <= rounds and step["repetition"] not in disturbed:
            values[points.index(step["point"])].append(_value(directory / "steps" / str(number), metric))
    return better, values


def _value(step: Path, metric: str) -> float:
    files = (step / name for name in ("metrics.json", "found.json", "timing.json"))
    documents = (_read(file) for file in files if file.exists())
    found = (each for document in documents for each in document["metrics"])
    return next(float(each["value"]) for each in found if each["name"] == metric)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())

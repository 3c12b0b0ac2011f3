"""Stated and observed confidence of every probability that hidl prints, in seeded simulations.

``python -m tests.analysis.calibration [STUDIES]`` writes docs/reference/calibration.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidl_cli.analysis.changes.changepoints import histories
from hidl_cli.analysis.changes.compare import compare
from hidl_cli.analysis.nodes.slow_nodes import SIGNIFICANT, nodes
from hidl_cli.analysis.ranking import rank
from hidl_cli.analysis.statistics import mean_interval
from tests.analysis.changes.simulated_nights import correlated
from tests.analysis.culprit.simulated_machine import Effect, Machine, bisect, nothing, one, recorded_by
from tests.analysis.sampled import nights

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "calibration.md"
MARGIN = 0.02
Noise = Callable[[np.random.Generator, int], NDArray[Any]]
#: What one study states and whether it was right; None if it states nothing.
Study = Callable[[int], "tuple[float, bool] | None"]


def normal(random: np.random.Generator, count: int) -> NDArray[Any]:
    """Return normal noise of 2 %."""
    return 0.02 * random.standard_normal(count)


def heavy(random: np.random.Generator, count: int) -> NDArray[Any]:
    """Return noise with the tails of Student's t with 3 degrees of freedom."""
    return 0.02 * random.standard_t(3, count)


def neighbours(random: np.random.Generator, count: int) -> NDArray[Any]:
    """Return noise that correlates by 0.5 from night to night."""
    return 0.02 * correlated(random.standard_normal(count), 0.5)


@dataclass(frozen=True)
class Row:
    """One kind of statement under one truth; ``cost`` divides the number of studies."""

    what: str
    truth: str
    study: Study
    cost: int = 1


@dataclass(frozen=True)
class Result:
    """The mean stated confidence of the studies that state something, and the share of them that are right."""

    row: Row
    studies: int
    stating: int
    stated: float
    right: float

    @property
    def holds(self) -> bool:
        """Whether no more is stated than observed, within two points and two standard errors of the simulation."""
        error = (self.stated * (1 - self.stated) / max(1, self.stating)) ** 0.5
        return self.right >= self.stated - MARGIN - 2 * error * (self.studies < 1000)


def simulate(row: Row, studies: int) -> Result:
    """Run the studies of a row."""
    found = [each for seed in range(studies) if (each := row.study(seed)) is not None]
    stated, right = (float(np.mean([each[i] for each in found])) if found else 1.0 for i in range(2))
    return Result(row, studies, len(found), stated, right)


def _verdict(noise: Noise) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        interval = mean_interval(noise(np.random.default_rng(seed), 5).tolist())
        return 0.95, interval is not None and interval.low <= 0 <= interval.high

    return study


def _compare(noise: Noise) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        random = np.random.default_rng(seed)
        a, b = ((100 * np.exp(noise(random, 8))).tolist() for _ in range(2))
        (found,) = compare(nights(a), nights(b, first=20), tolerance=0).differences
        assert found.interval is not None
        return 0.95, found.outcome in ("same", "inconclusive") and found.interval.low <= 0 <= found.interval.high

    return study


def _history(noise: Noise) -> Study:
    def study(seed: int) -> tuple[float, bool] | None:
        values = 100 * np.exp(noise(np.random.default_rng(seed), 120))
        values[60:] *= 0.8
        (found,) = histories(nights(values.tolist()))
        steps = [step for step in found.steps if abs(step.index - 60) <= 5]
        return (0.95, steps[0].interval.low <= -0.2 <= steps[0].interval.high) if steps else None

    return study


def _no_step(noise: Noise) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        values = 100 * np.exp(noise(np.random.default_rng(seed), 120))
        return 0.95, not histories(nights(values.tolist()))[0].steps

    return study


def _slow(noise: Noise, lost: float = 0.0) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        random = np.random.default_rng(seed)
        logs = noise(random, 80).reshape(5, 16)
        there = random.random((5, 16)) >= lost
        rates = {r: {f"n{i}": float(np.exp(logs[r, i])) for i in range(16) if there[r, i]} for r in range(5)}
        return 1 - SIGNIFICANT, not any(node.slow for node in nodes(rates))

    return study


def _rank(noise: Noise) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        random = np.random.default_rng(seed)
        points = [({"p": number}, np.exp(noise(random, 5)).tolist()) for number in range(4)]
        return 0.95, not any(entry.is_behind for entry in rank("rate", "1/s", "higher", points).entries)

    return study


def _bisect(effect: Effect, kind: str, *, then: Effect | None = None, **machine: Any) -> Study:
    def study(seed: int) -> tuple[float, bool] | None:
        simulated = Machine(effect, seed, **machine)
        found = bisect(simulated, recorded_by(simulated, 2, then=then), 2, budget=60)
        if found.outcome == "undecided":
            return None
        named = found.best.explanation.kind if found.outcome == "changes" else found.outcome
        return found.confidence, named == kind and (kind != "opposite" or found.best.guilty == (0,))

    return study


ROWS = (
    Row("verdict: interval", "normal noise", _verdict(normal)),
    Row("verdict: interval", "heavy tails", _verdict(heavy)),
    Row("compare: difference and interval", "equal, normal noise", _compare(normal)),
    Row("compare: difference and interval", "equal, heavy tails", _compare(heavy)),
    Row("history: no false step", "normal noise", _no_step(normal)),
    Row("history: no false step", "heavy tails", _no_step(heavy)),
    Row("history: no false step", "nights that correlate by 0.5", _no_step(neighbours)),
    Row("history: interval of a step", "normal noise", _history(normal)),
    Row("history: interval of a step", "nights that correlate by 0.5", _history(neighbours)),
    Row("slow nodes: none is named", "equal, normal noise", _slow(normal)),
    Row("slow nodes: none is named", "equal, 20 % of values missing", _slow(normal, 0.2)),
    Row("slow nodes: none is named", "equal, heavy tails", _slow(heavy)),
    Row("rank: none is behind", "equal, normal noise", _rank(normal)),
    Row("rank: none is behind", "equal, heavy tails", _rank(heavy)),
    Row("bisect", "one of two", _bisect(one(0), "one"), 5),
    Row("bisect", "opposite signs", _bisect(lambda m: 1.2 ** (0 in m) * 0.88 ** (1 in m) - 1, "opposite"), 5),
    Row("bisect", "either alone is enough", _bisect(lambda m: 0.05 * bool(m), "either"), 5),
    Row(
        "bisect",
        "not reproducible, 10 % of noise",
        _bisect(nothing, "not reproducible", then=one(0, 0.2), noise=0.1, drift=0.0),
        10,
    ),
    Row(
        "bisect",
        "the machine, 10 % of noise",
        _bisect(nothing, "machine", then=one(0, 0.2), noise=0.1, drift=0.0, level=float(np.log(1.2))),
        10,
    ),
)


def page(results: list[Result]) -> str:
    """Return the page with the table."""
    lines = [
        "# Calibration",
        "",
        "Stated confidence and how often the statement is true, in seeded simulations with adversarial truths.",
        "*Stating* is the number of studies that came to a statement; the others were undecided or found nothing.",
        "A row holds if the observed share is at most two points below the stated one (with fewer than 1,000 studies,",
        "two standard errors of the simulation are allowed for). Written by `python -m tests.analysis.calibration`.",
        "",
        "| statement | truth | studies | stating | stated | observed | holds |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.row.what} | {each.row.truth} | {each.studies:,} | {each.stating:,} | {100 * each.stated:.1f} % | "
        f"{100 * each.right:.1f} % | {'yes' if each.holds else '**no**'} |"
        for each in results
    ]
    return "\n".join(lines) + "\n"


def main(studies: int) -> None:
    """Write the page."""
    results = []
    for row in ROWS:
        results.append(simulate(row, studies // row.cost))
        print(results[-1], file=sys.stderr, flush=True)
        PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)

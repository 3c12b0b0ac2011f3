"""Simulated years of nightlies: how often a step is found in time, and how often one is that is none.

``PYTHONPATH=. python tests/analysis/changes/simulated_nights.py [YEARS SEED]`` prints the table of
docs/explanation/verdict.md.
Every night is judged with what was known then, as ``hidl results history`` would be asked each morning.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidl_cli.analysis.changes.changepoints import LEAST_RUNS, find_changes

NIGHTS = 365
NOISE = 0.02
STEP = -0.05
WITHIN = 5  # nights that it may take to find a step, and that its place may be off by
SAME_ALARM = 10  # nights: steps nearer to an earlier alarm are that alarm, told again


@dataclass(frozen=True)
class Year:
    """What a year is like: shares of nights with an outlier (a run slowed down by about 12 %) and without a run, and
    the drift from its first to its last night."""

    outliers: float = 0.0
    missing: float = 0.0
    drift: float = 0.0

    def measure(self, random: np.random.Generator, *, step: int | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """The values, and the nights that they are from; from night ``step`` on, all is 5 % lower."""
        nights = np.arange(NIGHTS)
        logs = NOISE * random.standard_normal(NIGHTS) + np.log1p(self.drift) * nights / NIGHTS
        slow = random.random(NIGHTS) < self.outliers
        logs -= slow * 0.15 * np.abs(random.standard_normal(NIGHTS))
        if step is not None:
            logs[step:] += np.log1p(STEP)
        there = random.random(NIGHTS) >= self.missing
        return 100 * np.exp(logs[there]), nights[there]


YEARS = {
    "nothing else": Year(),
    "3 % of nights are outliers": Year(outliers=0.03),
    "20 % of nights are missing": Year(missing=0.2),
    "a drift of -4 % a year": Year(drift=-0.04),
    "a drift of +10 % a year": Year(drift=0.10),
}


def alarms(year: Year, random: np.random.Generator) -> int:
    """How many false alarms a year without any step raises, looked at after each night."""
    values, nights = year.measure(random)
    told: list[int] = []
    for known in range(LEAST_RUNS, len(values) + 1):
        for index in find_changes(values[:known], nights[:known]):
            if all(abs(nights[index] - night) > SAME_ALARM for night in told):
                told.append(int(nights[index]))
    return len(told)


def steps_in_the_end(year: Year, random: np.random.Generator) -> int:
    """How many steps a year without any shows when it is over."""
    values, nights = year.measure(random)
    return len(find_changes(values, nights))


def found_in_time(year: Year, random: np.random.Generator) -> bool:
    """Is a step on a random night found, at its place, once ``WITHIN`` runs of the new level are there, or before?"""
    step = int(random.integers(30, NIGHTS - 15))
    values, nights = year.measure(random, step=step)
    first = int(np.searchsorted(nights, step))
    return any(
        any(abs(index - first) <= WITHIN for index in find_changes(values[:known], nights[:known]))
        for known in range(first + 3, first + WITHIN + 1)
    )


def main(years: int, seed: int) -> None:
    print("| a year with 2 % noise, and | false alarms, asked every night | asked at the end | 5 % step found |")
    print("|---|---|---|---|")
    for name, year in YEARS.items():
        random = np.random.default_rng(seed)
        nightly = np.mean([alarms(year, random) for _ in range(years)])
        once = np.mean([steps_in_the_end(year, random) for _ in range(10 * years)])
        found = np.mean([found_in_time(year, random) for _ in range(10 * years)])
        print(f"| {name} | {nightly:.2f} | {once:.2f} | {found:.3f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] if len(sys.argv) == 3 else (100, 1)))

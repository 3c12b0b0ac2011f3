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

from hidl_cli.analysis.changes import LEAST_RUNS, find_changes

NIGHTS = 365
NOISE = 0.02
STEP = -0.05
WITHIN = 5  # nights that it may take to find a step, and that its place may be off by
SAME_ALARM = 10  # nights: steps nearer to an earlier alarm are that alarm, told again


@dataclass(frozen=True)
class Year:
    """What a year is like: shares of nights with an outlier (a run slowed down by about 12 %) and without a run, and
    the drift from its first to its last night.

    ``correlation`` is that of neighbouring nights, AR(1). ``sets`` of nodes differ by up to 12 % and take turns for 3
    to 19 nights each.
    """

    outliers: float = 0.0
    missing: float = 0.0
    drift: float = 0.0
    correlation: float = 0.0
    sets: int = 1

    def measure(
        self, random: np.random.Generator, *, step: int | None = None
    ) -> tuple[NDArray[Any], NDArray[Any], list[tuple[str, ...]]]:
        """Return the values, their nights and their hosts; from night ``step`` on, all is 5 % lower."""
        nights = np.arange(NIGHTS)
        logs = (
            NOISE * correlated(random.standard_normal(NIGHTS), self.correlation)
            + np.log1p(self.drift) * nights / NIGHTS
        )
        slow = random.random(NIGHTS) < self.outliers
        logs -= slow * 0.15 * np.abs(random.standard_normal(NIGHTS))
        if step is not None:
            logs[step:] += np.log1p(STEP)
        there = random.random(NIGHTS) >= self.missing
        which = self._turns(random)
        logs += np.linspace(-0.04, 0.08, self.sets)[which] if self.sets > 1 else 0.0
        return 100 * np.exp(logs[there]), nights[there], [(f"n{number}",) for number in which[there]]

    def _turns(self, random: np.random.Generator) -> NDArray[Any]:
        if self.sets == 1:
            return np.zeros(NIGHTS, dtype=int)
        turns = [np.full(random.integers(3, 20), random.integers(self.sets)) for _ in range(NIGHTS // 3 + 1)]
        return np.concatenate(turns)[:NIGHTS]


def correlated(noise: NDArray[Any], correlation: float) -> NDArray[Any]:
    """Return AR(1) noise of variance 1 from independent noise of variance 1."""
    found = noise.copy()
    for night in range(1, len(noise)):
        found[night] = correlation * found[night - 1] + np.sqrt(1 - correlation**2) * noise[night]
    return found


YEARS = {
    "nothing else": Year(),
    "3 % of nights are outliers": Year(outliers=0.03),
    "20 % of nights are missing": Year(missing=0.2),
    "a drift of -4 % a year": Year(drift=-0.04),
    "a drift of +10 % a year": Year(drift=0.10),
    "nights that correlate by 0.3": Year(correlation=0.3),
    "nights that correlate by 0.5": Year(correlation=0.5),
    "nights that correlate by 0.7": Year(correlation=0.7),
    "four sets of nodes in turn": Year(sets=4),
}


def alarms(year: Year, random: np.random.Generator) -> int:
    """How many false alarms a year without any step raises, looked at after each night."""
    values, nights, hosts = year.measure(random)
    told: list[int] = []
    for known in range(LEAST_RUNS, len(values) + 1):
        for index in find_changes(values[:known], nights[:known], hosts[:known]):
            if all(abs(nights[index] - night) > SAME_ALARM for night in told):
                told.append(int(nights[index]))
    return len(told)


def steps_in_the_end(year: Year, random: np.random.Generator) -> int:
    """How many steps a year without any shows when it is over."""
    values, nights, hosts = year.measure(random)
    return len(find_changes(values, nights, hosts))


def found_in_time(year: Year, random: np.random.Generator) -> bool:
    """Is a step on a random night found, at its place, once ``WITHIN`` runs of the new level are there, or before?"""
    step = int(random.integers(30, NIGHTS - 15))
    values, nights, hosts = year.measure(random, step=step)
    first = int(np.searchsorted(nights, step))
    return any(
        any(abs(index - first) <= WITHIN for index in find_changes(values[:known], nights[:known], hosts[:known]))
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

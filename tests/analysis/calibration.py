"""Stated and observed confidence of every probability that hidl prints, in seeded simulations.

``python -m tests.analysis.calibration`` writes docs/reference/calibration.md, with 1,000 studies a row: an hour.
Two numbers are those of cheap and of costly rows: ``1000 200`` takes ten minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidl_cli.analysis import scaling
from hidl_cli.analysis.changes import compare, find_changes, histories
from hidl_cli.analysis.culprit import Mixture
from hidl_cli.analysis.nodes import field
from hidl_cli.analysis.ranking import rank
from hidl_cli.analysis.scaling import SLOW as SIGNIFICANT
from hidl_cli.analysis.scaling import Observation, nodes
from hidl_workloads.repetitions import WRONG, interval
from tests.analysis.changes.simulated_nights import Year, correlated
from tests.analysis.culprit.simulated_machine import Effect, Machine, bisect, draw, nothing, one, recorded_by
from tests.analysis.sampled import nights

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "calibration.md"
MARGIN = 0.02
#: The share of series of about 120 nights without a step in which none is found (docs/explanation/verdict.md).
QUIET = 0.975
Noise = Callable[[np.random.Generator, int], NDArray[Any]]
#: What one study states and whether it was right; None if it states nothing.
Study = Callable[[int], "tuple[float, bool] | None"]


def normal(random: np.random.Generator, count: int) -> NDArray[Any]:
    """Return normal noise of 2 %."""
    return 0.02 * random.standard_normal(count)


def heavy(random: np.random.Generator, count: int) -> NDArray[Any]:
    """Return noise with the tails of Student's t with 3 degrees of freedom."""
    return 0.02 * random.standard_t(3, count)


def delays(random: np.random.Generator, count: int) -> NDArray[Any]:
    """Return delays in the step alone; the pseudomedian of an exponential delay is 0.839."""
    return 0.02 * (0.8391735 - random.exponential(size=count))


def neighbours(random: np.random.Generator, count: int) -> NDArray[Any]:
    """Return noise that correlates by 0.5 from night to night."""
    return 0.02 * correlated(random.standard_normal(count), 0.5)


@dataclass(frozen=True)
class Row:
    """One kind of statement under one truth.

    ``is_costly``: a study takes half a second. ``at_least``: why more may be true than is stated; empty if
    the observed share is to be the stated one.
    """

    what: str
    truth: str
    study: Study
    is_costly: bool = False
    at_least: str = ""


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
        """Is the observed share the stated one, or above it if ``at_least``?

        Within two points, and with fewer than 1,000 studies three standard errors of the simulation.
        """
        error = (self.stated * (1 - self.stated) / max(1, self.stating)) ** 0.5
        margin = MARGIN + 3 * error * (self.studies < 1000)
        return self.stated - margin <= self.right and (bool(self.row.at_least) or self.right <= self.stated + margin)


def simulate(row: Row, studies: int = 1000) -> Result:
    """Run the studies of a row."""
    found = [each for seed in range(studies) if (each := row.study(seed)) is not None]
    stated, right = (float(np.mean([each[i] for each in found])) if found else 1.0 for i in range(2))
    return Result(row, studies, len(found), stated, right)


def _verdict(noise: Noise) -> Study:
    """Return the study of a step just below the target, which must not pass."""

    def study(seed: int) -> tuple[float, bool]:
        found = interval(noise(np.random.default_rng(seed), 5).tolist())
        return 1 - WRONG, found is not None and found.low <= 0

    return study


def _sequential(noise: Noise) -> Study:
    """Return the same study, which may be stopped after each of 20 rounds."""

    def study(seed: int) -> tuple[float, bool]:
        logs = noise(np.random.default_rng(seed), 20)
        looks = [interval(logs[:n].tolist(), rounds=20) for n in range(3, 21)]
        return 1 - WRONG, all(each is not None and each.low <= 0 for each in looks)

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
        return QUIET, not histories(nights(values.tolist()))[0].steps

    return study


def _quiet_year(year: Year) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        values, days, hosts = year.measure(np.random.default_rng(seed))
        return QUIET, not find_changes(values.tolist(), days.tolist(), hosts)

    return study


def _slow(noise: Noise, lost: float = 0.0) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        random = np.random.default_rng(seed)
        logs = noise(random, 80).reshape(5, 16)
        there = random.random((5, 16)) >= lost
        rates = {r: {f"n{i}": float(np.exp(logs[r, i])) for i in range(16) if there[r, i]} for r in range(5)}
        return 1 - SIGNIFICANT, not any(node.slow for node in nodes(rates))

    return study


def _links(noise: Noise) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        random = np.random.default_rng(seed)
        pairs = list(combinations([f"n{number}" for number in range(8)], 2))
        rounds = [dict(zip(pairs, np.exp(noise(random, len(pairs))).tolist(), strict=True)) for _ in range(3)]
        return 1 - SIGNIFICANT, not field("bandwidth", "MB/s", "higher", rounds).slow_links

    return study


def _cold(noise: Noise) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        rates = np.exp(noise(np.random.default_rng(seed), 10)).reshape(5, 2)
        values = [Observation(2**step, turn, float(rates[turn - 1, step])) for turn in range(1, 6) for step in range(2)]
        return 1 - scaling.COLD, not list(scaling.cold_rounds(values, 1))

    return study


def _rank(noise: Noise) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        random = np.random.default_rng(seed)
        points = [({"p": number}, np.exp(noise(random, 5)).tolist()) for number in range(4)]
        return 0.95, not any(entry.is_behind for entry in rank("rate", "1/s", "higher", points).entries)

    return study


def _opposite(mixture: Mixture) -> float:
    return float(1.2 ** (0 in mixture) * 0.88 ** (1 in mixture) - 1)


def _bisect(effect: Effect, kind: str, *, then: Effect | None = None, **machine: Any) -> Study:
    def study(seed: int) -> tuple[float, bool] | None:
        simulated = Machine(effect, seed, **machine)
        found = bisect(simulated, recorded_by(simulated, 2, then=then), 2, budget=60)
        if found.outcome == "undecided":
            return None
        named = found.best.explanation.kind if found.outcome == "changes" else found.outcome
        return found.confidence, named == kind and (kind != "opposite" or found.best.guilty == (0,))

    return study


def _drawn(seed: int) -> tuple[float, bool] | None:
    truth = draw(seed)
    found = bisect(truth.machine, truth.recorded, 2, budget=60)
    return None if found.outcome == "undecided" else (found.confidence, truth.is_right(found))


_ROBUST = "the limits are those of normal noise; heavy tails widen the intervals more than they spread the means"
_DELAYS = "the limits also hold for delays in the step alone, where nearly all errors are wrong passes"
_ONE_TRUTH = "a probability holds on average over the priors (first row): this truth is easier than their average"

ROWS = (
    Row("verdict: no wrong pass", "at the target, normal noise", _verdict(normal), at_least=_DELAYS),
    Row("verdict: no wrong pass", "at the target, heavy tails", _verdict(heavy), at_least=_DELAYS),
    Row("verdict: no wrong pass", "at the target, delays in the step only", _verdict(delays)),
    Row("verdict: no wrong pass, stopped early", "at the target, normal noise", _sequential(normal)),
    Row("verdict: no wrong pass, stopped early", "at the target, heavy tails", _sequential(heavy)),
    Row("verdict: no wrong pass, stopped early", "at the target, delays in the step only", _sequential(delays)),
    Row("compare: difference and interval", "equal, normal noise", _compare(normal)),
    Row("compare: difference and interval", "equal, heavy tails", _compare(heavy)),
    Row("history: no false step", "normal noise", _no_step(normal)),
    Row("history: no false step", "heavy tails", _no_step(heavy)),
    Row("history: no false step", "nights that correlate by 0.5", _no_step(neighbours)),
    Row("history: no false step", "20 % of nights missing", _quiet_year(Year(missing=0.2))),
    Row("history: no false step", "four sets of nodes in turn", _quiet_year(Year(sets=4))),
    Row("history: interval of a step", "normal noise", _history(normal)),
    Row("history: interval of a step", "nights that correlate by 0.5", _history(neighbours)),
    Row("slow nodes: none is named", "equal, normal noise", _slow(normal)),
    Row("slow nodes: none is named", "equal, 20 % of values missing", _slow(normal, 0.2)),
    Row("slow nodes: none is named", "equal, heavy tails", _slow(heavy)),
    Row("slow nodes: none is named", "equal, heavy tails, 20 % of values missing", _slow(heavy, 0.2)),
    Row("slow links: none is named", "equal, normal noise", _links(normal)),
    Row("slow links: none is named", "equal, heavy tails", _links(heavy)),
    Row("cold round: none is reported", "equal, normal noise", _cold(normal)),
    Row("cold round: none is reported", "equal, heavy tails", _cold(heavy)),
    Row("rank: none is behind", "equal, normal noise", _rank(normal)),
    Row("rank: none is behind", "equal, heavy tails", _rank(heavy), at_least=_ROBUST),
    Row("bisect", "drawn from the priors", _drawn, True),
    Row("bisect", "one of two", _bisect(one(0), "one"), True, at_least=_ONE_TRUTH),
    Row("bisect", "opposite signs", _bisect(_opposite, "opposite"), True, at_least=_ONE_TRUTH),
    Row("bisect", "either alone is enough", _bisect(lambda m: 0.05 * bool(m), "either"), True, at_least=_ONE_TRUTH),
    Row(
        "bisect",
        "not reproducible, 10 % of noise",
        _bisect(nothing, "not reproducible", then=one(0, 0.2), noise=0.1, drift=0.0),
        True,
        _ONE_TRUTH,
    ),
    Row(
        "bisect",
        "the machine, 10 % of noise",
        _bisect(nothing, "machine", then=one(0, 0.2), noise=0.1, drift=0.0, level=float(np.log(1.2))),
        True,
        _ONE_TRUTH,
    ),
)


def page(results: list[Result]) -> str:
    """Return the page with the table."""
    lines = [
        "# Calibration",
        "",
        "Stated confidence and how often the statement is true, in seeded simulations with adversarial truths.",
        "*Stating* is the number of studies that came to a statement; the others were undecided or found nothing.",
        "A row holds if the observed share is within two points of the stated one. Where *at least* so much is stated,",
        "it may be higher, for the reason given: a bound for a class of truths is conservative for the easy ones.",
        "Of fewer than 1,000 studies, three standard errors are allowed for.",
        "`python -m tests.analysis.calibration` computes all rows again, with 1,000 studies each.",
        "",
        "| statement | truth | studies | stating | stated | observed | holds | why more |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.row.what} | {each.row.truth} | {each.studies:,} | {each.stating:,} | "
        f"{'at least ' * bool(each.row.at_least)}{100 * each.stated:.1f} % | {100 * each.right:.1f} % | "
        f"{'yes' if each.holds else '**no**'} | {each.row.at_least} |"
        for each in results
    ]
    lines += [
        "",
        "The rows of the verdict are about what it states: that the target is reached. The interval printed beside it",
        "has 95 %, since each of its ends may be wrong in 2.5 % of studies. Both together are wrong in at most 3.5 %",
        "([table](../explanation/verdict.md#the-interval)), because no noise makes both ends wrong as often as the",
        "worst noise makes one.",
    ]
    return "\n".join(lines) + "\n"


def main(studies: int = 1000, costly: int = 1000) -> None:
    """Write the page; ``costly``: how many studies the costly rows get, which are computed first."""
    counts = [costly if row.is_costly else studies for row in ROWS]
    order = sorted(range(len(ROWS)), key=lambda index: not ROWS[index].is_costly)
    with ProcessPoolExecutor() as pool:
        found = {index: pool.submit(_figures, index, counts[index]) for index in order}
        results = [Result(row, counts[index], *found[index].result()) for index, row in enumerate(ROWS)]
    PAGE.write_text(page(results), encoding="utf-8")


def _figures(index: int, studies: int) -> tuple[int, float, float]:
    """Run the studies of a row, whose functions cannot be sent to another process."""
    found = simulate(ROWS[index], studies)
    print(found, file=sys.stderr, flush=True)
    return found.stating, found.stated, found.right


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))

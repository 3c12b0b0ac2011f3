"""Stated and observed confidence of every probability that hidl prints, in seeded simulations.

``python -m tests.analysis.calibration`` writes docs/reference/calibration.md, with 1,000 studies a row and 9,000 for
the answers of bisect: half an hour of CPU time. Arguments are other numbers of studies for rows, bisect and its power.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidl_cli.analysis import scaling
from hidl_cli.analysis.changes import compare, find_changes, histories
from hidl_cli.analysis.culprit import PRIORS, Mixture
from hidl_cli.analysis.nodes import field
from hidl_cli.analysis.ranking import rank
from hidl_cli.analysis.scaling import SLOW as SIGNIFICANT
from hidl_cli.analysis.scaling import Observation, nodes
from hidl_workloads.repetitions import confidence, interval
from tests.analysis.changes.simulated_nights import Year, correlated
from tests.analysis.culprit.simulated_machine import (
    SLOWDOWN,
    Effect,
    Machine,
    bisect,
    draw,
    nothing,
    one,
    recorded_by,
)
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


def weak_neighbours(random: np.random.Generator, count: int) -> NDArray[Any]:
    """Return noise that correlates by 0.3 from night to night."""
    return 0.02 * correlated(random.standard_normal(count), 0.3)


def outliers(random: np.random.Generator, count: int) -> NDArray[Any]:
    """Return normal noise in which one value in ten has five times the deviation."""
    return normal(random, count) * np.where(random.random(count) < 0.1, 5, 1)


@dataclass(frozen=True)
class Row:
    """One kind of statement under one truth."""

    what: str
    truth: str
    study: Study


@dataclass(frozen=True)
class Result:
    """The mean stated confidence of the studies that state something, and the share of them that are right.

    ``error`` is the standard error of the share if the statements are right as often as stated.
    """

    what: str
    truth: str
    studies: int
    stating: int
    stated: float
    right: float
    error: float

    @property
    def holds(self) -> bool:
        """Check that both agree within two points, and with fewer than 1,000 statements three standard errors."""
        return abs(self.stated - self.right) <= MARGIN + 1e-9 + 3 * self.error * (self.stating < 1000)


def simulate(row: Row, studies: int = 1000) -> Result:
    """Run the studies of a row."""
    found = [(1.0, *each) for seed in range(studies) if (each := row.study(seed)) is not None]
    return _result(row.what, row.truth, studies, found)


def _result(what: str, truth: str, studies: int, found: Sequence[tuple[float, float, bool]]) -> Result:
    """Average statements, given as weight, stated confidence and whether they are right."""
    if not found:
        return Result(what, truth, studies, 0, 1.0, 1.0, 0.0)
    weights, stated, right = (np.array(each, dtype=float) for each in zip(*found, strict=True))
    shares = weights / weights.sum()
    mean = float(shares @ stated)
    error = float(np.sqrt(mean * (1 - mean) * (shares**2).sum()))
    return Result(what, truth, studies, len(found), mean, float(shares @ right), error)


def _verdict(noise: Noise, rounds: int = 5) -> Study:
    """Return the study of a step at the target, which must neither pass nor fail."""

    def study(seed: int) -> tuple[float, bool]:
        found = interval(noise(np.random.default_rng(seed), rounds).tolist())
        return confidence(1, rounds), found is not None and found.low <= 0 <= found.high

    return study


def _steps(noise: Noise, steps: int = 4) -> Study:
    """Return the study of several steps at the target, of which none must pass or fail."""

    def study(seed: int) -> tuple[float, bool]:
        values = noise(np.random.default_rng(seed), 5 * steps).reshape(steps, 5)
        found = [interval(each.tolist(), steps=steps) for each in values]
        stated = 1 - steps * (1 - confidence(steps, 5))
        return stated, all(each is not None and each.low <= 0 <= each.high for each in found)

    return study


def _sequential(noise: Noise, rounds: int = 20) -> Study:
    """Return the study of a step at the target, which may be stopped after each round."""

    def study(seed: int) -> tuple[float, bool]:
        logs = noise(np.random.default_rng(seed), rounds)
        looks = [interval(logs[:n].tolist(), rounds=rounds) for n in range(3, rounds + 1)]
        return confidence(1, rounds), all(each is not None and each.low <= 0 <= each.high for each in looks)

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


def _rank(noise: Noise, points: int = 4, rounds: int = 5) -> Study:
    def study(seed: int) -> tuple[float, bool]:
        random = np.random.default_rng(seed)
        values = [({"p": number}, np.exp(noise(random, rounds)).tolist()) for number in range(points)]
        ranking = rank("rate", "1/s", "higher", values)
        return ranking.confidence, not any(entry.is_behind for entry in ranking.entries)

    return study


def _opposite(mixture: Mixture) -> float:
    return float(1.2 ** (0 in mixture) * 0.88 ** (1 in mixture) - 1)


@dataclass(frozen=True)
class Statement:
    """An answer of ``hidl bisect`` on a drawn truth; ``covers`` if the interval of the slowdown contains the truth."""

    answer: str
    weight: float
    stated: float
    right: bool
    covers: bool


def state(seed: int) -> Statement:
    """Bisect a truth drawn from the priors."""
    truth = draw(seed)
    found = bisect(truth.machine, truth.recorded, 2, budget=60)
    named = found.best.explanation.kind if found.outcome == "changes" else found.outcome
    return Statement(named, truth.weight, found.confidence, truth.is_right(found), truth.covers(found))


#: Answers of bisect, and what they say.
ANSWERS = {
    "one": "one change",
    "together": "two changes, only together",
    "both": "two changes, each a part",
    "either": "two changes, either is enough",
    "opposite": "one slower, one faster",
    "several": "effects do not add up",
    "not reproducible": "not reproducible",
    "machine": "the machine",
}
BINS = ((0.95, 0.97), (0.97, 0.99), (0.99, 1.0))


def reliability(statements: Sequence[Statement]) -> list[Result]:
    """Return how often bisect is right: in all answers, by answer, and by the probability that it states."""
    studies = len(statements)
    found = [each for each in statements if each.answer != "undecided"]

    def row(truth: str, those: Sequence[Statement]) -> Result:
        return _result("bisect", truth, studies, [(each.weight, each.stated, each.right) for each in those])

    causes = [each for each in found if each.right and each.answer in PRIORS and each.answer != "several"]
    return [
        row("any answer", found),
        *(row(f"answer: {text}", [each for each in found if each.answer == name]) for name, text in ANSWERS.items()),
        *(
            row(f"stated: {low:.0%} to {high:.0%}", [each for each in found if low <= each.stated < high + (high == 1)])
            for low, high in BINS
        ),
        _result(
            "bisect: interval of the slowdown",
            "drawn from the priors, right causes",
            studies,
            [(each.weight, 0.95, each.covers) for each in causes],
        ),
    ]


@dataclass(frozen=True)
class Planted:
    """A fixed truth that bisect should find."""

    truth: str
    effect: Effect
    kind: str
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    then: Effect | None = None


@dataclass(frozen=True)
class Power:
    """Shares of right, wrong and undecided answers of some studies, and the median number of runs."""

    studies: int
    right: float
    wrong: float
    undecided: float
    runs: float


def find(planted: Planted, studies: int) -> Power:
    """Bisect a planted truth repeatedly."""
    right, wrong, runs = 0, 0, []
    for seed in range(studies):
        machine = Machine(planted.effect, seed, **planted.machine)
        found = bisect(machine, recorded_by(machine, 2, then=planted.then), 2, budget=60)
        named = found.best.explanation.kind if found.outcome == "changes" else found.outcome
        is_right = named == planted.kind and (named != "opposite" or found.best.guilty == (0,))
        right += is_right
        wrong += not is_right and named != "undecided"
        runs.append(machine.runs)
    return Power(studies, right / studies, wrong / studies, 1 - (right + wrong) / studies, float(np.median(runs)))


def _opposite(mixture: Mixture) -> float:
    return float(1.2 ** (0 in mixture) * 0.88 ** (1 in mixture) - 1)


_QUIET_MACHINE = {"drift": 0.0, "noise": 0.01}

_NOISY_MACHINE = {"drift": 0.0, "noise": 0.1}

PLANTED = (
    Planted("one of two changes, 5 %", one(0), "one"),
    Planted("opposite signs, +20 % and -12 %", _opposite, "opposite"),
    Planted("either alone is enough, 5 %", lambda mixture: SLOWDOWN * bool(mixture), "either"),
    Planted("nothing", nothing, "not reproducible", _QUIET_MACHINE, one(0)),
    Planted("nothing, 10 % of noise, 20 % recorded", nothing, "not reproducible", _NOISY_MACHINE, one(0, 0.2)),
    Planted("the machine, 5 %", nothing, "machine", {**_QUIET_MACHINE, "level": float(np.log1p(SLOWDOWN))}, one(0)),
    Planted(
        "the machine, 20 %, 10 % of noise",
        nothing,
        "machine",
        {**_NOISY_MACHINE, "level": float(np.log(1.2))},
        one(0, 0.2),
    ),
    Planted("the machine, half of what was recorded", nothing, "undecided", {**_QUIET_MACHINE, "level": 0.024}, one(0)),
)


ROWS = (
    Row("verdict: interval, 5 rounds", "normal noise", _verdict(normal)),
    Row("verdict: interval, 5 rounds", "heavy tails", _verdict(heavy)),
    Row("verdict: interval, 5 rounds", "delays in the step only", _verdict(delays)),
    Row("verdict: intervals of 4 steps, 5 rounds", "normal noise", _steps(normal)),
    Row("verdict: intervals of 4 steps, 5 rounds", "delays in the steps only", _steps(delays)),
    Row("verdict: interval, 15 rounds", "normal noise", _verdict(normal, 15)),
    Row("verdict: interval, 15 rounds", "heavy tails", _verdict(heavy, 15)),
    Row("verdict: interval, 15 rounds", "delays in the step only", _verdict(delays, 15)),
    Row("verdict: stopped early, at most 8 rounds", "normal noise", _sequential(normal, 8)),
    Row("verdict: stopped early, at most 8 rounds", "delays in the step only", _sequential(delays, 8)),
    Row("verdict: stopped early, at most 20 rounds", "normal noise", _sequential(normal)),
    Row("verdict: stopped early, at most 20 rounds", "heavy tails", _sequential(heavy)),
    Row("verdict: stopped early, at most 20 rounds", "delays in the step only", _sequential(delays)),
    Row("compare: difference and interval", "equal, normal noise", _compare(normal)),
    Row("compare: difference and interval", "equal, heavy tails", _compare(heavy)),
    Row("history: no false step", "normal noise", _no_step(normal)),
    Row("history: no false step", "heavy tails", _no_step(heavy)),
    Row("history: no false step", "nights that correlate by 0.3", _no_step(weak_neighbours)),
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
    Row("rank: none is behind", "4 equal points, normal noise", _rank(normal)),
    Row("rank: none is behind", "4 equal points, heavy tails", _rank(heavy)),
    Row("rank: none is behind", "4 equal points, delays", _rank(delays)),
    Row("rank: none is behind", "4 equal points, one value in ten is an outlier", _rank(outliers)),
    Row("rank: none is behind", "8 equal points, 20 rounds, normal noise", _rank(normal, 8, 20)),
    Row("rank: none is behind", "8 equal points, 20 rounds, heavy tails", _rank(heavy, 8, 20)),
)


def page(results: Sequence[Result], power: Sequence[Power]) -> str:
    """Return the page with the tables."""
    lines = [
        "# Calibration",
        "",
        "Stated confidence and how often the statement is true, in seeded simulations with adversarial truths.",
        "*Stating* is the number of studies that came to a statement; the others were undecided or found nothing.",
        "A row holds if the observed share is within two points of the stated one, in both directions.",
        "Of fewer than 1,000 statements, three standard errors are allowed for.",
        "`python -m tests.analysis.calibration` computes all rows again.",
        "",
        "| statement | truth | studies | stating | stated | observed | holds |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {each.what} | {each.truth} | {each.studies:,} | {each.stating:,} | {100 * each.stated:.1f} % | "
            f"{100 * each.right:.1f} % | {'yes' if each.holds else '**no**'} |"
            for each in results
        ),
        "",
        "The rows of the verdict are studies exactly at the target, in which every pass and every fail is wrong. They",
        "are right if the interval contains the target, at all looks if the study may stop early.",
        "",
        "The probabilities that bisect prints hold on average over its",
        "[priors](../how-to/find-the-change.md#how-far-to-trust-it). The truths of its rows are therefore drawn from",
        "these priors, which include effects of opposite sign, changes of which either is enough, effects that do not",
        "add up, and levels of the machine that were never recorded. As many studies are drawn of each kind, and",
        "weighted by its prior probability.",
        "",
        "## What bisect finds",
        "",
        "Shares of answers on fixed truths, with two changes and at most 60 runs. These are rates of detection, not of",
        "confidence: an easy truth is found more often than the stated probability.",
        "",
        "| planted | studies | right | wrong | undecided | runs, median |",
        "|---|---|---|---|---|---|",
        *(
            f"| {planted.truth} | {found.studies:,} | {100 * found.right:.1f} % | {100 * found.wrong:.1f} % | "
            f"{100 * found.undecided:.1f} % | {found.runs:.0f} |"
            for planted, found in zip(PLANTED, power, strict=True)
        ),
    ]
    return "\n".join(lines) + "\n"


def main(studies: int = 1000, drawn: int = 9000, planted: int = 1000) -> None:
    """Write the page.

    Args:
        studies: Number of studies of each row.
        drawn: Number of bisects of drawn truths.
        planted: Number of bisects of each planted truth.
    """
    with ProcessPoolExecutor() as pool:
        power = [pool.submit(_find, index, planted) for index in range(len(PLANTED))]
        rows = [pool.submit(_simulate, index, studies) for index in range(len(ROWS))]
        statements = list(pool.map(state, range(drawn), chunksize=50))
        results = [*(each.result() for each in rows), *reliability(statements)]
        PAGE.write_text(page(results, [each.result() for each in power]), encoding="utf-8")


def _simulate(index: int, studies: int) -> Result:
    """Run the studies of a row, whose functions cannot be sent to another process."""
    found = simulate(ROWS[index], studies)
    print(found, file=sys.stderr, flush=True)
    return found


def _find(index: int, studies: int) -> Power:
    return find(PLANTED[index], studies)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))

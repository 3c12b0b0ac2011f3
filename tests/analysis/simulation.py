"""Simulated studies: how often intervals cover the truth and verdicts are wrong, and how many rounds they take.

``python -m tests.analysis.simulation`` writes the tables of docs/explanation/verdict.md, with 1,000 studies per cell
(4,000 for wrong verdicts): about ten minutes on two cores. Arguments are another number of studies, and the names of
tables to write.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hidl_cli.analysis.ranking import compare
from hidl_cli.analysis.scaling import Observation, judge
from hidl_cli.analysis.statistics import RESAMPLES
from hidl_workloads.repetitions import LEAST, Bounds, _quantile, compared_enough, enough, interval, typical

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "verdict.md"
TARGET = 0.7
EITHER_SIDE = 0.025  # share of studies at the target that the compared rules may judge wrongly, to either side
# Efficiencies of ResNet-50 on 2 ranks, round by round, on a machine with 2 cores and other work beside it.
RECORDED = (
    *(0.991, 0.862, 0.855, 0.807, 0.838, 0.940, 0.549, 0.738, 0.787),
    *(0.839, 0.783, 0.719, 0.940, 0.839, 0.806, 0.615, 0.763),
)
Array = NDArray[Any]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Array]


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape)


def delays_in_both(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return delays, which only ever slow a run down, in the step and in its baseline."""
    return random.exponential(size=shape) - random.exponential(size=shape)


def delays_in_step(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return delays in the step alone, the most skewed case; the pseudomedian of a delay is 0.839."""
    return 0.8391735 - random.exponential(size=shape)


def delays_in_baseline(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return -delays_in_step(random, shape)


def heavy_tails(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_t(3, shape) / np.sqrt(3)


def outliers(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return normal noise in which one repetition in ten is slowed down or sped up by about five deviations."""
    return random.standard_normal(shape) * np.where(random.random(shape) < 0.1, 5, 1)


def drift(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return normal noise of a machine that slows down by two deviations; the step runs after its baseline."""
    rounds = shape[-1]
    return random.standard_normal(shape) - 2 / (2 * rounds)


def recorded(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return the recorded efficiencies in random order with repetition, in units of 15 %."""
    logs = np.log(RECORDED)
    return random.choice(logs - _pseudomedian_of_recorded(), shape) / 0.15


@cache
def _pseudomedian_of_recorded() -> float:
    return typical(np.log(RECORDED).tolist() * 10)


NOISES: dict[str, Noise] = {
    "normal": normal,
    "delays in step and baseline": delays_in_both,
    "delays in the step only": delays_in_step,
    "delays in the baseline only": delays_in_baseline,
    "heavy tails (t3)": heavy_tails,
    "one repetition in ten is an outlier": outliers,
    "the machine slows down": drift,
    "recorded rounds": recorded,
}


def coverage(noise: Noise, n: int, *, studies: int, seed: int = 1) -> float:
    """Return the share of studies of ``n`` repetitions whose interval holds the true typical value, 0."""
    samples = noise(np.random.default_rng(seed), (studies, n))
    found = [interval(row.tolist()) for row in samples]
    return float(np.mean([each is None or each.low <= 0 <= each.high for each in found]))


def percentile_coverage(noise: Noise, n: int, *, studies: int, seed: int = 1) -> float:
    """Return the share for the plain percentile bootstrap, which hidl does not use."""
    samples = noise(np.random.default_rng(seed), (studies, n))
    picked = np.random.default_rng(0).integers(0, n, (1000, n))
    chunks = [samples[i : i + 100] for i in range(0, len(samples), 100)]
    ends = [np.quantile(rows[:, picked].mean(axis=2), [0.025, 0.975], axis=1) for rows in chunks]
    low, high = np.concatenate(ends, axis=1)
    return float(np.mean((low <= 0) & (high >= 0)))


class Shares(NamedTuple):
    """Shares of verdicts, and the mean number of rounds."""

    passed: float
    failed: float
    inconclusive: float
    rounds: float


def verdicts(
    ratio: float,
    *,
    deviation: float,
    studies: int,
    rounds: int,
    noise: Noise = normal,
    steps: int = 1,
    sequential: bool = True,
    seed: int = 1,
) -> Shares:
    """Return the verdicts on studies whose steps all have ``ratio`` times the target efficiency.

    Args:
        ratio: True typical efficiency, relative to the target.
        deviation: Unit of ``noise`` in the logarithm of the efficiency of one round.
        studies: Number of simulated studies.
        rounds: Largest number of rounds.
        noise: Draws the noise of (steps, rounds).
        steps: Number of scaled steps.
        sequential: Stop a study as soon as it is settled.
        seed: Seed of the first study.
    """
    count: Counter[str | None] = Counter()
    taken = 0
    for study in range(studies):
        random = np.random.default_rng([seed, rounds, study])
        efficiencies = ratio * TARGET * np.exp(deviation * noise(random, (steps, rounds)))
        stop = _stop(efficiencies, rounds) if sequential else rounds
        taken += stop
        observations = [Observation(1, r, 1.0) for r in range(stop)] + [
            Observation(2**step, r, float(2**step * row[r]))
            for step, row in enumerate(efficiencies, 1)
            for r in range(stop)
        ]
        judged = judge(
            kind="weak",
            target=TARGET,
            metric="rate",
            unit="1/s",
            step_unit="ranks",
            observations=observations,
            rounds=rounds if sequential else None,
        )
        count[judged.verdict] += 1
    return Shares(*(count[name] / studies for name in ("pass", "fail", "inconclusive")), taken / studies)


def _stop(efficiencies: Array, rounds: int) -> int:
    """Return after how many rounds a study of these efficiencies (steps, rounds) stops."""
    return next(n for n in range(1, rounds + 1) if enough(efficiencies[:, :n].tolist(), TARGET, rounds=rounds).stop)


Rule = Callable[[Array, int], "Bounds | None"]


def _by_spending(spent: Callable[[float], float]) -> Rule:
    """Return the rule of Student's t whose looks err as much as ``spent`` rises (Lan and DeMets 1983)."""

    def bounds(logs: Array, rounds: int) -> Bounds | None:
        n = len(logs)
        before = 0.0 if n == LEAST else spent((n - 1) / rounds)
        tail = max(spent(n / rounds) - before, 1e-12)
        half = _quantile(tail, n - 1) * logs.std(ddof=1) / np.sqrt(n)
        return Bounds(logs.mean() - half, logs.mean() + half)

    return bounds


def half_widths(samples: Array, confidence: float) -> Array:
    """Return the half width of the smoothed, symmetric bootstrap-t interval of the mean of each row of ``samples``."""
    n = samples.shape[1]
    random = np.random.default_rng(0)
    picked = random.integers(0, n, size=(RESAMPLES, n))
    smoothing = random.standard_normal((RESAMPLES, n)) / np.sqrt(n)
    spread = samples.std(axis=1, ddof=1)
    standardised = np.sort((samples - samples.mean(axis=1, keepdims=True)) / spread[:, None], axis=1)
    resampled = standardised[:, picked] + smoothing  # (rows, resamples, n)
    t = np.abs(resampled.mean(axis=2)) * np.sqrt(n) / resampled.std(axis=2, ddof=1)
    widths: Array = np.quantile(t, confidence, axis=1) * spread / np.sqrt(n)
    return widths


def _pocock_looks(logs: Array, rounds: int) -> Bounds | None:
    """Return the bootstrap-t interval at seven looks with Pocock's level, the rule of hidl 0.1."""
    if len(logs) not in (3, 5, 8, 12, 18, 27, rounds) or not np.ptp(logs):
        return None
    half = float(half_widths(logs[None, :], 1 - 0.0130)[0])
    return Bounds(logs.mean() - half, logs.mean() + half)


def _confidence_sequence(logs: Array, rounds: int) -> Bounds | None:
    """Return the asymptotic confidence sequence of Waudby-Smith and others (2024, Ann. Statist. 52, 2613-2640)."""
    n = len(logs)
    rho = 0.59  # about the narrowest at 10 rounds
    half = logs.std(ddof=1) * np.sqrt(
        2 * (n * rho + 1) / (n**2 * rho) * np.log(np.sqrt(n * rho + 1) / (2 * EITHER_SIDE))
    )
    return Bounds(logs.mean() - half, logs.mean() + half)


_Z = NormalDist()
RULES: dict[str, Rule] = {
    "hidl's": lambda logs, rounds: interval(logs.tolist(), rounds=rounds),
    "bootstrap-t, 7 looks, Pocock": _pocock_looks,
    "Student's t, Pocock's spending": _by_spending(lambda t: EITHER_SIDE * float(np.log(1 + (np.e - 1) * t))),
    "Student's t, O'Brien and Fleming's spending": _by_spending(
        lambda t: 2 * (1 - _Z.cdf(_Z.inv_cdf(1 - EITHER_SIDE / 2) / float(np.sqrt(t))))
    ),
    "confidence sequence": _confidence_sequence,
}


def by_rule(rule: Rule, ratio: float, noise: Noise, *, studies: int, rounds: int = 40) -> Shares:
    """Return the verdicts of ``rule`` on studies of one step with noise of 15 %, looked at after every round."""
    count: Counter[str] = Counter()
    taken = 0
    for study in range(studies):
        logs = np.log(ratio) + 0.15 * noise(np.random.default_rng([2, study]), (rounds,))
        verdict = "inconclusive"
        for n in range(LEAST, rounds + 1):
            found = rule(logs[:n], rounds)
            verdict = "pass" if found and found.low >= 0 else "fail" if found and found.high < 0 else "inconclusive"
            if verdict != "inconclusive":
                break
        taken += n
        count[verdict] += 1
    return Shares(*(count[name] / studies for name in ("pass", "fail", "inconclusive")), taken / studies)


class Winners(NamedTuple):
    """Shares of comparisons with the right winner, with another winner and without one, and the mean rounds."""

    right: float
    wrong: float
    none: float
    rounds: float


def winners(
    gain: float,
    *,
    deviation: float,
    studies: int,
    noise: Noise = normal,
    rounds: int = 40,
    settings: int = 2,
    digits: int | None = None,
) -> Winners:
    """Return the winners of comparisons in which the first setting is ``gain`` better than the default.

    Args:
        gain: Of the first setting, relative to the default; the others equal the default.
        deviation: Unit of ``noise`` in the logarithm of one value.
        studies: Number of simulated comparisons.
        noise: Draws the noise of (points, rounds).
        rounds: Largest number of rounds; each comparison stops as soon as it is settled.
        settings: Number of settings beside the default.
        digits: Decimals of the values, which are about 0.35; None: all.
    """
    count: Counter[object] = Counter()
    taken = 0
    for study in range(studies):
        random = np.random.default_rng([3, rounds, study])
        rates = np.exp(deviation * noise(random, (settings + 1, rounds)))
        rates[1] *= 1 + gain
        if digits is not None:
            rates = np.round(rates * 0.35, digits)
        stop = next(
            n
            for n in range(1, rounds + 1)
            if compared_enough(rates[1:, :n].tolist(), rates[0, :n].tolist(), better="higher", rounds=rounds).stop
        )
        values = [({"mpi.A": str(i)}, row[:stop].tolist()) for i, row in enumerate(rates)]
        winner = compare("rate", "1/s", "higher", values, rounds=rounds).winner
        count[winner and winner.point["mpi.A"]] += 1
        taken += stop
    wrong = sum(count[str(i)] for i in range(2, settings + 1))
    return Winners(count["1"] / studies, wrong / studies, count[None] / studies, taken / studies)


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def _share(value: float) -> str:
    return f"{value:.3f}"


def _coverage_row(name: str, studies: int) -> list[str]:
    return [name, *(_share(coverage(NOISES[name], n, studies=studies)) for n in (3, 5, 8, 15))]


def _fixed_row(ratio: float, deviation: float, studies: int) -> list[str]:
    found = verdicts(ratio, deviation=deviation, rounds=5, sequential=False, studies=studies)
    return [f"{ratio:.2f}", f"{deviation:.0%}", *map(_share, found[:3])]


def _wrong_row(name: str, studies: int) -> list[str]:
    cells = [
        verdicts(1.0, deviation=0.15, noise=NOISES[name], rounds=rounds, studies=4 * studies)
        for rounds in (5, 10, 20, 40)
    ]
    return [name, *(f"{each.passed:.3f}, {each.failed:.3f}" for each in cells)]


def _steps_row(steps: int, studies: int) -> list[str]:
    fixed = verdicts(1.0, deviation=0.05, rounds=5, steps=steps, sequential=False, studies=studies)
    several = verdicts(1.0, deviation=0.05, rounds=20, steps=steps, studies=studies)
    return [str(steps), *(f"{each.passed:.3f}, {each.failed:.3f}" for each in (fixed, several))]


def _rounds_row(name: str, deviation: float, studies: int) -> list[str]:
    row = [f"{name}, {deviation:.0%}"]
    for ratio in (0.95, 1.05, 1.10, 1.15):
        found = verdicts(ratio, deviation=deviation, noise=NOISES[name], rounds=40, studies=studies)
        row.append(f"{found.failed if ratio < 1 else found.passed:.2f}, {found.rounds:.1f}")
    return row


def _rule_row(name: str, studies: int) -> list[str]:
    at = [by_rule(RULES[name], 1.0, noise, studies=studies) for noise in NOISES.values()]
    above = [by_rule(RULES[name], 1.15, NOISES[noise], studies=studies) for noise in ("normal", "heavy tails (t3)")]
    wrong = max(max(each.passed, each.failed) for each in at)
    return [name, _share(wrong), *(f"{each.passed:.2f}, {each.rounds:.1f}" for each in above)]


def _winners_row(name: str, deviation: float, studies: int) -> list[str]:
    found = {gain: winners(gain, deviation=deviation, noise=NOISES[name], studies=studies) for gain in (0.0, 0.03, 0.1)}
    none = f"{found[0.0].none:.3f}, {found[0.0].rounds:.1f}"
    return [f"{name}, {deviation:.0%}", none, *(f"{found[g].right:.3f}, {found[g].rounds:.1f}" for g in (0.03, 0.1))]


#: Heading cells, function of a row, and its arguments, by the name of the table in the page.
TABLES: dict[str, tuple[Sequence[str], Callable[..., list[str]], Sequence[tuple[Any, ...]]]] = {
    "coverage": (("noise", "n = 3", "n = 5", "n = 8", "n = 15"), _coverage_row, [(name,) for name in NOISES]),
    "fixed": (
        ("true efficiency / target", "noise", "pass", "fail", "inconclusive"),
        _fixed_row,
        [*product((0.9, 0.95, 1.0, 1.05, 1.1), (0.01, 0.02, 0.05))],
    ),
    "steps": (("steps at the target", "5 repetitions", "at most 20"), _steps_row, [(n,) for n in (1, 2, 4, 8)]),
    "wrong": (
        ("noise of 15 %", "at most 5", "at most 10", "at most 20", "at most 40"),
        _wrong_row,
        [(name,) for name in NOISES],
    ),
    "rounds": (
        ("noise", "0.95", "1.05", "1.10", "1.15"),
        _rounds_row,
        [*product(("normal", "delays in step and baseline", "heavy tails (t3)"), (0.05, 0.15))],
    ),
    "winners": (
        ("noise", "0 %: none, rounds", "3 %: right, rounds", "10 %: right, rounds"),
        _winners_row,
        [*product(("normal", "delays in step and baseline", "heavy tails (t3)", "recorded rounds"), (0.01, 0.02))],
    ),
    "rules": (
        ("rule", "largest share of wrong verdicts", "normal: pass, rounds", "heavy tails: pass, rounds"),
        _rule_row,
        [(name,) for name in RULES],
    ),
}


def rows(studies: int, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each of the tables and its Markdown."""
    with ProcessPoolExecutor() as pool:
        jobs = {
            name: [pool.submit(row, *arguments, studies) for arguments in of_rows]
            for name, (_, row, of_rows) in TABLES.items()
            if name in names
        }
        for name, of_table in jobs.items():
            heading = TABLES[name][0]
            cells = [heading, ["---"] * len(heading), *(job.result() for job in of_table)]
            yield name, "\n".join(f"| {' | '.join(line)} |" for line in cells)


def main(studies: int = 1000, *names: str) -> None:
    """Write the tables between their marks in the page."""
    page = PAGE.read_text(encoding="utf-8")
    marks = {name: f"<!-- simulated: {name} -->\n" for name in TABLES}
    if missing := [mark for mark in marks.values() if mark not in page]:
        raise SystemExit(f"{PAGE.name} lacks {', '.join(missing)}")
    for name, table in rows(studies, names or tuple(TABLES)):
        before, after = page.split(marks[name])
        page = f"{before}{marks[name]}{table}\n{after[after.index('<!-- end -->') :]}"
        print(f"{name}: {table.count(chr(10)) - 1} rows", flush=True)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])

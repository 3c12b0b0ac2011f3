"""Simulated studies: how often the interval holds the truth, and how often the verdict is wrong.

``PYTHONPATH=. python tests/analysis/simulation.py`` prints the tables of docs/explanation/verdict.md in a few minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidl_cli.analysis.scaling.judge import judge
from hidl_cli.analysis.scaling.study import Observation
from hidl_workloads.repetitions import enough, half_widths, looks

Array = NDArray[Any]
Noise = Callable[[np.random.Generator, tuple[int, int]], Array]
ROWS_AT_ONCE = 100


def normal(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    return random.standard_normal(shape)


def delays_in_both(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Delays, which only ever slow a run down, in the step and in its baseline."""
    return random.exponential(size=shape) - random.exponential(size=shape)


def delays_in_step(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    """The same in the step alone: the most skewed case."""
    return 1 - random.exponential(size=shape)


def outliers(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Normal noise, and one repetition in ten is slowed down by five times the usual deviation or so."""
    slow = 5 * np.abs(random.standard_normal(shape)) * (random.random(shape) < 0.1)
    return random.standard_normal(shape) - slow + 0.5 * np.sqrt(2 / np.pi)


NOISES: dict[str, Noise] = {
    "normal": normal,
    "delays in step and baseline": delays_in_both,
    "delays in the step only": delays_in_step,
    "one repetition in ten is an outlier": outliers,
}


def coverage(noise: Noise, n: int, *, studies: int, seed: int = 1) -> float:
    """Share of studies of ``n`` repetitions whose interval holds the true mean, which is 0."""
    samples = noise(np.random.default_rng(seed), (studies, n))
    widths = np.concatenate([half_widths(rows, 0.95) for rows in _chunks(samples)])
    return float(np.mean(np.abs(samples.mean(axis=1)) <= widths))


def percentile_coverage(noise: Noise, n: int, *, studies: int, seed: int = 1) -> float:
    """The same for the plain percentile bootstrap, which hidl does not use."""
    samples = noise(np.random.default_rng(seed), (studies, n))
    picked = np.random.default_rng(0).integers(0, n, (1000, n))
    ends = [np.quantile(rows[:, picked].mean(axis=2), [0.025, 0.975], axis=1) for rows in _chunks(samples)]
    low, high = np.concatenate(ends, axis=1)
    return float(np.mean((low <= 0) & (high >= 0)))


def _chunks(samples: Array) -> list[Array]:
    return [samples[i : i + ROWS_AT_ONCE] for i in range(0, len(samples), ROWS_AT_ONCE)]


def verdicts(
    efficiency: float,
    *,
    noise: float,
    studies: int,
    target: float = 0.8,
    n: int = 5,
    steps: int = 1,
    sequential: bool = False,
    seed: int = 1,
) -> dict[str, float]:
    """Share of each verdict over weak-scaling studies whose scaled steps all have the true ``efficiency``.

    ``noise`` is the standard deviation of the logarithm of one measured throughput. ``sequential``: a study is looked
    at as it goes on, and stopped as soon as it is settled, after ``n`` rounds at the latest; ``rounds`` is then how
    many it took on average.
    """
    random = np.random.default_rng(seed)
    sizes = 2 ** np.arange(steps + 1)
    truth = 100.0 * sizes * np.where(sizes == 1, 1, efficiency)
    count: Counter[str | None] = Counter()
    taken = 0
    for _ in range(studies):
        measured = truth * np.exp(noise * random.standard_normal((n, steps + 1)))
        rounds = _stopped(measured / sizes, target) if sequential else n
        taken += rounds
        observations = [
            Observation(int(size), round_, float(value))
            for round_, row in enumerate(measured[:rounds], 1)
            for size, value in zip(sizes, row, strict=True)
        ]
        study = judge(
            kind="weak",
            target=target,
            metric="rate",
            unit="1/s",
            step_unit="ranks",
            observations=observations,
            looks=len(looks(n)) if sequential else 1,
        )
        count[study.verdict] += 1
    shares = {verdict: count[verdict] / studies for verdict in ("pass", "fail", "inconclusive")}
    return {**shares, "rounds": taken / studies} if sequential else shares


def _stopped(per_rank: Array, target: float) -> int:
    """After how many rounds a study stops whose throughputs these are, by round and step."""
    efficiencies = per_rank[:, 1:] / per_rank[:, :1]
    most = len(efficiencies)
    return next(n for n in looks(most) if enough(efficiencies[:n].T.tolist(), target, rounds=most).stop)


def main() -> None:
    ns = (3, 5, 8)
    print("| noise | " + " | ".join(f"n = {n}" for n in ns) + " |")
    print("|---" * (1 + len(ns)) + "|")
    for name, noise in NOISES.items():
        print(f"| {name} | " + " | ".join(f"{coverage(noise, n, studies=5000):.3f}" for n in ns) + " |")
    percentile = " | ".join(f"{percentile_coverage(normal, n, studies=5000):.3f}" for n in ns)
    print(f"| (percentile bootstrap, normal) | {percentile} |")
    print()
    print("| true efficiency / target | noise | pass | fail | inconclusive |")
    print("|---|---|---|---|---|")
    for ratio in (0.9, 0.95, 1.0, 1.05, 1.1):
        for deviation in (0.01, 0.02, 0.05):
            shares = verdicts(0.8 * ratio, noise=deviation, studies=2000)
            print(f"| {ratio:.2f} | {deviation:.0%} | " + " | ".join(f"{s:.3f}" for s in shares.values()) + " |")
    print()
    print("| steps at the target | repetitions | pass | fail | inconclusive |")
    print("|---|---|---|---|---|")
    for steps, n in ((1, 3), (1, 5), (1, 10), (2, 5), (4, 5), (8, 5)):
        shares = verdicts(0.8, noise=0.02, steps=steps, n=n, studies=2000)
        print(f"| {steps} | {n} | " + " | ".join(f"{s:.3f}" for s in shares.values()) + " |")
    print()
    print("| true efficiency / target | noise | at most | pass | fail | inconclusive | rounds |")
    print("|---|---|---|---|---|---|---|")
    for ratio, deviation, most in (
        *((1.0, 0.02, most) for most in (5, 12, 40)),
        *((ratio, deviation, 20) for deviation in (0.02, 0.05) for ratio in (0.9, 0.95, 0.98, 1.02, 1.05, 1.1)),
    ):
        shares = verdicts(0.8 * ratio, noise=deviation, n=most, sequential=True, studies=2000)
        rounds = f"{shares.pop('rounds'):.1f}"
        print(f"| {ratio:.2f} | {deviation:.0%} | {most} | " + " | ".join(f"{s:.3f}" for s in shares.values()), end="")
        print(f" | {rounds} |", flush=True)


if __name__ == "__main__":
    main()

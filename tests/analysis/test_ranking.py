"""Which point of a matrix is the best, and what the repetitions do not tell apart."""

from __future__ import annotations

import random
import re

import pytest

from hidl_cli.analysis.ranking import compare, rank
from tests.analysis.simulation import NOISES, winners

QUICK, SLOW = {"backend": "a"}, {"backend": "b"}


def noisy(mean: float, seed: int, spread: float = 0.01, n: int = 5) -> list[float]:
    source = random.Random(seed)
    return [mean * source.lognormvariate(0, spread) for _ in range(n)]


def test_the_best_is_the_one_with_the_highest_rate() -> None:
    ranking = rank("rate", "items/s", "higher", [(SLOW, noisy(80, 1)), (QUICK, noisy(100, 2))])
    assert (ranking.best.point, ranking.entries[0].is_behind) == (QUICK, True)


def test_a_time_is_best_where_it_is_least_and_relative_is_how_good_it_is() -> None:
    ranking = rank("time", "s", "lower", [(SLOW, [2.0, 2.0, 2.0]), (QUICK, [1.0, 1.0, 1.0])])
    assert [entry.relative for entry in ranking.entries] == [0.5, 1.0]


def test_what_slows_a_whole_round_falls_out() -> None:
    rounds = [1.0, 0.5, 0.9, 0.3, 1.0]
    quick = [100 * r * e for r, e in zip(rounds, noisy(1, 1), strict=True)]
    slow = [90 * r * e for r, e in zip(rounds, noisy(1, 2), strict=True)]
    assert rank("rate", "items/s", "higher", [(QUICK, quick), (SLOW, slow)]).entries[1].is_behind


def test_two_that_are_alike_are_not_distinguished() -> None:
    ranking = rank("rate", "items/s", "higher", [(QUICK, noisy(100, 1, 0.05)), (SLOW, noisy(100, 2, 0.05))])
    assert "but may be equal to" in ranking.reason


def test_alike_points_are_rarely_distinguished_whatever_their_number() -> None:
    """Of 300 matrices of four equal points, hardly more than 5 % name one as behind."""
    wrong = 0
    for seed in range(300):
        values = [({"point": k}, noisy(100, 1000 * seed + k, 0.03)) for k in range(4)]
        wrong += any(entry.is_behind for entry in rank("rate", "items/s", "higher", values).entries)
    assert wrong / 300 < 0.10


def test_points_with_different_numbers_of_values_are_refused() -> None:
    with pytest.raises(ValueError, match="same number of values"):
        rank("rate", "items/s", "higher", [(QUICK, [1.0, 2.0]), (SLOW, [1.0])])


A, B = {"mpi.A": "default"}, {"mpi.A": "b"}


@pytest.mark.parametrize(
    ("better", "factor", "reason"),
    [
        ("higher", 1.1, r"mpi\.A=b: x 1[01]\.\d% higher than with the default"),
        ("lower", 0.9, r"mpi\.A=b: x (9|10)\.\d% lower than with the default"),
        ("higher", 0.9, r"no setting is better than the default in x; worse: mpi\.A=b \(-(9|10)\.\d%\)"),
        ("lower", 1.1, r"no setting is better than the default in x; worse: mpi\.A=b \(\+(9|10)\.\d%\)"),
        ("higher", 1.0, r"no difference found in x \(less than \d\.\d%\)"),
    ],
)
def test_settings_are_compared_with_the_default(better: str, factor: float, reason: str) -> None:
    found = compare("x", "1", better, [(A, noisy(1, 1)), (B, noisy(factor, 2))])
    assert re.match(reason, found.reason), found.reason
    assert (found.winner is not None) == ("than with" in found.reason)


def test_a_comparison_without_noise_or_with_too_much_says_so() -> None:
    few = compare("x", "1", "higher", [(A, [1.0, 1.0]), (B, [2.0, 2.0])])
    exact = compare("x", "1", "lower", [(A, [0.30, 0.30, 0.30]), (B, [0.25, 0.25, 0.25])])
    assert exact.reason == "mpi.A=b: x 16.7% lower than with the default (13.5% to 19.7%)"
    wild = compare("x", "1", "higher", [(A, [1.0, 9.0, 2.0]), (B, [5.0, 1.0, 7.0])])
    assert "requires 3 repetitions" in few.reason
    assert "exclude a factor of 2" in wild.reason


@pytest.mark.parametrize("name", sorted(NOISES))
def test_a_setting_without_effect_rarely_wins(name: str) -> None:
    found = winners(0.0, deviation=0.02, noise=NOISES[name], studies=200, rounds=15)
    assert 1 - found.none <= 0.05


@pytest.mark.parametrize(("times", "rounds"), [((0.146, 0.154), 5), ((0.146, 0.154), 20), ((1.03, 0.735), 20)])
def test_few_digits_widen_the_intervals(times: tuple[float, float], rounds: int) -> None:
    wrong = stated = 0
    for seed in range(200):
        values = [
            ({"point": k}, [round(value, 1) for value in noisy(true, 1000 * seed + k, 0.02, rounds)])
            for k, true in enumerate(times)
        ]
        ranking = rank("time", "s", "lower", values)
        best = times[ranking.best.point["point"]]
        for entry in ranking.entries:
            if entry.interval is not None:
                stated += 1
                wrong += not entry.interval.low <= best / times[entry.point["point"]] <= entry.interval.high
    assert stated > 100
    assert wrong / stated <= 0.05


@pytest.mark.parametrize("rounds", [3, 5])
def test_few_digits_make_no_winners(rounds: int) -> None:
    found = winners(0.0, deviation=0.02, studies=300, rounds=rounds, settings=7, digits=2)
    assert 1 - found.none <= 0.03


def test_planted_gains_are_found() -> None:
    small, large = (winners(gain, deviation=0.01, studies=100) for gain in (0.03, 0.1))
    assert min(small.right, large.right) >= 0.95
    assert large.rounds < small.rounds

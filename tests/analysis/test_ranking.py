"""Which point of a matrix is the best, and what the repetitions do not tell apart."""

from __future__ import annotations

import random

import pytest

from hidl_cli.analysis.ranking import rank

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
    assert "within the noise of" in ranking.reason


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

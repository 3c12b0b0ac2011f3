from __future__ import annotations

from itertools import combinations
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hidl_cli.analysis.changes import compare_ranks, describe_effect, holm, least_p

few = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=5)


def enumerated(a: list[float], b: list[float]) -> float:
    """The two-sided p-value from all ways to choose which values are A's."""
    values = [*a, *b]

    def above(chosen: tuple[int, ...]) -> float:
        others = [i for i in range(len(values)) if i not in chosen]
        return sum((values[i] > values[j]) + 0.5 * (values[i] == values[j]) for i in chosen for j in others)

    observed = above(tuple(range(len(a))))
    every = [above(chosen) for chosen in combinations(range(len(values)), len(a))]
    as_low, as_high = sum(u <= observed for u in every), sum(u >= observed for u in every)
    return min(1.0, 2 * min(as_low, as_high) / len(every))


@given(few, few)
@settings(max_examples=100)
def test_the_p_value_is_that_of_all_permutations_ties_included(a: list[float], b: list[float]) -> None:
    assert compare_ranks(a, b).p == pytest.approx(enumerated(a, b))


@pytest.mark.parametrize(("n", "p"), [(3, 0.1), (4, 2 / 70), (5, 2 / 252)])
def test_samples_that_do_not_overlap_have_the_least_p_there_is(n: int, p: float) -> None:
    found = compare_ranks(list(range(n)), list(range(10, 10 + n)))
    assert found.p == pytest.approx(p) == pytest.approx(least_p(n, n))
    assert found.delta == 1


def test_counted_and_normal_p_values_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    a, b = random.normal(size=30).tolist(), random.normal(0.6, size=30).tolist()
    counted = compare_ranks(a, b)
    monkeypatch.setattr("hidl_cli.analysis.changes.EXACT_UP_TO", 0)
    assert compare_ranks(a, b).p == pytest.approx(counted.p, rel=0.05)


@given(st.lists(st.floats(-9, 9), min_size=4, max_size=8), st.lists(st.floats(-9, 9), min_size=4, max_size=8))
@settings(max_examples=60)
def test_to_swap_the_sides_turns_the_signs(a: list[float], b: list[float]) -> None:
    there, back = compare_ranks(a, b), compare_ranks(b, a)
    assert (there.p, there.delta, there.shift) == pytest.approx((back.p, -back.delta, -back.shift), abs=1e-12)


def test_the_shift_is_the_median_of_all_differences() -> None:
    assert compare_ranks([1.0, 2.0, 4.0], [3.0, 9.0]).shift == median([2, 1, -1, 8, 7, 5])


@pytest.mark.parametrize(("m", "n"), [(4, 4), (5, 8), (40, 40)])
def test_the_interval_of_the_shift_holds_it_in_95_of_100(m: int, n: int) -> None:
    random = np.random.default_rng(4)
    held = 0
    for _ in range(500):
        found = compare_ranks(random.exponential(size=m).tolist(), (random.exponential(size=n) + 1).tolist())
        assert found.interval is not None
        held += found.interval.low <= 1 <= found.interval.high
    assert 0.925 <= held / 500 <= 0.995


def test_three_against_three_give_no_interval() -> None:
    assert compare_ranks([1.0, 2.0, 3.0], [7.0, 8.0, 9.0]).interval is None


@pytest.mark.parametrize(("a", "b"), [([], [1.0]), ([1.0], [])])
def test_nothing_cannot_be_compared(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value"):
        compare_ranks(a, b)


def test_holm_multiplies_the_least_p_by_the_number_of_tests_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_a_p_value(ps: list[float]) -> None:
    assert all(p <= adjusted <= 1 for p, adjusted in zip(ps, holm(ps), strict=True))


@pytest.mark.parametrize(("delta", "word"), [(0.1, "negligible"), (-0.2, "small"), (0.4, "medium"), (-1, "large")])
def test_effects_have_names(delta: float, word: str) -> None:
    assert describe_effect(delta) == word

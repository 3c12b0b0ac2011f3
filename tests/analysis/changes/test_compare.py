from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hidl_cli.analysis.changes import Comparison, compare
from hidl_cli.analysis.samples import Sample
from tests.analysis.sampled import nights, one_run, sample

STEADY = [100.0, 101.0, 99.5, 100.4, 99.8]


def only(comparison: Comparison) -> tuple[str, str]:
    (difference,) = comparison.differences
    return difference.outcome, difference.reason


class TestOutcome:
    @pytest.mark.parametrize(
        ("factor", "better", "outcome"),
        [
            (0.9, "higher", "worse"),
            (0.9, "lower", "better"),
            (1.1, "higher", "better"),
            (1.1, "lower", "worse"),
            (1.1, None, "different"),
            (1.001, "higher", "same"),
            (0.99, "higher", "same"),
        ],
    )
    def test_of_a_metric(self, factor: float, better: str | None, outcome: str) -> None:
        a = one_run(STEADY, better=better)
        b = one_run([factor * value for value in STEADY], night=1, better=better)
        assert only(compare(a, b))[0] == outcome

    def test_beyond_a_tolerance_alone_is_a_worsening(self) -> None:
        a, b = one_run(STEADY), one_run([0.95 * value for value in STEADY], night=1)
        assert compare(a, b, tolerance=0.03).outcome == "worse"
        assert compare(a, b, tolerance=0.08).outcome == "same"

    def test_too_few_values_can_show_nothing_and_it_is_said_how_many_can(self) -> None:
        comparison = compare(one_run(STEADY[:3]), one_run([50.0, 51.0, 49.0], night=1))
        assert comparison.outcome == "inconclusive"
        assert (
            only(comparison)[1] == "3 and 3 repetitions are too few to show a difference; use at least 4 on each side"
        )

    def test_noise_that_hides_a_worsening_is_inconclusive(self) -> None:
        a, b = [100.0, 80.0, 120.0, 95.0, 110.0], [98.0, 85.0, 118.0, 90.0, 108.0]
        outcome, reason = only(compare(one_run(a), one_run(b, night=1)))
        assert outcome == "inconclusive"
        assert reason.startswith("too noisy: anything from -")

    @pytest.mark.parametrize(
        ("count", "factor", "outcome"),
        [(5, 9.9, "different"), (5, 1.0, "same"), (3, 9.9, "inconclusive")],
    )
    def test_of_a_metric_without_a_direction_counts(self, count: int, factor: float, outcome: str) -> None:
        a, b = ([level] * count for level in (10.0, 10.0 * factor))
        comparison = compare(one_run(a, better=None), one_run(b, night=1, better=None))
        assert (comparison.outcome, only(comparison)[0]) == (outcome, outcome)

    @pytest.mark.parametrize(
        ("directed", "undirected", "outcome"),
        [
            ("noisy", "other", "different"),
            ("worse", "other", "worse"),
            ("worse", "noisy", "worse"),
            ("steady", "noisy", "inconclusive"),
            ("better", "steady", "same"),
        ],
    )
    def test_of_two_metrics_is_the_graver(self, directed: str, undirected: str, outcome: str) -> None:
        values = {
            "steady": STEADY,
            "noisy": [98.0, 60.0, 140.0, 90.0, 120.0],
            "worse": [0.8 * value for value in STEADY],
            "better": [1.2 * value for value in STEADY],
            "other": [2 * value for value in STEADY],
        }
        a = one_run(STEADY) + one_run(STEADY, metric="score", better=None)
        b = one_run(values[directed], night=1)
        b += one_run(values[undirected], night=1, metric="score", better=None)
        assert compare(a, b).outcome == outcome

    def test_of_many_metrics_is_the_gravest(self) -> None:
        a = one_run(STEADY) + one_run(STEADY, metric="other")
        b = one_run([0.8 * value for value in STEADY], night=1) + one_run(STEADY, night=1, metric="other")
        assert compare(a, b).outcome == "worse"


class TestObservations:
    def test_of_one_run_against_one_are_their_repetitions(self) -> None:
        (difference,) = compare(one_run(STEADY), one_run(STEADY, night=1)).differences
        assert (difference.independent, difference.count_a) == ("repetitions", 5)

    def test_of_several_runs_are_the_runs(self) -> None:
        a = one_run(STEADY) + one_run(STEADY, night=1)
        (difference,) = compare(a, one_run(STEADY, night=2)).differences
        assert (difference.independent, difference.count_a, difference.count_b) == ("runs", 2, 1)

    def test_of_two_nights_that_differ_as_nights_do_find_nothing(self) -> None:
        # Repetitions within a night are alike; taken for independent, they would differ significantly.
        def night(level: float, number: int) -> list:
            return one_run([level + 0.01 * i for i in range(5)], night=number)

        a = [s for number, level in enumerate([100, 110, 95, 104]) for s in night(level, number)]
        b = [s for number, level in enumerate([99, 106, 97, 109], 4) for s in night(level, number)]
        (difference,) = compare(a, b).differences
        assert difference.p > 0.5

    def test_of_ranks_alone_count_as_their_median(self) -> None:
        ranks = [sample(value, rank=rank) for rank, value in enumerate([1.0, 2.0, 9.0])]
        (difference,) = compare(ranks, ranks).differences
        assert difference.median_a == 2

    def test_of_a_step_count_more_than_those_of_its_ranks(self) -> None:
        both = [sample(5.0), sample(1.0, rank=0), sample(2.0, rank=1)]
        (difference,) = compare(both, both).differences
        assert difference.median_a == 5


class TestMeasures:
    def test_of_another_size_are_not_compared(self) -> None:
        comparison = compare(one_run(STEADY) + one_run(STEADY, ranks=4, series="a2"), one_run(STEADY, night=1))
        assert [measure.ranks for measure in comparison.only_in_a] == [4]

    def test_of_two_series_are_compared_where_none_is_shared(self) -> None:
        comparison = compare(one_run(STEADY), one_run(STEADY, night=1, series="b7", mpi="openmpi 5"))
        assert len(comparison.differences) == 1

    def test_in_another_unit_are_converted(self) -> None:
        a = one_run([1.5, 1.51, 1.49, 1.5, 1.52], metric="t", unit="s", better="lower")
        b = one_run([1500.0, 1510.0, 1490.0, 1500.0, 1520.0], night=1, metric="t", unit="ms", better="lower")
        (difference,) = compare(a, b).differences
        assert (difference.outcome, difference.shift) == ("same", pytest.approx(0))
        assert (difference.unit, difference.median_a, difference.median_b) == ("ms", 1500, 1500)

    def test_in_units_of_different_things_are_refused(self) -> None:
        a, b = one_run(STEADY, unit="s"), one_run(STEADY, night=1, unit="B")
        with pytest.raises(ValueError, match="rate is in s in A and in B in B"):
            compare(a, b)
        both = [one_run(STEADY, night=night, metric="other") for night in (0, 1)]
        comparison = compare(a + both[0], b + both[1])
        assert [each.measure.metric for each in comparison.differences] == ["other"]
        assert [[measure.unit for measure in side] for side in (comparison.only_in_a, comparison.only_in_b)] == [
            ["s"],
            ["B"],
        ]

    @pytest.mark.parametrize(("before", "now"), [("", "B was"), ("disturbed-", "A and B were")])
    def test_beside_another_run_decide_nothing(self, before: str, now: str) -> None:
        a = one_run(STEADY, series=f"{before}a1")
        b = one_run([0.5 * value for value in STEADY], night=1, series="disturbed-a1")
        comparison = compare(a, b)
        assert (comparison.outcome, *only(comparison)) == (
            "inconclusive",
            "inconclusive",
            f"{now} measured while another run used the same cores",
        )

    def test_beside_another_run_do_not_count_if_there_are_others(self) -> None:
        a, b = one_run(STEADY), one_run([0.8 * value for value in STEADY], night=1)
        comparison = compare(a, b + one_run([0.1], night=1, series="disturbed-a1"))
        assert (comparison.differences, comparison.only_in_b) == (compare(a, b).differences, ())

    def test_without_one_in_common_are_refused(self) -> None:
        with pytest.raises(ValueError, match="no metric of the same workload and size in common"):
            compare(one_run(STEADY), one_run(STEADY, workload="other", series="z"))

    def test_of_a_sweep_are_its_points(self) -> None:
        def side(series: str, night: int, factors: dict[int, float]) -> list[Sample]:
            return [
                each
                for batch, factor in factors.items()
                for each in one_run(
                    [factor * value for value in STEADY],
                    night=night,
                    series=f"{series}{batch}",
                    point={"batch": batch},
                    parameters={"batch": batch},
                )
            ]

        a, b = side("a", 0, {16: 1, 32: 1}), side("b", 1, {16: 2, 32: 0.5})
        found = {each.measure.point: each.outcome for each in compare(a, b).differences}
        assert found == {"batch=16": "better", "batch=32": "worse"}
        alone = one_run(STEADY, night=1, series="c", parameters={"batch": 32})
        assert [each.measure.point for each in compare(a, alone).differences] == ["batch=32"]
        other = one_run(STEADY, night=1, series="c", parameters={"lr": 1})
        assert len(compare(one_run(STEADY, parameters={"lr": 2}), other).differences) == 1

    def test_of_a_sweep_that_ran_twice_are_named_by_their_points(self) -> None:
        def side(night: int, factors: dict[int, float]) -> list[Sample]:
            return [
                each
                for batch, factor in factors.items()
                for each in one_run(
                    [factor * value for value in STEADY],
                    night=night,
                    series=f"s{batch}",
                    point={"batch": batch},
                    parameters={"batch": batch},
                )
            ]

        comparison = compare(side(0, {16: 1, 32: 1, 64: 1}), side(1, {16: 2, 32: 0.5, 128: 1}))
        found = {each.measure.point: each.outcome for each in comparison.differences}
        assert found == {"batch=16": "better", "batch=32": "worse"}
        assert [measure.point for measure in comparison.only_in_a] == ["batch=64"]
        assert [measure.point for measure in comparison.only_in_b] == ["batch=128"]

    def test_of_copies_are_those_of_each_host_that_both_used(self) -> None:
        def side(night: int, factors: dict[str, float]) -> list[Sample]:
            return [
                each
                for host, factor in factors.items()
                for each in one_run([factor * value for value in STEADY], night=night, hosts=(host,))
            ]

        comparison = compare(side(0, {"n1": 1, "n2": 1, "n3": 1}), side(1, {"n1": 1, "n2": 1, "n3": 0.5}))
        assert {each.measure.copy: each.outcome for each in comparison.differences} == {
            "n1": "same",
            "n2": "same",
            "n3": "worse",
        }
        comparison = compare(side(0, {"n1": 1, "n2": 1}), side(1, {"n8": 1, "n9": 1}))
        assert [each.measure.copy for each in comparison.differences] == ["all"]

    @pytest.mark.parametrize(
        ("before", "after", "shift", "outcome"),
        [
            (72.0, 0.0, -1.0, "worse"),
            (0.0, 72.0, 1.0, "better"),
            (0.0, 0.0, 0.0, "same"),
            (-1.0, 1.0, 2.0, "better"),
            (1.0, float("1e-300"), -1.0, "worse"),
        ],
    )
    def test_that_are_zero_or_less_are_compared_by_their_differences(
        self, before: float, after: float, shift: float, outcome: str
    ) -> None:
        (difference,) = compare(one_run([before] * 5), one_run([after] * 5, night=1)).differences
        assert (difference.shift, difference.outcome) == (pytest.approx(shift), outcome)

    @example([0.0, 0.0, -350238.0], [0.0, 350238.0, 1.94826239399e-303])
    @given(
        a=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12),
        b=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12),
    )
    def test_never_leave_a_comparison_in_silence(self, a: list[float], b: list[float]) -> None:
        (difference,) = compare(one_run(a), one_run(b, night=1)).differences
        assert math.isfinite(difference.shift)
        if difference.outcome == "same":
            assert difference.interval is not None
            assert difference.interval.low >= -0.03


class TestManyMetrics:
    def test_that_do_not_differ_are_called_different_in_one_comparison_of_twenty_at_most(self) -> None:
        random = np.random.default_rng(7)
        wrong = 0
        for _ in range(300):
            values = 100 * np.exp(0.05 * random.standard_normal((2, 10, 8)))
            a, b = (
                [s for m in range(10) for s in one_run(side[m].tolist(), night=n, metric=f"m{m}")]
                for n, side in enumerate(values)
            )
            wrong += any(d.outcome in ("worse", "better") for d in compare(a, b, tolerance=0).differences)
        assert wrong / 300 <= 0.05

    def test_of_which_one_is_ten_percent_worse_are_reported_so(self) -> None:
        random = np.random.default_rng(8)
        values = 100 * np.exp(0.02 * random.standard_normal((2, 5, 10)))
        values[1, 3] *= 0.9
        a, b = (
            [s for m in range(5) for s in nights(side[m].tolist(), first=20 * n, metric=f"m{m}")]
            for n, side in enumerate(values)
        )
        assert [d.measure.metric for d in compare(a, b).differences if d.outcome == "worse"] == ["m3"]

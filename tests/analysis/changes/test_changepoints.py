from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hidl_cli.analysis.changes import LEAST_RUNS, Circumstance, MetricHistory, find_changes, histories
from hidl_cli.analysis.samples import Sample
from tests.analysis.changes.simulated_nights import YEARS, Year, alarms, found_in_time, steps_in_the_end
from tests.analysis.sampled import nights, one_run
from tests.tiers import deep


def noisy(n: int, *, step: int | None = None, factor: float = 0.9, seed: int = 1) -> list[float]:
    values = 100 * np.exp(0.02 * np.random.default_rng(seed).standard_normal(n))
    if step is not None:
        values[step:] *= factor
    return values.tolist()


def history(samples: list[Sample]) -> MetricHistory:
    (found,) = histories(samples)
    return found


def test_a_metric_whose_unit_changed_has_one_history() -> None:
    seconds, milliseconds = nights([1.5] * 3, unit="s"), nights([1500.0] * 3, first=3, unit="ms")
    found = history([*seconds, *milliseconds])
    assert (found.unit, found.values) == ("ms", (1500.0,) * 6)
    assert len(histories([*seconds, *nights([1500.0], first=3, unit="B")])) == 2


class TestSteps:
    @pytest.mark.parametrize("factor", [0.9, 1.1, 0.5])
    def test_are_found_where_they_are(self, factor: float) -> None:
        (found,) = find_changes(noisy(100, step=60, factor=factor))
        assert abs(found - 60) <= 1

    def test_there_and_back_are_two(self) -> None:
        values = noisy(120)
        values[40:80] = [0.9 * value for value in values[40:80]]
        assert find_changes(values) == pytest.approx([40, 80], abs=2)

    @pytest.mark.parametrize("bad", [1, 2])
    def test_are_not_one_or_two_bad_nights(self, bad: int) -> None:
        values = noisy(60)
        values[30 : 30 + bad] = [60.0] * bad
        assert find_changes(values) == []

    def test_are_not_looked_for_in_too_short_a_history(self) -> None:
        assert find_changes(noisy(LEAST_RUNS - 1, step=8, factor=0.5)) == []

    @pytest.mark.parametrize("value", [0.0, -1.0])
    def test_are_found_though_one_night_has_no_logarithm(self, value: float) -> None:
        assert find_changes([*noisy(60, step=30, factor=0.5), value]) == [30]

    def test_are_not_looked_for_where_a_value_is_no_number(self) -> None:
        assert find_changes([*noisy(60, step=30, factor=0.5), float("nan")]) == []

    @pytest.mark.parametrize(
        ("before", "after"),
        [(1.25, 2.5), (72.0, 0.0), (0.0, 5.0), (3, 6)],
        ids=["OMB's two decimals", "to 0", "from 0", "counts"],
    )
    def test_between_nights_that_are_all_alike_are_found(self, before: float, after: float) -> None:
        assert find_changes([before] * 20 + [after] * 20) == [20]

    def test_of_one_digit_are_rounding(self) -> None:
        assert find_changes([1.25] * 20 + [1.26] * 20) == []

    @pytest.mark.parametrize("noise", [0, 0.1, 0.3, 0.5, 1])
    def test_are_not_made_by_rounding(self, noise: float) -> None:
        random = np.random.default_rng(3)
        years = [
            np.round(1.25 + 0.01 * random.random() + 0.01 * noise * random.standard_normal(100), 2) for _ in range(100)
        ]
        assert sum(bool(find_changes(year.tolist())) for year in years) <= 6

    def test_of_values_that_never_differ_are_none(self) -> None:
        assert find_changes([100.0] * 50) == []

    @pytest.mark.parametrize("change", [lambda v: 1000 * v, lambda v: 1 / v], ids=["another unit", "times"])
    def test_depend_on_ratios_alone(self, change: Callable[[float], float]) -> None:
        values = noisy(100, step=60)
        assert find_changes([change(value) for value in values]) == find_changes(values)


@pytest.mark.real
class TestSimulatedYears:
    """A 5 % step in 2 % of noise; every night is judged with what was known then."""

    @pytest.mark.deep
    @pytest.mark.parametrize(
        ("name", "years", "most"),
        [("nothing else", 8, 1.0), deep("nothing else", 20, 1.0), deep("20 % of nights are missing", 10, 1.0)],
    )
    def test_without_a_step_raise_one_false_alarm_at_most(self, name: str, years: int, most: float) -> None:
        random = np.random.default_rng(11)
        assert np.mean([alarms(YEARS[name], random) for _ in range(years)]) <= most

    # They raise less than one a year too, in the mean of many years (docs/explanation/verdict.md): ten vary more.
    @pytest.mark.deep
    @pytest.mark.parametrize(
        "name", ["3 % of nights are outliers", deep("a drift of -4 % a year"), deep("a drift of +10 % a year")]
    )
    def test_with_outliers_or_a_drift_raise_hardly_more(self, name: str) -> None:
        random = np.random.default_rng(11)
        assert np.mean([alarms(YEARS[name], random) for _ in range(10)]) <= 1.6

    def test_without_a_step_show_none_when_they_are_over(self) -> None:
        random = np.random.default_rng(12)
        assert np.mean([steps_in_the_end(Year(), random) for _ in range(300)]) <= 0.1

    @pytest.mark.parametrize("name", [name for name in YEARS if "correlate" in name or "sets" in name])
    def test_of_correlated_nights_or_changing_nodes_show_none_when_they_are_over(self, name: str) -> None:
        random = np.random.default_rng(14)
        assert np.mean([steps_in_the_end(YEARS[name], random) > 0 for _ in range(100)]) <= 0.12

    @pytest.mark.parametrize(
        ("name", "least"),
        [
            ("nothing else", 0.92),
            ("3 % of nights are outliers", 0.8),
            deep("20 % of nights are missing", 0.88),
            deep("a drift of -4 % a year", 0.9),
        ],
    )
    def test_with_a_step_show_it_within_five_nights(self, name: str, least: float) -> None:
        random = np.random.default_rng(13)
        assert np.mean([found_in_time(YEARS[name], random) for _ in range(300)]) >= least


class TestHistory:
    def test_reports_the_night_the_size_and_the_direction(self) -> None:
        found = history(nights(noisy(80, step=50)))
        (step,) = found.steps
        assert step.created[:10] == "2026-02-20"
        assert step.change == pytest.approx(-0.1, abs=0.01)
        assert step.interval.low < -0.1 < step.interval.high
        assert step.worse is True

    @pytest.mark.parametrize(("better", "worse"), [("higher", True), ("lower", False), (None, None)])
    def test_of_a_falling_metric_is_worse_by_its_direction(self, better: str | None, worse: bool | None) -> None:
        assert history(nights(noisy(80, step=50), better=better)).steps[0].worse is worse

    def test_names_what_changed_with_the_step(self) -> None:
        values = noisy(80, step=50)
        before = nights(values[:50], tuning={"MV2_A": "1"})
        changed = {"lock": "lock2", "mpi": "mpich 5", "tuning": {"MV2_A": "2"}, "hosts": ("n1", "n9")}
        (step,) = history(before + nights(values[50:], first=50, **changed)).steps
        assert step.circumstances == (
            Circumstance("lock", "lock1", "lock2"),
            Circumstance("mpi", "mpich 4.3", "mpich 5"),
            Circumstance("MV2_A", "1", "2"),
            Circumstance("hosts", "n2", "n9"),
        )

    def test_a_variable_that_came_was_none_before(self) -> None:
        values = noisy(80, step=50)
        (step,) = history(nights(values[:50]) + nights(values[50:], first=50, tuning={"MV2_B": "1"})).steps
        assert step.circumstances == (Circumstance("MV2_B", None, "1"),)

    def test_a_step_with_nothing_else_changed_says_nothing(self) -> None:
        assert history(nights(noisy(80, step=50))).steps[0].circumstances == ()

    def test_counts_a_night_once_by_its_median_in_the_order_of_time(self) -> None:
        found = history(one_run([3.0, 1.0, 2.0], night=1) + one_run([9.0, 7.0, 8.0]))
        assert found.values == (8.0, 2.0)

    def test_of_a_metric_that_fell_to_nothing_says_so(self) -> None:
        found = history(nights([72.0] * 20 + [0.0] * 20))
        (step,) = found.steps
        assert (step.before, step.after, step.change, step.worse) == (72, 0, -1, True)
        assert step.interval.low <= -1 <= step.interval.high

    def test_of_equal_nights_has_the_noise_of_their_last_digit(self) -> None:
        assert history(nights([1.25] * 20)).noise == pytest.approx(0.004, rel=0.01)

    def test_of_a_few_runs_says_why_no_steps_were_looked_for(self) -> None:
        assert history(nights([1.0, 2.0])).reason == "2 run(s): detecting changes requires at least 20"

    def test_knows_the_noise_in_spite_of_a_step(self) -> None:
        assert history(nights(noisy(300, step=150, factor=0.5))).noise == pytest.approx(0.02, rel=0.15)

    def test_is_one_for_each_series_and_metric(self) -> None:
        samples = nights([1.0, 2.0]) + nights([1.0], series="b2") + nights([3.0], metric="time")
        assert len(histories(samples)) == 3
        assert len(histories(samples, metric="time")) == 1


def test_a_large_step_of_few_independent_nights_is_found() -> None:
    """40 runs with 1 % of noise, the last 15 of them 10 % slower: a step must not pass for correlated noise."""
    found = 0
    for seed in range(100):
        values = 100 * np.exp(0.01 * np.random.default_rng(seed).standard_normal(40))
        values[25:] *= 0.9
        found += any(abs(index - 25) <= 1 for index in find_changes(list(values)))
    assert found >= 97

from __future__ import annotations

import json
import math
import random
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hidl_cli.analysis.scaling import Earlier, Observation, Study, from_json, judge, to_json
from tests.analysis.simulation import verdicts
from tests.tiers import deep

Values = dict[int, list[float]]


def study(values: Values, *, kind: str = "weak", target: float = 0.7, unit: str = "images/s", **options: Any) -> Study:
    """The study of ``values``: step -> one value per round, rounds counted from 1."""
    observations = [
        Observation(step, number, value) for step, row in values.items() for number, value in enumerate(row, 1)
    ]
    settled = {"metric": "images_per_second", "step_unit": "ranks", **options}
    return judge(kind=kind, target=target, unit=unit, observations=observations, **settled)


STEADY: Values = {  # efficiency 0.868; a multiple of pi has all digits
    1: [value * math.pi for value in (30.0, 30.3, 29.8, 30.1, 30.2)],
    2: [value * math.pi for value in (52.0, 52.9, 51.8, 52.3, 52.2)],
}


class TestEfficiency:
    @pytest.mark.parametrize(
        ("n", "speedup", "published"), [(256, 253, 0.988), (512, 481, 0.939), (128, 110, 0.859), (224, 106, 0.473)]
    )
    def test_of_published_speedups_is_as_published(self, n: int, speedup: float, published: float) -> None:
        step = study({1: [float(n)], n: [n / speedup]}, kind="strong", unit="s").steps[-1]
        assert step.speedup == pytest.approx(n / (n / speedup))
        assert step.efficiency == pytest.approx(published, abs=0.001)

    def test_of_published_rates_per_gpu_is_as_published(self) -> None:
        # Two V100 nodes: 316.4 images/s per GPU on two, 334.0 on one.
        assert study({1: [334.0], 2: [2 * 316.4]}).steps[-1].efficiency == pytest.approx(0.947, abs=0.0005)

    @pytest.mark.parametrize(
        ("kind", "values"), [("weak", {4: [40.0], 16: [128.0]}), ("strong", {4: [64.0], 16: [20.0]})]
    )
    def test_is_relative_to_the_smallest_step(self, kind: str, values: Values) -> None:
        step = study(values, kind=kind).steps[-1]
        assert (step.n, step.ideal_speedup) == (16, 4)
        assert step.speedup == pytest.approx(3.2)
        assert step.efficiency == pytest.approx(0.8)

    def test_of_a_drifting_machine_is_known_as_well_as_on_a_steady_one(self) -> None:
        drift = [1.0, 0.9, 0.8, 0.7, 0.6]
        drifting = study({n: [d * v for d, v in zip(drift, row, strict=True)] for n, row in STEADY.items()})
        assert_same_outcome(drifting, study(STEADY))

    def test_means_and_variation_are_those_of_the_step(self) -> None:
        step = study({1: [10.0, 10.0, 10.0], 2: [18.0, 20.0, 22.0]}).steps[-1]
        assert step.repetitions == 3
        assert step.mean == pytest.approx((18 * 20 * 22) ** (1 / 3))
        assert step.variation == pytest.approx(0.1)


class TestVerdict:
    def test_passes_where_every_interval_reaches_the_target(self) -> None:
        judged = study(STEADY, target=0.7)
        assert (judged.verdict, judged.hint) == ("pass", None)
        assert "0.869" in judged.reason
        assert "0.700" in judged.reason

    def test_fails_where_an_interval_lies_below_the_target(self) -> None:
        assert study(STEADY, target=0.9).verdict == "fail"

    def test_one_failing_step_fails_the_study_and_is_named(self) -> None:
        judged = study({**STEADY, 4: [220.0, 223.0, 218.4, 221.1, 220.2]})
        assert [step.verdict for step in judged.steps] == [None, "pass", "fail"]
        assert judged.verdict == "fail"
        assert judged.reason.startswith("1 of 2 steps below the target; the lowest is 4 ranks: efficiency 0.58")

    def test_an_undecided_step_keeps_the_study_from_passing(self) -> None:
        judged = study({**STEADY, 4: [251.0, 283.0, 258.0, 267.0, 261.0]})
        assert [step.verdict for step in judged.steps] == [None, "pass", "inconclusive"]
        assert judged.verdict == "inconclusive"

    def test_an_interval_that_includes_the_target_is_inconclusive_and_says_how_often_to_repeat(self) -> None:
        judged = study(STEADY, target=0.866)
        assert judged.verdict == "inconclusive"
        assert "cannot be distinguished from the target 0.866" in judged.reason
        needed = judged.steps[-1].repetitions_needed
        assert needed is not None
        assert needed > 5
        assert f"--repeat {needed}" in judged.hint

    def test_an_efficiency_at_the_very_target_is_not_settled_by_repetitions(self) -> None:
        judged = study(STEADY, target=study(STEADY).steps[-1].efficiency)
        assert judged.verdict == "inconclusive"
        assert "would be required" in judged.hint

    def test_a_wide_interval_passes_unless_precision_is_required(self) -> None:
        noisy = {1: [30.0, 20.0, 33.0, 25.0, 30.0], 2: [50.0, 60.0, 40.0, 55.0, 52.0]}
        assert study(noisy, target=0.01).verdict == "pass"
        judged = study(noisy, target=0.01, max_half_width=0.1)
        assert judged.verdict == "inconclusive"
        assert "--precision requires 10 %" in judged.reason

    @pytest.mark.parametrize("repetitions", [1, 2])
    def test_two_repetitions_are_too_few(self, repetitions: int) -> None:
        judged = study({n: row[:repetitions] for n, row in STEADY.items()})
        assert judged.verdict == "inconclusive"
        assert f"too few repetitions for an interval ({repetitions} of" in judged.reason
        assert "--repeat 5" in judged.hint

    def test_repetitions_without_any_spread_prove_nothing(self) -> None:
        judged = study({1: [30.0] * 5, 2: [58.0] * 5})
        assert judged.verdict == "inconclusive"
        assert "exactly the same efficiency" in judged.reason

    @pytest.mark.parametrize(("step", "named"), [(1, "1 rank in round 3"), (2, "2 ranks in round 3")])
    def test_a_missing_round_is_named_and_nothing_is_judged(self, step: int, named: str) -> None:
        full = study(STEADY).observations
        kept = [o for o in full if (o.step, o.round) != (step, 3)]
        judged = judge(kind="weak", target=0.7, metric="m", unit="1/s", step_unit="ranks", observations=kept)
        assert judged.verdict == "inconclusive"
        assert f"no value for {named}" in judged.reason
        assert judged.steps[-1].interval is None

    def test_a_baseline_alone_has_no_verdict(self) -> None:
        judged = study({1: [30.0, 30.1, 30.2]})
        assert judged.verdict is None
        assert "only the step of 1 rank was measured" in judged.reason
        assert judged.hint is not None

    def test_values_of_different_orders_of_magnitude_are_inconclusive(self) -> None:
        wild = {1: [1.0] * 3, **{2**i: [1.0, 1e-9, 1e12 + i] for i in range(1, 9)}}
        judged = study(wild, rounds=20)
        assert judged.verdict == "inconclusive"
        assert json.dumps(to_json(judged), allow_nan=False)


class TestObservations:
    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    def test_that_are_not_positive_and_finite_are_refused_by_name(self, value: float) -> None:
        with pytest.raises(ValueError, match=r"step=2, round=1"):
            study({1: [30.0], 2: [value]})

    def test_twice_for_one_round_are_refused(self) -> None:
        twice = [Observation(1, 1, 30.0), Observation(1, 1, 31.0)]
        with pytest.raises(ValueError, match="step 1 has more than one value in round 1"):
            judge(kind="weak", target=0.7, metric="m", unit="1/s", step_unit="ranks", observations=twice)

    def test_must_be_there(self) -> None:
        with pytest.raises(ValueError, match="requires observations"):
            study({})

    @pytest.mark.parametrize("target", [0.0, math.nan])
    def test_need_a_target_that_can_be_reached(self, target: float) -> None:
        with pytest.raises(ValueError, match="target efficiency"):
            study(STEADY, target=target)


measured = st.integers(3, 8).flatmap(
    lambda n: st.fixed_dictionaries(
        # In any unit, and as a time, these have all digits.
        {step: st.lists(st.floats(1.0, 100.0).map(math.pi.__mul__), min_size=n, max_size=n) for step in (1, 2, 4)}
    )
)


class TestInvariance:
    @given(measured, st.randoms())
    @settings(max_examples=40)
    def test_rounds_and_observations_may_come_in_any_order(self, values: Values, order: random.Random) -> None:
        rounds = order.sample(range(len(values[1])), len(values[1]))
        permuted = study({n: [values[n][r] for r in rounds] for n in order.sample(list(values), 3)})
        assert_same_outcome(permuted, study(values))

    @given(measured, st.floats(0.001, 1000))
    @settings(max_examples=40)
    def test_the_unit_of_the_metric_does_not_matter(self, values: Values, factor: float) -> None:
        scaled = study({n: [factor * value for value in row] for n, row in values.items()})
        assert_same_outcome(scaled, study(values))

    @given(measured)
    @settings(max_examples=40)
    def test_rates_and_the_times_for_one_unit_of_work_scale_alike(self, values: Values) -> None:
        times = {n: [1 / value for value in row] for n, row in values.items()}
        assert_same_outcome(study(times, kind="strong", unit="s"), study(values))

    @given(measured)
    @settings(max_examples=40)
    def test_the_interval_contains_the_efficiency(self, values: Values) -> None:
        for step in study(values).steps:
            if step.interval:
                assert step.interval.low <= step.efficiency <= step.interval.high


def assert_same_outcome(one: Study, other: Study) -> None:
    """Equal verdicts, and equal figures but for rounding."""
    assert [step.verdict for step in one.steps] == [step.verdict for step in other.steps]
    assert figures(one) == pytest.approx(figures(other), rel=1e-6)


def figures(judged: Study) -> list[float]:
    ends = [end for step in judged.steps if step.interval for end in (step.interval.low, step.interval.high)]
    return [step.efficiency for step in judged.steps] + ends


class TestDocument:
    def test_is_plain_and_gives_the_same_study_back(self) -> None:
        judged = study({**STEADY, 4: [80.0, 90.0, 82.0, 85.0, 83.0]})
        document = json.loads(json.dumps(to_json(judged), allow_nan=False))
        assert document["schema"] == "hidl.verdict/1"
        assert from_json(document) == judged

    @pytest.mark.parametrize(
        "document", [{}, {"schema": "hidl.verdict/2"}, {"schema": "hidl.verdict/1", "steps": [], "observations": []}]
    )
    def test_of_another_kind_is_refused(self, document: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"hidl\.verdict/1"):
            from_json(document)


class TestSimulatedStudies:
    @pytest.mark.deep
    @pytest.mark.parametrize("noise", [deep(0.01), 0.03, deep(0.05)])
    def test_at_the_very_target_are_judged_wrongly_in_one_of_twenty_at_most(self, noise: float) -> None:
        shares = verdicts(1.0, deviation=noise, rounds=5, sequential=False, studies=2000)
        assert shares.passed + shares.failed <= 0.05

    def test_ten_percent_above_the_target_pass_in_spite_of_noise(self) -> None:
        assert verdicts(1.1, deviation=0.02, rounds=5, sequential=False, studies=300).passed >= 0.9

    def test_ten_percent_below_the_target_fail(self) -> None:
        shares = verdicts(0.9, deviation=0.02, rounds=5, sequential=False, studies=300)
        assert shares.failed >= 0.9
        assert shares.passed == 0


class TestFewDigits:
    """Programs print few digits: one decimal of 0.14 s and 0.065 s is 0.1 s."""

    @pytest.mark.parametrize(
        ("times", "target", "noise", "rounds"),
        [
            ((0.14, 0.065), 0.8, 0.04, 12),
            ((1.03, 0.735), 0.71, 0.015, 20),
            ((1.03, 0.735), 0.71, 0.02, 12),
            ((0.149, 0.11), 0.7, 0.02, 12),
        ],
    )
    @pytest.mark.parametrize("stopped", [False, True])
    def test_rarely_make_a_wrong_verdict(
        self, times: tuple[float, float], target: float, noise: float, rounds: int, *, stopped: bool
    ) -> None:
        wrong = "pass" if times[0] / 2 / times[1] < target else "fail"
        most = rounds if stopped else None
        found = []
        for seed in range(200):
            source = random.Random(seed)
            values = {
                n: [round(true * math.exp(source.gauss(0, noise)), 1) for _ in range(rounds)]
                for n, true in enumerate(times, 1)
            }
            found.append(study(values, kind="strong", target=target, unit="s", rounds=most).verdict)
        assert found.count(wrong) / len(found) <= 0.025

    def test_of_copies_and_of_earlier_runs_count_too(self) -> None:
        settled = {"kind": "weak", "target": 0.8, "metric": "m", "unit": "u", "step_unit": "nodes"}
        steps = [Observation(2, r, value, hosts=("a", "b")) for r, value in enumerate([5.9, 6.0, 6.1, 6.0, 5.8], 1)]
        copies = [
            Observation(1, r, value, "copy", (host,)) for r in range(1, 6) for host, value in (("a", 3.1), ("b", 2.9))
        ]
        of_means = Earlier(1, (3.0333, 2.9667, 3.0, 3.0333, 2.9667), (3.1, 3.0, 3.0, 2.9, 3.0))
        exact = Earlier(1, of_means.values, (3.1001, *of_means.printed[1:]))
        for few in (
            judge(observations=[*steps, *copies], **settled),
            judge(observations=steps, earlier=of_means, **settled),
        ):
            low, high = astuple(few.steps[-1].interval)
            assert high / low > math.exp(2 * (0.05 / 3 + 0.05 / 6))
        few, many = (
            judge(observations=steps, earlier=each, **settled).steps[-1].interval for each in (of_means, exact)
        )
        assert few.high / few.low > 1.04 * many.high / many.low

    def test_that_alone_leave_it_open_are_named(self) -> None:
        judged = study({1: [3.0, 3.1, 3.0, 3.0, 3.0], 2: [4.9, 5.0, 5.0, 5.0, 5.0]}, target=0.82)
        assert judged.verdict == "inconclusive"
        assert judged.hint == "rounding alone causes an error of ±2.7%: measure longer or print more digits"
        assert judged.steps[-1].repetitions_needed is None


def test_a_rate_of_the_same_work_is_judged_as_it_grows() -> None:
    times = [Observation(n, r, (1 + 0.01 * r) / n**0.9) for r in range(5) for n in (1, 4)]
    rates = [Observation(each.step, each.round, 1 / each.value) for each in times]
    same = {"kind": "strong", "target": 0.5, "metric": "m", "unit": "u", "step_unit": "nodes"}
    by_time = judge(observations=times, **same)  # type: ignore[arg-type]
    by_rate = judge(observations=rates, better="higher", **same)  # type: ignore[arg-type]
    assert by_rate.steps[1].efficiency == pytest.approx(by_time.steps[1].efficiency)
    assert by_rate.steps[1].efficiency == pytest.approx(4**-0.1)

"""Studies against copies and against history."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hidl_cli.analysis.scaling import Earlier, Observation, Study, earlier, from_json, judge, to_json
from tests.analysis.sampled import nights

HOSTS = ("n1", "n2", "n3", "n4")


def against_copies(
    efficiency: float,
    *,
    kind: str = "weak",
    speeds: tuple[float, ...] = (1, 1, 1, 1),
    hosts: bool = True,
    rounds: int = 5,
) -> Study:
    """A study of 2 and 4 nodes, whose nodes have these speeds, with 0.5 % of noise."""
    random = np.random.default_rng(1)
    observations = []
    for r in range(1, rounds + 1):
        noise = iter(np.exp(0.005 * random.standard_normal(6)))
        for host, speed in zip(HOSTS, speeds, strict=True):
            rate = 100 * speed * float(next(noise))
            observations.append(Observation(1, r, rate if kind == "weak" else 1 / rate, "copy", (host,)))
        for n in (2, 4):
            rate = 100 * efficiency * sum(speeds[:n]) * float(next(noise))
            on = HOSTS[:n] if hosts else ()
            observations.append(Observation(n, r, rate if kind == "weak" else 1 / rate, hosts=on))
    settled = {"metric": "m", "unit": "u", "step_unit": "nodes", "target": 0.8}
    return judge(kind=kind, observations=observations, **settled)  # type: ignore[arg-type]


class TestCopies:
    @pytest.mark.parametrize("kind", ["weak", "strong"])
    def test_are_the_limit_by_their_sum(self, kind: str) -> None:
        study = against_copies(0.9, kind=kind)
        assert study.against == "copies"
        assert [step.efficiency for step in study.steps] == pytest.approx([1, 0.9, 0.9], abs=0.01)
        assert study.verdict == "pass"

    def test_on_nodes_of_unlike_speed_do_not_blame_scaling_for_it(self) -> None:
        study = against_copies(0.9, speeds=(1.0, 0.5, 1.0, 1.0))
        assert [step.efficiency for step in study.steps[1:]] == pytest.approx([0.9, 0.9], abs=0.01)

    def test_are_averaged_where_a_step_does_not_name_its_hosts(self) -> None:
        study = against_copies(0.9, speeds=(1.0, 0.5, 1.0, 1.0), hosts=False)
        assert study.steps[1].efficiency == pytest.approx(0.9 * 1.5 / (2 * 3.5 / 4), abs=0.01)

    def test_name_a_slow_node_with_the_verdict(self) -> None:
        study = against_copies(0.6, speeds=(1.0, 1.0, 0.7, 1.0))
        assert study.verdict == "fail"
        assert study.reason.endswith("slow node: n3 (30% behind the median node)")

    def test_do_not_name_one_where_none_is(self) -> None:
        assert not any(node.slow for node in against_copies(0.9).nodes)

    def test_of_which_one_is_missing_decide_nothing(self) -> None:
        whole = against_copies(0.9).observations
        lost = [o for o in whole if (o.kind, o.round, o.hosts) != ("copy", 2, ("n3",))]
        study = judge(kind="weak", target=0.8, metric="m", unit="u", step_unit="nodes", observations=lost)
        assert study.verdict == "inconclusive"
        assert "no value for 1 node in round 2" in study.reason

    def test_are_kept_in_the_document(self) -> None:
        study = against_copies(0.9)
        assert from_json(to_json(study)) == study

    def test_must_say_their_host(self) -> None:
        with pytest.raises(ValueError, match="a copy must run on exactly one host"):
            judge(
                kind="weak",
                target=0.8,
                metric="m",
                unit="u",
                step_unit="nodes",
                observations=[Observation(1, 1, 5.0, "copy")],
            )

    def test_leave_no_room_for_a_step_of_their_own_size(self) -> None:
        observations = [*against_copies(0.9).observations, Observation(1, 1, 100.0)]
        with pytest.raises(ValueError, match="the step of size 1 is the baseline"):
            judge(kind="weak", target=0.8, metric="m", unit="u", step_unit="nodes", observations=observations)


def against_history(today: float, *, spread: float = 0.01, earlier_runs: int = 20) -> Study:
    """A study of 4 ranks, at ``today`` of what four times the earlier baseline would be."""
    random = np.random.default_rng(2)
    before = Earlier(1, tuple((100 * np.exp(spread * random.standard_normal(earlier_runs))).tolist()))
    values = (400 * today * np.exp(0.01 * random.standard_normal(5))).tolist()
    observations = [Observation(4, r, value) for r, value in enumerate(values, 1)]
    return judge(
        kind="weak", target=0.8, metric="m", unit="u", step_unit="ranks", observations=observations, earlier=before
    )


class TestHistory:
    @pytest.mark.parametrize(("today", "verdict"), [(0.9, "pass"), (0.7, "fail"), (0.8, "inconclusive")])
    def test_is_a_baseline_without_a_measurement_today(self, today: float, verdict: str) -> None:
        study = against_history(today)
        assert (study.against, study.verdict) == ("history", verdict)

    def test_that_varies_widens_the_interval(self) -> None:
        steady, varied = (against_history(0.9, spread=spread).steps[-1].interval for spread in (0.01, 0.1))
        assert varied.high - varied.low > 2 * (steady.high - steady.low)  # type: ignore[union-attr]

    def test_holds_the_truth_in_93_of_100_studies_or_more(self) -> None:
        random = np.random.default_rng(3)
        held = 0
        for _ in range(400):
            before = Earlier(1, tuple(np.exp(0.03 * random.standard_normal(8)).tolist()))
            observations = [Observation(2, r, 2 * 0.8 * math.exp(0.02 * random.standard_normal())) for r in range(1, 6)]
            study = judge(
                kind="weak",
                target=0.8,
                metric="m",
                unit="u",
                step_unit="ranks",
                observations=observations,
                earlier=before,
            )
            interval = study.steps[-1].interval
            assert interval is not None
            held += interval.low <= 0.8 <= interval.high
        assert held / 400 >= 0.93

    def test_with_an_outlier_has_the_efficiency_in_its_interval(self) -> None:
        random = np.random.default_rng(4)
        before = Earlier(1, (*(100 * np.exp(0.01 * random.standard_normal(19))).tolist(), 10.0))
        values = (170 * np.exp(0.01 * random.standard_normal(8))).tolist()
        study = judge(
            kind="weak",
            target=0.9,
            metric="m",
            unit="u",
            step_unit="ranks",
            observations=[Observation(2, r, value) for r, value in enumerate(values, 1)],
            earlier=before,
        )
        step = study.steps[-1]
        assert step.interval is not None
        assert step.interval.low <= step.efficiency <= step.interval.high
        assert step.efficiency == pytest.approx(0.85, rel=0.02)

    @pytest.mark.parametrize("precision", [None, 0.05])
    def test_that_is_too_varied_is_not_cured_by_repetitions(self, precision: float | None) -> None:
        random = np.random.default_rng(5)
        before = Earlier(1, tuple((100 * np.exp(0.08 * random.standard_normal(8))).tolist()))
        observations = [Observation(2, r, 176 * math.exp(0.005 * random.standard_normal())) for r in range(1, 9)]
        study = judge(
            kind="weak",
            target=0.9,
            metric="m",
            unit="u",
            step_unit="ranks",
            observations=observations,
            earlier=before,
            max_half_width=precision,
        )
        assert (study.verdict, study.steps[-1].repetitions_needed) == ("inconclusive", None)
        assert study.hint is not None
        assert "repetitions do not help: use --baseline single" in study.hint

    def test_and_noise_are_both_counted_in_the_advice(self) -> None:
        advised = []
        for spread in (0.0001, 0.012):
            before = Earlier(1, tuple((100 * np.exp(spread * np.linspace(-1, 1, 20))).tolist()))
            noise = np.random.default_rng(7).standard_normal(5)
            observations = [Observation(2, r, 184 * math.exp(0.03 * each)) for r, each in enumerate(noise, 1)]
            study = judge(
                kind="weak",
                target=0.9,
                metric="m",
                unit="u",
                step_unit="ranks",
                observations=observations,
                earlier=before,
            )
            advised.append(study.steps[-1].repetitions_needed)
        assert None not in advised
        assert advised[0] < advised[1]

    def test_counts_each_run_once(self) -> None:
        samples = nights([100.0, 110.0, 90.0, 105.0, 95.0]) + nights([121.0], repetition=2)
        assert earlier(samples, "rate", step=1).values == pytest.approx((110, 110, 90, 105, 95))

    def test_leaves_out_the_run_that_is_judged(self) -> None:
        samples = nights([1.0, 2.0, 3.0, 4.0, 5.0, 99.0])
        assert 99 not in earlier(samples, "rate", step=1, before=samples[-1].run).values

    def test_takes_five_runs(self) -> None:
        with pytest.raises(ValueError, match=r"4 earlier run\(s\) measured rate; a baseline requires 5"):
            earlier(nights([1.0, 2.0, 3.0, 4.0]), "rate", step=1)

    def test_of_two_series_is_refused(self) -> None:
        with pytest.raises(ValueError, match="2 series"):
            earlier(nights([1.0] * 5) + nights([2.0] * 5, series="b"), "rate", step=1)

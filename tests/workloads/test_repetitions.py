from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.repetitions import confidence, enough, half_widths, looks
from tests.analysis.simulation import verdicts

pytestmark = pytest.mark.real


def efficiencies(value: float, rounds: int, *, noise: float = 0.01, steps: int = 1, seed: int = 1) -> list[list[float]]:
    return (value * np.exp(noise * np.random.default_rng(seed).standard_normal((steps, rounds)))).tolist()


class TestLooks:
    @pytest.mark.parametrize(("rounds", "after"), [(3, (3,)), (5, (3, 5)), (10, (3, 5, 8, 10)), (2, (2,))])
    def test_are_few_and_end_with_the_last_round(self, rounds: int, after: tuple[int, ...]) -> None:
        assert looks(rounds) == after

    @given(st.integers(1, 500))
    def test_rise(self, rounds: int) -> None:
        found = looks(rounds)
        assert list(found) == sorted(set(found))
        assert found[-1] == rounds


class TestConfidence:
    @pytest.mark.parametrize(("steps", "level"), [(0, 0.95), (1, 0.95), (2, 0.95), (4, 0.975), (10, 0.99)])
    def test_rises_with_the_steps_of_which_each_may_err(self, steps: int, level: float) -> None:
        assert confidence(steps) == pytest.approx(level)

    def test_rises_with_the_looks(self) -> None:
        assert [confidence(1, looks=n) for n in (1, 2, 5)] == pytest.approx([0.95, 0.9706, 0.9842])


class TestEnough:
    @pytest.mark.parametrize(
        ("value", "why"),
        [(0.6, "an efficiency lies below the target"), (0.95, "every efficiency reaches the target")],
    )
    def test_is_what_settles_the_verdict(self, value: float, why: str) -> None:
        decision = enough(efficiencies(value, 5), 0.8, rounds=20)
        assert decision.stop
        assert decision.why.startswith(why)

    def test_is_one_step_below_the_target_whatever_the_others_are(self) -> None:
        steps = [*efficiencies(0.8, 5), *efficiencies(0.5, 5)]
        assert enough(steps, 0.8, rounds=20).stop

    def test_is_not_one_step_above_it(self) -> None:
        steps = [*efficiencies(0.8, 5), *efficiencies(0.95, 5)]
        assert not enough(steps, 0.8, rounds=20).stop

    def test_is_not_reached_at_the_target(self) -> None:
        assert enough(efficiencies(0.8, 8), 0.8, rounds=20).why.startswith("undecided after 8 rounds")

    def test_is_the_budget(self) -> None:
        assert enough(efficiencies(0.8, 20), 0.8, rounds=20).why == "all 20 rounds are measured"

    def test_is_an_efficiency_known_as_well_as_anybody_wants(self) -> None:
        decision = enough(efficiencies(0.8, 12, noise=0.001), 0.8, rounds=20)
        assert decision.stop
        assert "known to 0.5%" in decision.why

    def test_is_not_asked_between_the_looks(self) -> None:
        assert enough(efficiencies(0.1, 4), 0.8, rounds=20).why == "round 4 of 20: the next look is after round 5"

    def test_is_a_step_that_never_varies(self) -> None:
        assert "to the last digit" in enough([[0.5] * 5], 0.8, rounds=20).why

    def test_is_not_a_wide_interval_above_the_target(self) -> None:
        assert not enough(efficiencies(0.9, 5, noise=0.3), 0.01, rounds=20).stop


def test_the_interval_widens_with_the_confidence() -> None:
    values = np.array(efficiencies(1.0, 6))
    assert half_widths(values, 0.99)[0] > half_widths(values, 0.95)[0] > 0
    assert math.isfinite(half_widths(values, 0.99)[0])


class TestSimulatedStudiesThatStopWhenSettled:
    @pytest.mark.deep
    @pytest.mark.parametrize(("most", "steps"), [(8, 1), (40, 1), (12, 4)])
    def test_are_judged_wrongly_to_either_side_in_one_of_twenty_at_most(self, most: int, steps: int) -> None:
        studies = 2000 if most == 8 else 300
        shares = verdicts(0.8, noise=0.02, n=most, steps=steps, studies=studies, sequential=True)
        assert max(shares["pass"], shares["fail"]) <= 0.05

    @pytest.mark.parametrize(("ratio", "verdict"), [(0.95, "fail"), (1.05, "pass")])
    def test_are_settled_by_five_percent_in_fewer_rounds_than_allowed(self, ratio: float, verdict: str) -> None:
        shares = verdicts(0.8 * ratio, noise=0.02, n=20, studies=150, sequential=True)
        assert shares[verdict] >= 0.98
        assert shares["rounds"] <= 9

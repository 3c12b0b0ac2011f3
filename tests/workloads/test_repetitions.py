from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.repetitions import (
    Bounds,
    confidence,
    enough,
    half_width,
    interval,
    rounding,
    rounds_needed,
    typical,
)
from tests.analysis.simulation import NOISES, RECORDED, verdicts
from tests.tiers import deep

pytestmark = pytest.mark.real

EITHER_SIDE = 0.025


def efficiencies(value: float, rounds: int, *, noise: float = 0.01, steps: int = 1, seed: int = 1) -> list[list[float]]:
    return (value * np.exp(noise * np.random.default_rng(seed).standard_normal((steps, rounds)))).tolist()


spread_out = st.lists(st.floats(-10, 10), min_size=3, max_size=25).filter(lambda v: max(v) - min(v) > 1e-6)
most = st.none() | st.integers(3, 60)


class TestInterval:
    @given(spread_out, most, st.randoms())
    def test_does_not_depend_on_the_order(self, values: list[float], rounds: int | None, random) -> None:
        shuffled = random.sample(values, len(values))
        assert interval(shuffled, rounds=rounds) == pytest.approx(interval(values, rounds=rounds), abs=1e-9)

    @given(spread_out, most, st.floats(-5, 5), st.floats(0.1, 10))
    def test_moves_and_stretches_with_the_values(self, values: list[float], rounds, shift, factor) -> None:
        plain = interval(values, rounds=rounds)
        moved = interval([factor * value + shift for value in values], rounds=rounds)
        assert moved == pytest.approx([factor * end + shift for end in plain], rel=1e-6, abs=1e-6)

    @given(spread_out, most)
    def test_holds_the_typical_value(self, values: list[float], rounds: int | None) -> None:
        found = interval(values, rounds=rounds)
        assert found.low <= typical(values) <= found.high

    @given(spread_out, st.integers(26, 60), st.integers(1, 8))
    def test_is_wider_if_it_is_looked_at_always_and_for_more_steps(self, values, rounds: int, steps: int) -> None:
        once, always = (interval(values, rounds=most, steps=steps) for most in (None, rounds))
        more = interval(values, rounds=rounds, steps=steps + 1)
        assert more.high - more.low >= always.high - always.low >= once.high - once.low

    @pytest.mark.parametrize("n", [12, 20, 35])
    def test_of_many_values_is_that_of_the_signed_rank_test(self, n: int) -> None:
        stats = pytest.importorskip("scipy.stats")
        values = np.random.default_rng(n).standard_normal(n)
        found = interval(values.tolist())
        for end, side in ((found.low, "greater"), (found.high, "less")):
            inside = end + (1e-9 if side == "greater" else -1e-9)
            outside = end - (1e-9 if side == "greater" else -1e-9)
            levels = [stats.wilcoxon(values - at, alternative=side, method="exact").pvalue for at in (outside, inside)]
            assert levels[0] <= 0.012 < levels[1]

    @pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [0.7] * 5, [math.log(3.3), math.log(33) - math.log(10)]])
    def test_of_too_few_or_equal_values_is_none(self, values: list[float]) -> None:
        assert interval(values) is None

    def test_of_logarithms_has_a_relative_half_width(self) -> None:
        assert half_width(Bounds(math.log(0.95), math.log(1.05))) == pytest.approx(0.05, rel=0.01)


def test_the_typical_value_hardly_moves_with_an_outlier() -> None:
    values = [1.0, 1.01, 0.99, 1.02, 0.98]
    assert typical([*values, 100.0]) == pytest.approx(typical(values), abs=0.02)


class TestRounding:
    def test_is_half_of_the_last_digit_of_both_sides(self) -> None:
        assert rounding([0.1, 0.1]) == pytest.approx(math.log(2))
        assert rounding([3.0, 2.9, 3.0], [6.0]) == pytest.approx(0.05 / 3 + 0.05 / 6, rel=0.02)

    def test_is_nothing_for_values_with_all_digits(self) -> None:
        assert rounding([1 / 3, 1.0], [math.pi]) < 1e-10

    def test_does_not_see_the_errors_of_floats_in_another_unit(self) -> None:
        percent = [100 * value for value in (0.14, 0.29, 0.57)]
        assert any(value != int(value) for value in percent)
        assert rounding(percent) == pytest.approx(rounding([14.0, 29.0, 57.0]))


@pytest.mark.parametrize(
    ("steps", "rounds", "level"), [(0, 5, 0.98), (1, 9, 0.98), (4, 5, 0.995), (1, 10, 0.97), (2, 40, 0.985)]
)
def test_the_confidence_rises_with_the_steps_of_which_each_may_err(steps: int, rounds: int, level: float) -> None:
    assert confidence(steps, rounds) == pytest.approx(level)


class TestEnough:
    @pytest.mark.parametrize(
        ("value", "why"),
        [(0.6, "an efficiency is below the target"), (0.95, "every efficiency reaches the target")],
    )
    def test_is_what_settles_the_verdict(self, value: float, why: str) -> None:
        decision = enough(efficiencies(value, 5), 0.8, rounds=20)
        assert decision.stop
        assert decision.why.startswith(why)

    def test_is_decided_in_the_recorded_rounds_by_the_sixth(self) -> None:
        stops = [n for n in range(1, 18) if enough([RECORDED[:n]], 0.70, rounds=40).stop]
        assert stops[0] == 6
        assert enough([RECORDED[:6]], 0.70, rounds=40).why == "every efficiency reaches the target after 6 rounds"

    def test_is_one_step_below_the_target_whatever_the_others_are(self) -> None:
        steps = [*efficiencies(0.8, 5), *efficiencies(0.5, 5)]
        assert enough(steps, 0.8, rounds=20).stop

    def test_is_not_one_step_above_it(self) -> None:
        steps = [*efficiencies(0.8, 5), *efficiencies(0.95, 5)]
        assert not enough(steps, 0.8, rounds=20).stop

    def test_is_not_reached_at_the_target(self) -> None:
        assert enough(efficiencies(0.8, 8), 0.8, rounds=20).why.startswith("undecided after 8 rounds")

    def test_is_the_budget(self) -> None:
        assert enough(efficiencies(0.8, 20), 0.8, rounds=20).why == "all 20 rounds were measured"

    def test_is_an_efficiency_known_as_well_as_anybody_wants(self) -> None:
        decision = enough(efficiencies(0.8, 12, noise=0.001), 0.8, rounds=20)
        assert decision.stop
        assert "known to ±0.5%" in decision.why

    @pytest.mark.parametrize("done", [1, 2])
    def test_is_not_two_rounds(self, done: int) -> None:
        assert not enough(efficiencies(0.1, done), 0.8, rounds=20).stop

    def test_is_a_step_that_never_varies(self) -> None:
        assert "exactly the same efficiency" in enough([[0.5] * 5], 0.8, rounds=20).why

    def test_is_a_wide_interval_above_the_target_unless_precision_is_required(self) -> None:
        wide = efficiencies(0.9, 6, noise=0.2)
        assert enough(wide, 0.1, rounds=20).stop
        assert not enough(wide, 0.1, rounds=20, precision=0.05).stop


class TestSimulatedStudiesThatStopWhenSettled:
    @pytest.mark.parametrize(
        ("rounds", "steps"), [(10, 1), deep(5, 1), deep(20, 1), deep(40, 1), deep(12, 4), deep(120, 1)]
    )
    @pytest.mark.parametrize("noise", NOISES)
    def test_are_judged_wrongly_to_either_side_in_one_of_forty_at_most(
        self, noise: str, rounds: int, steps: int
    ) -> None:
        studies = 400
        shares = verdicts(1.0, deviation=0.15, noise=NOISES[noise], rounds=rounds, steps=steps, studies=studies)
        assert max(shares.passed, shares.failed) <= EITHER_SIDE + 3 * math.sqrt(EITHER_SIDE / studies)
        stated = 1 - confidence(1, rounds)
        assert shares.passed + shares.failed <= stated + 3 * math.sqrt(stated / studies)

    def test_are_decided_by_few_rounds_above_and_below_the_target(self) -> None:
        above, below = (verdicts(ratio, deviation=0.028, rounds=20, studies=150) for ratio in (1.05, 0.95))
        assert above.passed >= 0.98
        assert below.failed >= 0.98
        assert max(above.rounds, below.rounds) <= 11.5

    def test_of_noisy_machines_pass_if_they_scale(self) -> None:
        shares = verdicts(1.15, deviation=0.15, rounds=40, studies=150)
        assert shares.passed >= 0.8
        assert shares.rounds <= 31


class TestRoundsNeeded:
    def test_are_about_those_that_studies_take(self) -> None:
        random = np.random.default_rng(7)
        predicted, taken = [], []
        for _ in range(60):
            logs = math.log(1.08) + 0.05 * random.standard_normal(40)
            values = np.exp(logs).tolist()
            predicted.append(rounds_needed(logs[:6].tolist(), 0.0, rounds=40) or 40)
            taken.append(next(n for n in range(1, 41) if enough([values[:n]], 1.0, rounds=40).stop))
        assert np.median(predicted) == pytest.approx(np.median(taken), abs=3)

    def test_are_none_at_the_target(self) -> None:
        assert rounds_needed([-0.1, 0.1, 0.05, -0.05], 0.0, rounds=40) is None

from __future__ import annotations

import math

import numpy as np
import pytest

from hidl_cli.analysis.scaling import Observation, SerialFit, fraction, judge


def fitted(kind: str, efficiency, *, noise: float = 0.005, steps: tuple[int, ...] = (1, 2, 4, 8)) -> SerialFit | None:
    """The fit of a study whose efficiency at ``p`` is ``efficiency(p)``."""
    random = np.random.default_rng(1)
    observations = []
    for r in range(1, 9):
        for p in steps:
            rate = p * efficiency(p) * math.exp(noise * random.standard_normal())
            observations.append(Observation(p, r, rate if kind == "weak" else 1 / rate))
    study = judge(kind=kind, target=0.5, metric="m", unit="u", step_unit="ranks", observations=observations)  # type: ignore[arg-type]
    return study.fit


def test_karp_and_flatt_is_the_serial_fraction_of_amdahls_law() -> None:
    # Ten processors that are 5.26 times as fast as one: a tenth of the work is serial.
    assert fraction("strong", 10, 1 / (10 * (0.1 + 0.9 / 10))) == pytest.approx(0.1)


def test_gustafsons_fraction_is_that_of_the_scaled_speed_up() -> None:
    # 100 processors, a twentieth serial: the scaled speed-up is 100 - 0.05 * 99.
    assert fraction("weak", 100, (100 - 0.05 * 99) / 100) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("kind", "law", "efficiency"),
    [
        ("strong", "amdahl", lambda p: 1 / (1 + 0.05 * (p - 1))),
        ("weak", "gustafson", lambda p: 1 - 0.05 * (p - 1) / p),
    ],
)
def test_the_law_that_holds_is_recovered_with_its_interval(kind: str, law: str, efficiency) -> None:
    found = fitted(kind, efficiency)
    assert found.law == law
    assert found.overall.interval.low < 0.05 < found.overall.interval.high
    assert [step.value for step in found.steps] == pytest.approx([0.05] * 3, abs=0.01)
    assert found.rising is False


def test_a_cost_that_grows_with_the_ranks_shows_as_a_rising_fraction() -> None:
    assert fitted("strong", lambda p: 1 / (1 + 0.01 * (p - 1) * p)).rising is True


def test_the_interval_of_a_step_is_that_of_its_efficiency_the_other_way_round() -> None:
    for step in fitted("strong", lambda p: 0.9).steps:
        assert step.interval.low < step.value < step.interval.high


def test_one_step_makes_no_law() -> None:
    assert fitted("strong", lambda p: 0.9, steps=(1, 2)) is None

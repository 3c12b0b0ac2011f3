"""By which metric a good and a bad run are compared."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hidl_cli.analysis.samples import Sample
from hidl_cli.bisect.journal import LEAST_SLOWDOWN, ComparedRun, metric_of, side_of
from hidl_cli.errors import UsageError
from tests.bisect.nights import planned

pytestmark = pytest.mark.usefixtures("config")

RATE = "rate=(?P<rate>[0-9.]+)"


def night(*metrics: str, ranks: int = 2, better: str | None = None, **values: list[float]) -> ComparedRun:
    """A run that measured these values, one for each repetition."""
    plan = planned(metrics=list(metrics))
    every: dict[str, Any] = {
        **{"run": plan.run, "created": plan.created, "site": "local", "partition": None, "workload": "train"},
        **{"series": "", "stack": "mpi", "lock": "", "launcher": "mpiexec", "mpi": "mpich", "nodes": 1},
    }
    samples = [
        Sample(**every, ranks=ranks, repetition=number, metric=name, unit="s", better=better, value=value)
        for name, its in values.items()
        for number, value in enumerate(its, start=1)
    ]
    return ComparedRun(plan, ("n1",), {}, tuple(samples), None)


@pytest.mark.parametrize(
    ("better", "good", "bad", "sign"),
    [
        ("lower", [1.0, 1.1, 1.2], [1.3, 1.4, 1.5], 1),
        ("higher", [1.3, 1.4, 1.5], [1.0, 1.1, 1.2], -1),
        (None, [1.0, 1.1, 1.2], [1.3, 1.4, 1.5], 1),
        (None, [1.3, 1.4, 1.5], [1.0, 1.1, 1.2], -1),
    ],
)
def test_the_bad_run_is_the_slow_one(better: str | None, good: list[float], bad: list[float], sign: int) -> None:
    found = metric_of(night(better=better, wall_time=good), night(better=better, wall_time=bad), None)
    assert (found.sign, found.good, found.bad) == (sign, tuple(good), tuple(bad))
    assert found.slowdown == pytest.approx(math.log(1.4 / 1.1))


def test_what_was_not_worse_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the bad run was not worse: wall_time 1\.4 → 1\.1 s"):
        metric_of(night(better="lower", wall_time=[1.4] * 3), night(better="lower", wall_time=[1.1] * 3), None)


@pytest.mark.parametrize(
    ("named", "found"), [(None, "rate"), ("wall_time", "wall_time")], ids=["the program's own", "as asked"]
)
def test_the_metric_of_the_program_comes_before_the_times_of_the_job(named: str | None, found: str) -> None:
    good = night(RATE, rate=[1.0] * 3, wall_time=[1.0] * 3)
    assert metric_of(good, night(RATE, rate=[2.0] * 3, wall_time=[2.0] * 3), named).measure.metric == found


def test_values_in_another_unit_are_converted() -> None:
    good, bad = night(wall_time=[1.0] * 3), night(wall_time=[1.5] * 3)
    good = replace(good, samples=tuple(replace(each, unit="ms", value=1000 * each.value) for each in good.samples))
    found = metric_of(good, bad, None)
    assert found.slowdown == pytest.approx(math.log(1.5))


def test_runs_without_a_size_in_common_are_refused() -> None:
    with pytest.raises(UsageError, match="have no metric 'wall_time' for the same workload and size"):
        metric_of(night(wall_time=[1.0]), night(wall_time=[2.0], ranks=4), None)


def test_values_that_have_no_logarithm_are_refused() -> None:
    with pytest.raises(UsageError, match="must be positive"):
        metric_of(night(wall_time=[0.0, 1.0]), night(wall_time=[2.0, 2.0]), None)


def test_noise_and_slowdown_come_from_the_repetitions() -> None:
    good, bad = night(wall_time=[0.99, 1.0, 1.01]), night(wall_time=[1.99, 2.0, 2.01])
    expected = metric_of(good, bad, None).expectation([1.0])
    assert expected.slowdown == pytest.approx(math.log(2))
    assert expected.noise == pytest.approx(math.sqrt((0.01**2 + 0.005**2) / 2), rel=1e-3)
    alone = metric_of(night(wall_time=[1.0]), night(wall_time=[1.001]), None).expectation([1.0])
    assert (alone.slowdown, alone.noise) == (math.log1p(LEAST_SLOWDOWN), None)


def test_the_side_has_the_placement_of_the_metric() -> None:
    run = night(wall_time=[1.0])
    metric = metric_of(run, night(wall_time=[2.0]), None)
    assert side_of(run, metric.measure).placement == run.plan.steps[0].placement

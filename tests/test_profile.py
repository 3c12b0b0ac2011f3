"""The waterfall of lost efficiency, from given times, and the launch lines of recorded runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mpitraffic import profile

from hidl_cli.analysis.scaling import Observation, Study, judge
from hidl_cli.errors import MissingPrecondition
from hidl_cli.mpi import Library
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.profile import CAUSES, Times, _planned_bubble, describe_slow, times_of, waterfalls
from hidl_cli.recorder import STARTER, install_recorder
from tests.mpitraffic.test_profile import write_rank

LAUNCHERS = {
    "frontera": {"launcher": "ibrun", "nodes": 4},
    "frontera-rtx": {"launcher": "mpirun_rsh", "mpi": "mvapich2-gdr", "device": "cpu"},
    "summit": {"account": "ABC123", "device": "cpu"},
    "pitzer": {"device": "cpu"},
    "perlmutter": {"account": "m0000", "device": "cpu"},
    "local": {},
}


@pytest.mark.parametrize("site", LAUNCHERS)
def test_each_launch_line_starts_the_recorder(site: str, config: Path) -> None:
    options = {"workload": "kmeans", "prefix": "/apps/hidl", "hypothetical": True, "site": site, **LAUNCHERS[site]}
    plan = prepare(RunRequest(profile="required", **options))
    plain = prepare(RunRequest(**options))
    for step, other in zip(plan.steps, plain.steps, strict=True):
        for launch, before in ((step.launch, other.launch), (step.unbound, other.unbound)):
            if launch is None or before is None:
                assert launch is before is None
                continue
            at = launch.words.index(STARTER[1]) - 1
            assert launch.words[at : at + 2] == STARTER
            assert (*launch.words[:at], *launch.words[at + 2 :]) == before.words


def _study(kind: str, values: dict[int, float], rounds: int = 4) -> Study:
    observations = [
        Observation(step=n, round=round_, value=value * (1 + 0.001 * round_ * n))
        for round_ in range(rounds)
        for n, value in values.items()
    ]
    return judge(
        kind=kind,  # type: ignore[arg-type]
        target=0.5,
        metric="m",
        unit="s",
        step_unit="ranks",
        observations=observations,
        better="higher" if kind == "weak" else "lower",
    )


def test_a_rank_that_sleeps_a_fifth_of_each_step_costs_it_as_imbalance() -> None:
    study = _study("weak", {1: 10.0, 4: 32.0})
    found = {(1, r): [Times(0.8, 0, 0, 0, 0)] for r in range(4)}
    found |= {(4, r): [Times(0.8, 0, 0.2, 0, 0)] for r in range(4)}
    (fall,) = waterfalls(study, found)
    losses = {each.cause: each.value for each in fall.losses}
    assert losses["imbalance"] == pytest.approx(0.2)
    assert 1 - sum(losses.values()) == pytest.approx(fall.efficiency)
    assert abs(losses["rest"]) < 0.01
    assert list(losses) == list(CAUSES)


def test_strong_scaling_compares_times_for_the_same_work() -> None:
    study = _study("strong", {1: 1.0, 2: 0.625, 4: 0.4})
    found = {(1, r): [Times(0.9, 0.1, 0, 0, 0)] for r in range(4)}
    found |= {(2, r): [Times(0.45, 0.05, 0, 0, 0.125 + 0.001 * r)] for r in range(4)}
    found |= {(4, r): [Times(0.225, 0.1, 0, 0.05, 0.025)] for r in range(4)}
    two, four = waterfalls(study, found)
    losses = {each.cause: each for each in two.losses}
    assert losses["computing"].value == losses["input"].value == pytest.approx(0)
    assert losses["transfer"].value == pytest.approx(0.2, abs=0.005)
    interval = losses["transfer"].interval
    assert interval is not None
    assert interval.low < losses["transfer"].value < interval.high
    by_cause = {each.cause: each.value for each in four.losses}
    assert by_cause["input"] == pytest.approx(0.075 / 0.4)
    assert by_cause["waiting"] == pytest.approx(0.125)
    for fall in (two, four):
        assert 1 - sum(each.value for each in fall.losses) == pytest.approx(fall.efficiency)


def test_packing_and_a_planned_bubble_are_causes() -> None:
    study = _study("weak", {1: 10.0, 4: 32.0})
    found = {(1, r): [Times(0.8, 0, 0, 0, 0)] for r in range(4)}
    found |= {(4, r): [Times(0.8, 0, 0, 0.02, 0, 0.08, 0.1)] for r in range(4)}
    (fall,) = waterfalls(study, found)
    losses = {each.cause: each.value for each in fall.losses}
    assert (losses["packing"], losses["bubble"], losses["waiting"]) == pytest.approx((0.08, 0.1, 0.02))
    assert 1 - sum(losses.values()) == pytest.approx(fall.efficiency)


def test_the_parts_of_a_step_add_up_to_its_time(tmp_path: Path) -> None:
    for rank in range(3):
        # Rank 2 packs longest; another thread of rank 1 copies beside, which takes no time of the step.
        phases = [("step", "", 1, 10**9), ("packing", "step", 1, 10**8 * (1 + rank)), ("packing", "", 2, 5 * 10**8)]
        write_rank(tmp_path, rank, 3, phases=phases)
    found = profile.load(tmp_path)
    assert [each.region.packing_ns for each in found.ranks] == [1e8, 2e8, 3e8]
    plain, planned = times_of(found), times_of(found, 1e-7)
    for times in (plain, planned):
        assert times.total == pytest.approx(max(each.region.ns for each in found.ranks) / 1e9)
        assert times.packing == pytest.approx(0.2)
    assert planned.bubble + planned.waiting == pytest.approx(plain.waiting)


def test_a_planned_bubble_counts_for_each_step(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, 2, phases=3 * [("step", "", 0, 2 * 10**9)])
    found = profile.load(tmp_path)
    for each in found.ranks:
        each.region.mpi_ns, each.region.wait_ns = 2e9, 1.5e9
    times = times_of(found, 0.1)
    assert (times.bubble, times.waiting) == pytest.approx((0.3, 1.2))
    assert times_of(found, 0.9).waiting == 0  # no more than the ranks have waited


def test_the_bubble_of_a_plan_is_that_of_its_busiest_partition_in_seconds(tmp_path: Path) -> None:
    assert _planned_bubble(tmp_path) == 0
    metrics = [{"name": "predicted_bubble", "samples": [0.4, 0.25]}, {"name": "predicted_step_time", "value": 2.0}]
    (tmp_path / "metrics.json").write_text(json.dumps({"metrics": metrics}))
    assert _planned_bubble(tmp_path) == 0.5


def test_a_program_that_marks_no_phases_is_divided_as_a_whole(tmp_path: Path) -> None:
    """An optimizer marks its packing, which is no step of the program."""
    for rank in range(3):
        write_rank(tmp_path, rank, 3, phases=[("packing", "", 0, 10**7 * (1 + rank))])
    found = profile.load(tmp_path)
    times = times_of(found)
    assert times.total == pytest.approx(found.ranks[0].wall_ns / 1e9)
    assert times.packing == pytest.approx(0.02)
    assert times.imbalance < times.packing  # of the whole ranks, which differ only by what they wait
    assert found.slow_ranks() == []


def test_rounds_without_a_profile_are_left_out() -> None:
    study = _study("weak", {1: 10.0, 2: 16.0, 4: 32.0})
    found = {(1, 0): [Times(1, 0, 0, 0, 0)], (2, 0): [Times(1, 0, 0, 0.25, 0)]}
    (fall,) = waterfalls(study, found)
    assert fall.n == 2
    assert all(each.interval is None for each in fall.losses)


def test_concurrent_copies_are_averaged() -> None:
    study = _study("weak", {1: 10.0, 2: 20.0})
    found = {(1, 0): [Times(1, 0, 0, 0, 0), Times(3, 0, 0, 0, 0)], (2, 0): [Times(2, 0, 0, 0, 0)]}
    (fall,) = waterfalls(study, found)
    assert fall.losses[0].value == pytest.approx(0)


def test_the_innermost_phase_of_a_slow_rank_is_named() -> None:
    slow = [("", 1.0, 9.0), ("step", 0.75, 9.0), ("backward", 0.8, 3.0), ("forward", 0.2, 2.0)]
    step = {
        "slow_ranks": [
            {
                "rank": 3,
                "host": "n1",
                "phase": phase,
                "phase_seconds": whole,
                "excess_seconds": more,
                "share": more / 10,
            }
            for phase, more, whole in slow
        ]
    }
    assert describe_slow(step) == ["rank 3 on n1 is slow in backward: 0.8 s longer than the others (8.0% of the time)"]


def test_a_directory_that_ld_preload_cannot_name_is_an_error(tmp_path: Path) -> None:
    library = Library("mpi", "mpich", prefix=str(tmp_path / "absent"))
    with pytest.raises(MissingPrecondition, match="contains a space or a colon"):
        install_recorder(library, "required", tmp_path / "a b")
    with pytest.raises(MissingPrecondition, match=r"MPI compiler '.*/absent/bin/mpicc' not found"):
        install_recorder(library, "required", tmp_path / "a")
    reason = install_recorder(library, "if-possible", tmp_path / "b")
    assert reason is not None
    assert "LD_PRELOAD" not in (tmp_path / "b" / STARTER[1]).read_text()

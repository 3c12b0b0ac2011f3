"""What becomes of a run that ended early."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.errors import JobFailed
from hidl_cli.plan.launch_plan import OUTPUT, plan_of
from hidl_cli.plan.options import RunRequest
from hidl_cli.record import Run
from hidl_cli.runs.conclude import _earlier, conclude, likely_causes
from hidl_cli.runs.history import refresh
from hidl_cli.runs.metrics import count_complete_repetitions
from hidl_cli.store.extract import series_of
from hidl_cli.store.index import update
from hidl_cli.store.store import Store
from hidl_workloads.enough import SHARED, UNBOUND, read_efficiencies
from tests.report.example import Nights
from tests.store.records import record
from tests.store.run_directories import plan

REPETITIONS, STEPS = 4, 3

Cut = Callable[[int], Run]


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cut:
    """``cut(7)``: a scaling study of 4 repetitions of 3 steps that the time limit ended in its 8th step."""
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    nights = Nights(tmp_path / "state" / "hidl" / "runs", tmp_path / "config" / "hidl")

    def made(done: int) -> Run:
        request = RunRequest("kmeans", scale="ranks=1,2,4", repeat=REPETITIONS, ranks_per_node=4)
        run = nights.run(request, 0, nights.clustering())
        for step in range(done + 1, REPETITIONS * STEPS + 1):
            run.metrics_file(step).unlink()
        for name in ("metrics", "verdict"):
            (run.directory / f"{name}.json").unlink()
        run.write("status", {**(run.document("status") or {}), "state": "TIMEOUT", "exit_status": None})
        return run

    return made


@pytest.mark.exact
@pytest.mark.parametrize(
    ("done", "rounds", "said"),
    [(7, 2, "cut off repetitions 3 to 4 of 4"), (11, 3, "cut off repetition 4 of 4"), (12, 4, "")],
)
def test_a_study_that_its_time_limit_cuts_is_judged_by_its_complete_repetitions(
    cut: Cut, done: int, rounds: int, said: str
) -> None:
    run = cut(done)

    conclusion = conclude(run, plan_of(run), run.status())

    document = run.document("metrics")
    assert document is not None
    assert [step["repetition"] for step in document["steps"]] == [r for r in range(1, rounds + 1) for _ in range(STEPS)]
    assert conclusion.study is not None
    assert conclusion.reason == conclusion.study.reason
    assert conclusion.reason.endswith(f"; the time limit {said}") if said else "time limit" not in conclusion.reason


def test_a_step_whose_output_was_being_written_is_not_complete(cut: Cut) -> None:
    run = cut(12)
    plan = plan_of(run)
    plan = replace(plan, steps=tuple(replace(step, parser="osu") for step in plan.steps))
    for number in range(1, 7):
        (run.metrics_file(number).parent / OUTPUT).write_text("half")
    run.write("status", {**(run.document("status") or {}), "step": 6})

    assert count_complete_repetitions(run, plan) == 1


def test_without_a_complete_repetition_it_failed(cut: Cut) -> None:
    run = cut(2)

    with pytest.raises(JobFailed, match="reached its time limit"):
        conclude(run, plan_of(run), run.status())


@pytest.mark.parametrize(("state", "rules"), [("TIMEOUT", []), ("NODE_FAIL", []), ("FAILED", ["HD266"])])
def test_ranks_that_the_scheduler_ended_are_no_cause(cut: Cut, state: str, rules: list[str]) -> None:
    run = cut(2)
    run.write("status", {**(run.document("status") or {}), "state": state, "exit_status": 143})
    run.stderr.write_text("srun: error: node2: task 1: Terminated\n")

    assert [cause.rule for cause in likely_causes(run, run.status())] == rules


@pytest.mark.parametrize(("done", "indexed"), [(7, 1), (2, 0)])
def test_a_study_cut_unattended_is_judged_as_if_attended(cut: Cut, tmp_path: Path, done: int, indexed: int) -> None:
    run = cut(done)
    run.write("status", {**(run.document("status") or {}), "reason": "reached its time limit"})
    store = Store(tmp_path / "results.sqlite")

    assert update(store, judge=refresh).added == indexed

    assert (run.document("verdict") is not None) == bool(indexed)
    assert (run.document("causes") is None) == bool(indexed)
    assert [each.run for each in store.runs()] == [run.id] * indexed
    if verdict := run.document("verdict"):
        assert verdict["reason"].endswith("; the time limit cut off repetitions 3 to 4 of 4")


def test_a_study_beside_another_run_says_in_how_many_steps_it_was_not_bound(cut: Cut) -> None:
    run = cut(12)
    for step in (2, 5):
        (run.metrics_file(step).parent / UNBOUND).touch()

    conclusion = conclude(run, plan_of(run), run.status())

    assert "ranks were not bound in 2 of 12 step(s), since another run used this machine's cores" in conclusion.reason
    verdict = run.document("verdict")
    assert verdict is not None
    assert verdict["reason"] == verdict["study"]["reason"] == conclusion.reason


@pytest.mark.parametrize("mark", [UNBOUND, SHARED])
def test_a_round_beside_another_run_does_not_count(cut: Cut, mark: str) -> None:
    run = cut(12)
    plan = plan_of(run)
    before = conclude(cut(12), plan, run.status())
    _slow_down(run, 5, 0.1)
    (run.metrics_file(5).parent / mark).touch()

    conclusion = conclude(run, plan, run.status())

    assert "1 of 4 rounds were disturbed" in conclusion.reason
    assert conclusion.hint == "repeat the measurement while no other run uses this machine"
    assert before.study is not None
    assert conclusion.study is not None
    for step, undisturbed in zip(conclusion.study.steps, before.study.steps, strict=True):
        assert step.efficiency == pytest.approx(undisturbed.efficiency, rel=0.1)
    assert {each.round for each in conclusion.study.observations} == {1, 3, 4}
    document = run.document("metrics")
    assert document is not None
    assert [bool(step.get("disturbed")) for step in document["steps"]] == [number == 5 for number in range(1, 13)]
    of_the_job = read_efficiencies(run.directory, plan.to_json(), 4)
    assert {n: len(step.efficiencies) for n, step in of_the_job.items()} == {2: 3, 4: 3}


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_a_study_beside_another_run_has_no_verdict(cut: Cut, factor: float) -> None:
    run = cut(12)
    for step in (2, 3, 5, 6, 8, 9, 11, 12):
        _slow_down(run, step, factor)
        if step < 8:
            (run.metrics_file(step).parent / UNBOUND).touch()

    conclusion = conclude(run, plan_of(run), run.status())

    assert conclusion.verdict == "inconclusive"
    assert conclusion.hint == "repeat the measurement while no other run uses this machine"
    assert conclusion.reason.startswith("fewer than 3 rounds ran alone on this machine; while another run used it:")
    assert conclusion.study is not None
    assert [step.verdict for step in conclusion.study.steps] == [None, "inconclusive", "inconclusive"]
    assert read_efficiencies(run.directory, plan_of(run).to_json(), 2) == {}


def _slow_down(run: Run, step: int, factor: float) -> None:
    """Change the metrics of a step as if its program had been slower."""
    file = run.metrics_file(step)
    document = json.loads(file.read_text())
    for each in document["metrics"]:
        each["value"] *= factor
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [((5,), "no value for 2 ranks in round 2"), ((3, 6, 9, 12), "no step of size 4 has a value for ")],
)
def test_steps_without_a_value_of_an_optional_metric_do_not_count(
    cut: Cut, lacking: tuple[int, ...], reason: str
) -> None:
    run = cut(12)
    plan = plan_of(run)
    assert plan.workload.scaling is not None
    name = plan.workload.scaling.metric
    optional = plan.workload.metrics[name].model_copy(update={"required": False})
    workload = plan.workload.model_copy(update={"metrics": {**plan.workload.metrics, name: optional}})
    for step in lacking:
        file = run.metrics_file(step)
        document = json.loads(file.read_text())
        document["metrics"] = [each for each in document["metrics"] if each["name"] != name]
        file.write_text(json.dumps(document))

    conclusion = conclude(run, replace(plan, workload=workload), run.status())

    assert conclusion.verdict == "inconclusive"
    assert reason in conclusion.reason


@pytest.mark.usefixtures("cut")
def test_a_baseline_of_earlier_runs_is_in_the_unit_of_the_run() -> None:
    now = plan(sizes=(1, 2))
    series = series_of(now, now.steps[0])
    earlier = [record(f"run{night}", [0.1], created=f"2026-01-0{night}", series=series) for night in range(1, 8)]
    units = ["kitems/s"] * 6 + ["B"]
    samples = [(replace(each.samples[0], unit=unit),) for each, unit in zip(earlier, units, strict=True)]
    Store().add([replace(each, samples=its) for each, its in zip(earlier, samples, strict=True)])
    assert _earlier(now, "rate").values == pytest.approx((100,) * 6)


@pytest.mark.parametrize("alone", [0, 2, 3])
@pytest.mark.usefixtures("cut")
def test_a_matrix_beside_another_run_has_no_winner(tmp_path: Path, alone: int) -> None:
    nights = Nights(tmp_path / "state" / "hidl" / "runs", tmp_path / "config" / "hidl")
    request = RunRequest("kmeans", matrix=["note=a,b"], repeat=5, nodes=1, ranks_per_node=2)
    run = nights.run(request, 0, nights.clustering())
    for name in ("metrics", "verdict"):
        (run.directory / f"{name}.json").unlink()
    for step in range(1, 2 * (5 - alone) + 1):
        (run.metrics_file(step).parent / SHARED).touch()

    conclusion = conclude(run, plan_of(run), run.status())

    assert ("is best" in conclusion.reason) == (conclusion.ranking is not None) == (alone == 3)
    if alone < 3:
        assert conclusion.reason.startswith("not ranked: fewer than 3 rounds ran alone on this machine")
        assert conclusion.hint == "repeat the measurement while no other run uses this machine"

"""What the store keeps of a run's directory."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.errors import HidlError
from hidl_cli.mpi import Library
from hidl_cli.record import Run
from hidl_cli.store.extract import record_of, samples_of, series_of
from tests.store.run_directories import ended, judged, of_another_version, plan


def test_each_metric_of_each_step_is_a_sample(tmp_path: Path) -> None:
    run = judged(tmp_path, [1.0, 1.9, 1.1, 2.0], sizes=(1, 2), repetitions=2)
    found = [(s.ranks, s.repetition, s.metric, s.value, s.unit, s.better) for s in samples_of(run)]
    assert found == [
        (1, 1, "rate", 1.0, "items/s", "higher"),
        (2, 1, "rate", 1.9, "items/s", "higher"),
        (1, 2, "rate", 1.1, "items/s", "higher"),
        (2, 2, "rate", 2.0, "items/s", "higher"),
    ]


def test_a_sample_says_where_it_comes_from(tmp_path: Path) -> None:
    run = judged(
        tmp_path, hosts=("n1", "n2"), tuning={"MPIR_CVAR_X": "1"}, lock="abc", batch=8, created="2026-01-02T03:04:05Z"
    )
    (sample,) = samples_of(run)
    assert (sample.run, sample.created, sample.verdict) == (run.id, "2026-01-02T03:04:05Z", "pass")
    assert (sample.site, sample.partition, sample.workload, sample.parameters) == ("machine", "p", "toy", {"batch": 8})
    assert (sample.stack, sample.lock, sample.launcher, sample.mpi) == ("mpi", "abc", "mpiexec", "mpich 4.3.0")
    assert (sample.hosts, sample.tuning) == (("n1",), {"MPIR_CVAR_X": "1"})


def test_a_metric_with_a_value_for_each_rank_has_a_sample_for_each(tmp_path: Path) -> None:
    loss = {"value": 0.5, "unit": "1", "samples": [0.5, 0.25]}
    found = [(s.rank, s.value) for s in samples_of(judged(tmp_path, metrics={"loss": loss}))]
    assert found == [(None, 0.5), (0, 0.5), (1, 0.25)]


def test_the_samples_that_a_value_was_made_from_are_not_ranks(tmp_path: Path) -> None:
    rate = {"value": 2.0, "unit": "items/s", "samples": [1.0, 3.0]}
    assert [s.rank for s in samples_of(judged(tmp_path, metrics={"rate": rate}, sizes=(2,)))] == [None]


@pytest.mark.parametrize("value", ["9f2c", None, True, float("nan"), float("inf"), 10**400, [1.0]])
def test_what_is_not_a_finite_number_is_left_out(tmp_path: Path, value: Any) -> None:
    odd = {"value": value, "unit": "1", "samples": []}
    rate = {"value": 2.0, "unit": "items/s", "samples": []}
    assert [s.metric for s in samples_of(judged(tmp_path, metrics={"odd": odd, "rate": rate}))] == ["rate"]


def test_a_metric_that_nobody_promised_is_kept(tmp_path: Path) -> None:
    (sample,) = samples_of(judged(tmp_path, metrics={"extra": {"value": 1, "unit": None, "samples": []}}))
    assert (sample.metric, sample.unit, sample.better) == ("extra", "", None)


def test_steps_beyond_the_plan_are_kept(tmp_path: Path) -> None:
    run = judged(tmp_path, sizes=(1, 2))
    document = run.document("metrics")
    assert document is not None
    document["steps"] += [step | {"repetition": 2} for step in document["steps"]]
    run.write("metrics", document)
    assert [(s.ranks, s.repetition) for s in samples_of(run)] == [(1, 1), (2, 1), (1, 2), (2, 2)]


def test_a_step_that_names_its_hosts_ran_on_those(tmp_path: Path) -> None:
    run = judged(tmp_path, hosts=("n1", "n2"))
    document = run.document("metrics")
    assert document is not None
    document["steps"][0]["hosts"] = ["n2"]
    run.write("metrics", document)
    assert samples_of(run)[0].hosts == ("n2",)


def test_a_run_without_metrics_has_a_verdict_and_no_samples(tmp_path: Path) -> None:
    run = judged(tmp_path, verdict="fail")
    (run.directory / "metrics.json").unlink()
    record = record_of(run)
    assert (record.verdict, record.samples) == ("fail", ())


@pytest.mark.parametrize(
    "metrics",
    ['{"steps": [{}]}', '{"steps": 3}', '{"steps": [{"ranks": 77, "repetition": 1, "metrics": {}}]}', "{", "\xff"],
)
def test_invalid_metrics_are_reported(tmp_path: Path, metrics: str) -> None:
    run = judged(tmp_path)
    (run.directory / "metrics.json").write_text(metrics, encoding="latin-1")
    with pytest.raises(HidlError, match=run.id):
        samples_of(run)


def test_text_that_is_not_a_text_is_reported(tmp_path: Path) -> None:
    run = judged(tmp_path)
    text = (run.directory / "metrics.json").read_text().replace('"rate"', '"\\ud800"')
    (run.directory / "metrics.json").write_text(text)
    with pytest.raises(HidlError, match=run.id):
        samples_of(run)


def test_a_run_of_another_version_is_reported(tmp_path: Path) -> None:
    of_another_version(tmp_path, "x")
    with pytest.raises(HidlError, match="not a run directory of this version of hidl"):
        samples_of(Run(tmp_path / "x"))


def test_nothing_is_written(tmp_path: Path) -> None:
    run = judged(tmp_path)
    before = subprocess.check_output(["ls", "-lR", "--full-time", tmp_path])
    samples_of(run)
    assert subprocess.check_output(["ls", "-lR", "--full-time", tmp_path]) == before


SAME = {"site": "a", "batch": 8}


@pytest.mark.parametrize("change", [{"lock": "other"}, {"tuning": {"A": "1"}}, {"run": "x"}, {"created": "2020-01-01"}])
def test_a_series_goes_on_over_what_changes_from_night_to_night(change: dict[str, Any]) -> None:
    one, other = plan(**SAME), plan(**SAME | change)
    assert series_of(one, one.steps[0]) == series_of(other, other.steps[0])


def test_a_series_goes_on_with_a_new_version_of_its_mpi() -> None:
    one = plan()
    other = replace(one, mpi=Library("mpi", "mpich", "5.0.0", prefix="/elsewhere"))
    assert series_of(one, one.steps[0]) == series_of(other, other.steps[0])


PLACES = {"type": "choice", "choices": ["H-H", "D-D"], "default": "H-H", "words": {"H-H": [], "D-D": ["-d", "cuda"]}}


def test_a_series_goes_on_with_a_choice_that_adds_no_words_to_the_command() -> None:
    before, same, other = plan(**SAME), *(plan(**SAME, known={"places": PLACES}, places=at) for at in ("H-H", "D-D"))
    assert series_of(before, before.steps[0]) == series_of(same, same.steps[0])
    assert series_of(before, before.steps[0]) != series_of(other, other.steps[0])


@pytest.mark.parametrize("change", [{"site": "b"}, {"batch": 16}, {"workload": "other"}, {"sizes": (2,)}, {"more": 1}])
def test_another_series_is_what_cannot_be_compared(change: dict[str, Any]) -> None:
    one, other = plan(**SAME), plan(**SAME | change)
    assert series_of(one, one.steps[0]) != series_of(other, other.steps[0])


@pytest.mark.parametrize(
    "change", [{"partition": None}, {"launcher": "srun"}, {"stack": "omb"}, {"mpi": Library("mpi", "openmpi")}]
)
def test_so_is_another_partition_launcher_stack_or_mpi(change: dict[str, Any]) -> None:
    one = plan()
    other = replace(one, **change)
    assert series_of(one, one.steps[0]) != series_of(other, other.steps[0])


def test_copies_at_once_are_another_series_than_one_alone() -> None:
    one = plan()
    assert series_of(one, one.steps[0]) != series_of(one, replace(one.steps[0], copies=4))


def test_a_step_beside_another_run_is_another_series_than_one_alone(tmp_path: Path) -> None:
    run = judged(tmp_path)
    (alone,) = {sample.series for sample in samples_of(run)}
    document = run.document("metrics")
    assert document is not None
    document["steps"][0]["disturbed"] = True
    run.write("metrics", document)

    (sample,) = samples_of(run)
    assert (sample.series, sample.is_disturbed) == (f"disturbed-{alone}", True)


def test_no_value_of_the_environment_is_kept(tmp_path: Path) -> None:
    run = judged(tmp_path)
    document = json.loads((run.directory / "plan.json").read_text())
    document["environment"]["TOKEN"] = "a-secret"
    (run.directory / "plan.json").write_text(json.dumps(document))
    assert "a-secret" not in repr(record_of(run))


def test_a_study_has_the_efficiency_of_its_largest_step(tmp_path: Path) -> None:
    run = judged(tmp_path)
    steps = [{"efficiency": 0.9}, {"efficiency": 0.8}]
    run.write("verdict", {"verdict": "pass", "reason": "", "study": {"steps": steps}})
    assert record_of(run).efficiency == 0.8


def test_a_run_that_ended_on_no_host_has_none(tmp_path: Path) -> None:
    run = judged(tmp_path)
    ended(run, "COMPLETED", hosts=())
    assert samples_of(run)[0].hosts == ()

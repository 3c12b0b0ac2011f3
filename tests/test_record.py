"""Run directories are found by name, by part of it, or by place."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.errors import HidlError, UsageError
from hidl_cli.plan.launch_plan import plan_of, readable
from hidl_cli.record import Run, State, Status, all_runs, create, find, job_id


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("20260101-000000-toy-aaaa", "20260102-000000-toy-bbbb", "20260102-000000-toy-bbcc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("{}")
    (tmp_path / "no run").mkdir()
    return tmp_path


def test_the_newest_run_comes_first_and_other_directories_not_at_all(root: Path) -> None:
    assert [run.id[-4:] for run in all_runs(root)] == ["bbcc", "bbbb", "aaaa"]


@pytest.mark.parametrize("name", ["aaaa", "20260101", "20260101-000000-toy-aaaa"])
def test_a_run_is_known_by_either_end_of_its_id(root: Path, name: str) -> None:
    assert find(name, root).id == "20260101-000000-toy-aaaa"


@pytest.mark.parametrize("name", [None, "last"])
def test_no_name_is_the_newest(root: Path, name: str | None) -> None:
    assert find(name, root).id.endswith("bbcc")


def test_a_directory_is_a_name(root: Path) -> None:
    directory = root / "20260102-000000-toy-bbbb"
    assert find(str(directory), root / "elsewhere") == Run(directory)


def test_a_name_that_fits_several_is_reported_with_them(root: Path) -> None:
    with pytest.raises(UsageError, match=r"2 runs match '20260102': .*bbcc, .*bbbb"):
        find("20260102", root)


def test_no_run_at_all_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no runs yet"):
        find(None, tmp_path)


def test_a_run_that_said_nothing_is_pending(root: Path) -> None:
    assert find("aaaa", root).status().state is State.PENDING


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"state": "DREAMING"}'])
def test_a_broken_status_or_plan_is_reported(root: Path, content: str) -> None:
    run = find("aaaa", root)
    (run.directory / "status.json").write_text(content)
    with pytest.raises(HidlError, match=r"cannot read .*status\.json"):
        run.status()
    with pytest.raises(HidlError, match="not a run directory of this version of hidl"):
        plan_of(run)


def test_a_run_of_another_version_is_left_out_where_all_are_looked_at(root: Path) -> None:
    assert list(readable(all_runs(root))) == []


@pytest.mark.parametrize(
    ("job", "said", "shown"),
    [
        ({"id": "7"}, None, "7"),
        ({"id": None}, "8", "8"),  # hidl was killed before it knew it
        ({"id": "7"}, "8", "8"),  # submitted again by hand
        ({"id": None}, None, None),
        ({"pid": 5}, "5", None),  # on this host
        ({}, None, None),
    ],
)
def test_the_number_of_a_job(job: dict[str, object], said: str | None, shown: str | None) -> None:
    assert job_id(job, Status(State.RUNNING, job=said)) == shown


@pytest.mark.parametrize(
    ("plan", "script"),
    [
        ({"environment": {"WANDB_API_KEY": "hunter2"}}, "#!/bin/bash\n"),
        ({}, "#!/bin/bash\nexport WANDB_API_KEY=hunter2\n"),
    ],
)
def test_a_directory_with_a_secret_is_its_owners_alone(tmp_path: Path, plan: dict[str, Any], script: str) -> None:
    assert stat.S_IMODE(create("a", plan, script, root=tmp_path).directory.stat().st_mode) == 0o700


def test_a_directory_without_secrets_is_readable_as_usual(tmp_path: Path) -> None:
    run = create(
        "a", {"environment": {"OMP_NUM_THREADS": "4"}}, "#!/bin/bash\nexport OMP_NUM_THREADS=4\n", root=tmp_path
    )
    (tmp_path / "b").mkdir()
    assert run.directory.stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_job_that_recorded_its_end_twice_is_one_attempt(tmp_path: Path) -> None:
    """Its submission of the next job took time, or it was requeued after it had ended."""
    keys = {"state": "FAILED", "step": 1, "steps": 1, "exit_status": 9, "hosts": ["node1"]}
    times = [(10.0, None), (20.0, 25.0), (20.0, 27.0), (20.0, None), (None, None), (None, None)]
    lines = [json.dumps(keys | {"started": started, "ended": ended}) for started, ended in times]
    (tmp_path / "attempts.jsonl").write_bytes("\n".join([*lines, lines[0][:30]]).encode() + b"\xff")
    found = [(each.started, each.ended) for each in Run(tmp_path).attempts()]
    assert found == [(10.0, None), (20.0, 27.0), (None, None), (None, None)]

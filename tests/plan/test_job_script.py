"""The job script: held by a golden file, harmless whatever the values are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from hidl_cli.launch.launchers.contract import Launch
from hidl_cli.launch.placement import Placement
from hidl_cli.plan.job_script import of_scheduler
from hidl_cli.templates import render_script
from tests.plan import golden_scripts
from tests.waiting import until

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


VALUES = {
    "local_limit": 0,
    **of_scheduler("local"),
    "as_root": False,
    "header": [],
    "modules": [],
    "mpi": None,
    "environment": {"OMP_NUM_THREADS": "1"},
    "origins": {},
    "preloaded_by": [],
    "until_settled": False,
    "reader": (),
    "launches": True,
    "keeps_output": True,
    "copies_output": True,
    "timed": True,
    "meets": True,
    "cores_per_rank": 1,
    "node_memory": 2**30,
}


def script(
    argv: list[str],
    *,
    run: str = "run-1",
    title: str = "toy on local",
    activate: str = "/dev/null",
    local_limit: int = 0,
) -> str:
    one, two = Placement(1, 1, 1, 1, bind=True), Placement(1, 2, 2, 1, bind=True)
    plain = {"preflight": None, "copies": 0, "parser": None, "patterns": (), "timed": False}
    step = {"title": "1 rank", "placement": one, "launch": Launch(tuple(argv))} | plain | {"patterns": ("found",)}
    checked = (
        step
        | plain
        | {
            "title": "2 ranks",
            "placement": two,
            "preflight": Launch(("check", "it")),
            "parser": "omb",
            "timed": True,
        }
    )
    own = {"run": run, "title": title, "activate": activate, "local_limit": local_limit}
    return render_script("job.sh.j2", VALUES | own | {"steps": [step, checked]})


def test_the_script_is_the_golden_one() -> None:
    assert script(["/prefix/bin/mpiexec", "-n", "1", "prog", "--note=a b"], local_limit=600) == golden_scripts.read(
        "toy"
    )


@settings(max_examples=50, deadline=None)
@given(TEXT, TEXT, TEXT, st.lists(TEXT, min_size=1, max_size=3))
def test_no_value_changes_what_the_script_runs(run: str, title: str, activate: str, argv: list[str]) -> None:
    rendered = script(argv, run=run, title=title, activate=activate)
    assert subprocess.run(["bash", "-n"], input=rendered.encode(), capture_output=True, check=False).returncode == 0
    steps = [line for line in rendered.splitlines() if line.startswith("begin_step ")]
    assert len(steps) == 2


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render_script("job.sh.j2", {"run": "x"})


def test_an_invalid_variable_name_is_an_error() -> None:
    values = VALUES | {"run": "r", "title": "t", "activate": "a", "steps": []}
    values |= {"environment": {"A=1; touch /tmp/x; B": "1"}}
    with pytest.raises(ValueError, match="not a name of a shell variable"):
        render_script("job.sh.j2", values)


def test_an_error_in_the_script_itself_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(script(["true"], activate="/no/such/activation"))
    assert subprocess.run(["bash", file], capture_output=True, check=False).returncode != 0
    assert '"state": "FAILED"' in (tmp_path / "status.json").read_text()


def test_a_launch_that_the_signal_ends_before_the_script_is_told_was_cancelled(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(script(["sh", "-c", "echo TIMEOUT > reason; exit 255"]))
    assert subprocess.run(["bash", file], capture_output=True, check=False).returncode == 143
    assert '"state": "TIMEOUT", "exit_status": 143' in (tmp_path / "status.json").read_text()


def test_a_launch_that_failed_before_the_run_was_cancelled_has_failed(tmp_path: Path) -> None:
    """The signal comes while the script writes down how the launch ended."""
    file, date, begun, asked, go_on = (tmp_path / name for name in ("job.sh", "date", "begun", "asked", "go-on"))
    waits = f"[ ! -e {begun} ] || {{ touch {asked}; until [ -e {go_on} ]; do sleep 0.01; done; }}"
    date.write_text(f'#!/bin/sh\n{waits}\nexec /bin/date "$@"\n')
    date.chmod(0o755)
    file.write_text(script(["sh", "-c", f"touch {begun}; exit 3"]))
    job = subprocess.Popen(["bash", file], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    until(asked.exists)
    (tmp_path / "reason").write_text("CANCELLED")
    job.terminate()
    go_on.touch()
    assert job.wait() == 3
    assert '"state": "FAILED", "exit_status": 3' in (tmp_path / "status.json").read_text()

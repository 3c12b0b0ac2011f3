"""The shell functions that start ranks, run by bash, with a stand-in for mpirun_rsh that quotes as little as it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.launchers.mpirun_rsh import MpirunRsh
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Library
from tests.conftest import SHELLCHECK
from tests.launch import steps
from tests.launch.steps import PROGRAMS
from tests.waiting import patience, until

pytestmark = pytest.mark.real

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NASTY = "a b;touch x;'$HOME' \"`id`\" \\ \n*?[a] ~ {1,2} # ! & | < > ( ) \u00e9\u4e2d\U0001f600\n"
TELLS = (sys.executable, str(PROGRAMS / "tells.py"))


def mpirun_rsh(*arguments: str, forward: tuple[str, ...] = (), **environment: str) -> Launch:
    request = Request(
        placement=Placement(1, 2, 2, 1, bind=True),
        program=(*TELLS, *arguments),
        mpi=Library("mv2", "mvapich2"),
        environment=environment,
        forward=("TELLS", "PATH", "STATUS", "SIGNAL", "FAILING_RANK", "SAYS", "HIDL_WORLD_SIZE", *forward),
    )
    return MpirunRsh().launch(request)


def run(launch: Launch, directory: Path, **exports: str) -> steps.Ended:
    return steps.run(steps.script(launch, 2, exports={"TELLS": str(directory), **exports}), directory)


def told(directory: Path, rank: int) -> dict[str, dict[str, str] | list[str]]:
    found: dict[str, dict[str, str] | list[str]] = json.loads((directory / f"{rank}.json").read_text(encoding="utf-8"))
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT, TEXT, TEXT)
@example(NASTY, NASTY, NASTY)
@example("", "", "")
@example("'", "'\n", "\\'")
def test_values_and_arguments_reach_every_rank_unchanged(
    tmp_path_factory: pytest.TempPathFactory, fixed: str, forwarded: str, argument: str
) -> None:
    directory = tmp_path_factory.mktemp("step")
    ended = run(mpirun_rsh(argument, "-n", forward=("LATER",), FIXED=fixed), directory, LATER=forwarded)
    assert ended.state == "COMPLETED", ended.stderr
    for rank in (0, 1):
        environment = told(directory, rank)["environment"]
        assert isinstance(environment, dict)
        assert (environment["FIXED"], environment["LATER"]) == (fixed, forwarded)
        assert told(directory, rank)["arguments"] == [argument, "-n"]


def test_a_name_that_is_not_set_is_not_forwarded(tmp_path: Path) -> None:
    run(mpirun_rsh(forward=("NOT_SET",)), tmp_path)
    assert "NOT_SET" not in told(tmp_path, 1)["environment"]


def test_ranks_get_the_expected_world_size(tmp_path: Path) -> None:
    run(mpirun_rsh(), tmp_path)
    environment = told(tmp_path, 1)["environment"]
    assert isinstance(environment, dict)
    assert environment["HIDL_WORLD_SIZE"] == "2"


def test_a_program_whose_path_holds_an_equals_sign_is_not_a_variable(tmp_path: Path) -> None:
    program = tmp_path / "a=b"
    program.write_text('#!/bin/sh\nprintf "%s" "$1" > "$TELLS/said.$MV2_COMM_WORLD_RANK"\n')
    program.chmod(0o755)
    placement = Placement(1, 1, 1, 1, bind=True)
    request = Request(placement, (str(program), "it's"), Library("mv2", "mvapich2"), forward=("TELLS",))
    run(MpirunRsh().launch(request), tmp_path)
    assert (tmp_path / "said.0").read_text() == "it's"


@pytest.mark.parametrize(
    ("how", "status"),
    [({"STATUS": "7"}, 7), ({"STATUS": "86"}, 86), ({"SIGNAL": "11"}, 139), ({"SIGNAL": "9"}, 137), ({}, 0)],
    ids=str,
)
def test_the_status_is_that_of_the_rank_that_failed(tmp_path: Path, how: dict[str, str], status: int) -> None:
    ended = run(mpirun_rsh(), tmp_path, **how)
    assert (ended.state, ended.status) == ("FAILED" if status else "COMPLETED", status)


def test_a_job_out_of_time_ends_with_124(tmp_path: Path) -> None:
    sleeping = replace(mpirun_rsh(), rest=("sleep", "60"))
    assert run(sleeping, tmp_path, MPIEXEC_TIMEOUT="1").status == 124


def test_a_launcher_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    ended = run(Launch(("/no/such/launcher",), status_on_stderr=True), tmp_path)
    assert (ended.status, "/no/such/launcher" in ended.stderr) == (127, True)


def test_stderr_passes_through_unchanged(tmp_path: Path) -> None:
    said = "no end of line, \u00e9, and \033[1mcolour"
    ended = run(mpirun_rsh(), tmp_path, SAYS=said, STATUS="3")
    assert said in ended.stderr
    assert ended.status == 3


def test_all_of_a_long_stderr_arrives(tmp_path: Path) -> None:
    launch = Launch(("bash", "-c", "seq 200000 >&2; exit 1"), status_on_stderr=True)
    ended = run(launch, tmp_path)
    assert ended.stderr == "".join(f"{number}\n" for number in range(1, 200001))


def test_without_a_copy_of_stderr_the_launchers_status_holds(tmp_path: Path) -> None:
    (tmp_path / "steps" / "1" / "launcher.stderr").mkdir(parents=True)
    launch = Launch(("bash", "-c", "seq 20000 >&2; exit 1"), status_on_stderr=True)
    ended = run(launch, tmp_path)
    assert "".join(f"{number}\n" for number in range(1, 20001)) in ended.stderr
    assert (ended.state, ended.status) == ("FAILED", 1)


def test_stderr_passes_through_at_once(tmp_path: Path) -> None:
    launch = Launch(("bash", "-c", "echo here >&2; read -r < more; exit 1"), status_on_stderr=True)
    os.mkfifo(tmp_path / "more")
    file = tmp_path / "job.sh"
    file.write_text(steps.script(launch, 1, exports={}))
    with subprocess.Popen(["bash", file], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        assert job.stderr.readline() == "here\n"  # while the launcher waits
        (tmp_path / "more").write_text("\n")
    assert job.returncode == 1


def test_a_signal_ends_the_launcher_and_keeps_its_output(tmp_path: Path) -> None:
    sleeping = replace(mpirun_rsh(), rest=("sh", "-c", "echo $$ > pid.$MV2_COMM_WORLD_RANK; exec sleep 60"))
    file = tmp_path / "job.sh"
    file.write_text(steps.script(sleeping, 1, exports={"TELLS": str(tmp_path)}))
    environment = {"PATH": f"{PROGRAMS}:/usr/bin:/bin", "HOME": str(tmp_path)}
    job = subprocess.Popen(
        ["bash", file], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until((tmp_path / "pid.0").exists)
    until((tmp_path / "pid.1").exists)
    os.kill(job.pid, signal.SIGTERM)
    _, stderr = job.communicate(timeout=patience(300))
    assert "Caught signal 15, killing job" in stderr
    assert (tmp_path / "ended").read_text() == "CANCELLED 143"


def test_a_signal_to_the_whole_job_keeps_the_output(tmp_path: Path) -> None:
    launch = Launch(
        ("bash", "-c", "trap 'sleep 0.2; echo last words >&2; exit 1' TERM; touch pid; while :; do sleep 0.05; done"),
        status_on_stderr=True,
    )
    file = tmp_path / "job.sh"
    file.write_text(steps.script(launch, 1, exports={}))
    job = subprocess.Popen(["bash", file], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until((tmp_path / "pid").exists)
    os.killpg(job.pid, signal.SIGTERM)
    _, stderr = job.communicate(timeout=patience(300))
    assert "last words" in stderr


@pytest.mark.parametrize("special", [" ", ";", "$x", "'", '"', "\\", "&", "*", "\n", "`", "[a]"])
def test_a_directory_that_mpirun_rsh_would_garble_is_refused(tmp_path: Path, special: str) -> None:
    directory = tmp_path / f"a{special}b"
    directory.mkdir()
    ended = run(mpirun_rsh(), directory)
    assert ended.state == "FAILED"
    assert "would take this value of PWD apart" in ended.stderr


def test_a_library_path_that_mpirun_rsh_would_garble_is_refused(tmp_path: Path) -> None:
    ended = run(mpirun_rsh(), tmp_path, LD_LIBRARY_PATH="/a b")
    assert "would take this value of LD_LIBRARY_PATH apart" in ended.stderr


@pytest.mark.parametrize("plain", ["/a/b-c_d.e+f:/g@h,i=j%k", "/\u00e9/\u4e2d", ""])
def test_usual_library_paths_are_accepted(tmp_path: Path, plain: str) -> None:
    assert run(mpirun_rsh(), tmp_path, LD_LIBRARY_PATH=plain).state == "COMPLETED"


def test_an_option_forwards_only_names(tmp_path: Path) -> None:
    (tmp_path / "list").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "list").chmod(0o755)
    launch = Launch((str(tmp_path / "list"), "first"), ("SET", "NOT_SET"), ("last",), forward_option="-x")
    assert run(launch, tmp_path, SET="a b").stdout.split("\n") == ["first", "-x", "SET", "last", ""]


def test_the_functions_pass_shellcheck(tmp_path: Path) -> None:
    file = tmp_path / "functions.sh"
    file.write_text("#!/usr/bin/env bash\n" + steps.functions())
    completed = subprocess.run([SHELLCHECK, file], capture_output=True, text=True, check=False)
    assert completed.stdout == ""

"""Runs from Python: the same plans as the command line's, real runs, the same errors."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hidl_cli.api as hidl
from hidl_cli.commands.app import command_line
from tests.conftest import REPOSITORY, Hidl
from tests.waiting import patience

OWN = ["python", "show.py"]

#: Options of the command line, and the same ones in Python.
PLANS: list[tuple[list[str], dict[str, Any]]] = [
    (["mpi-sanity"], {"workload": "mpi-sanity"}),
    (["mpi-sanity", "--nodes", "3", "--site", "frontera", "-A", "p1"],
     {"workload": "mpi-sanity", "nodes": 3, "site": "frontera", "account": "p1"}),
    (["resnet50", "--site", "frontera", "--scale", "1,2,4", "--repeat", "3", "--target", "0.9", "-A", "p1"],
     {"workload": "resnet50", "site": "frontera", "scale": [1, 2, 4], "repeat": 3, "target": 0.9, "account": "p1"}),
    (["resnet50", "--scale", "ranks=1,2", "--until-settled", "--baseline", "single", "--precision", "5%"],
     {"workload": "resnet50", "scale": "ranks=1,2", "until_settled": True, "baseline": "single", "precision": 0.05}),
    (["resnet50", "--set", "batch=4", "--set", "image_size=64", "--ranks-per-node", "2", "--threads", "1"],
     {"workload": "resnet50", "parameters": {"batch": 4, "image_size": 64}, "ranks_per_node": 2, "threads": 1}),
    (["resnet50", "--matrix", "batch=4,8", "precision=float32,bfloat16"],
     {"workload": "resnet50", "matrix": {"batch": [4, 8], "precision": ["float32", "bfloat16"]}}),
    (["osu-allreduce", "--suite", "both", "--ranks-per-node", "2"],
     {"workload": "osu-allreduce", "suite": "both", "ranks_per_node": 2}),
    (["osu-allreduce", "--suite", "python", "--ranks-per-node", "2", "--stack", "omb"],
     {"workload": "osu-allreduce", "suite": "python", "ranks_per_node": 2, "stack": "omb"}),
    (["mpi-sanity", "--tune", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=auto", "--mpi", "stack", "-t", "10:00"],
     {"workload": "mpi-sanity", "tuning": {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "auto"}, "mpi": "stack",
      "time": 600.0}),
    (["--nodes", "1", "--scaling", "weak", "--scale", "1,2", "--", *OWN],
     {"command": OWN, "scaling": "weak", "scale": [1, 2]}),
    (["--no-mpi", "--ranks-per-node", "2", "--metric", "rate[unit=items/s]=([0-9.]+)/s", "--", *OWN],
     {"command": OWN, "uses_mpi": False, "ranks_per_node": 2, "metrics": {"rate[unit=items/s]": "([0-9.]+)/s"}}),
    (["--matrix", "lr=0.1,0.2", "--set", "seed=1", "--", *OWN, "--lr={lr}", "{seed}"],
     {"command": [*OWN, "--lr={lr}", "{seed}"], "matrix": {"lr": [0.1, 0.2]}, "parameters": {"seed": 1}}),
    (["kmeans", "--site", "frontera", "-p", "normal", "-q", "high", "-A", "a", "--launcher", "ibrun", "--nodes", "4"],
     {"workload": "kmeans", "site": "frontera", "partition": "normal", "qos": "high", "account": "a",
      "launcher": "ibrun", "nodes": 4}),
    (["mpi-sanity", "--hosts", "node[1-2]", "--ranks-per-node", "2", "--share-hosts"],
     {"workload": "mpi-sanity", "hosts": ["node1", "node2"], "ranks_per_node": 2, "share_hosts": True}),
    (["--env", sys.prefix, "--no-mpi", "--", *OWN], {"env": sys.prefix, "uses_mpi": False, "command": OWN}),
    (["kmeans", "--hosts", "a,b,c", "--scale", "nodes=1,2"],
     {"workload": "kmeans", "hosts": "a,b,c", "scale": "nodes=1,2"}),
]  # fmt: skip


@pytest.fixture
def here(hidl_with: Callable[..., Hidl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """hidl's directories in this process: the mpi stack is installed, and there are no runs."""
    for name, value in hidl_with("mpi").environment.items():
        if name.startswith("XDG_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("HIDL_SYSTEM_CONFIG", str(tmp_path / "etc"))
    place = tmp_path / "my project"
    place.mkdir()
    monkeypatch.chdir(place)
    (place / "show.py").write_text("import sys, time\nprint('rate 12.5/s', *sys.argv[1:])\n")
    (place / "sleep.py").write_text("import time\nprint('asleep', flush=True)\ntime.sleep(600)\n")
    return place


@pytest.mark.parametrize(("words", "options"), PLANS, ids=lambda each: " ".join(each) if isinstance(each, list) else "")
def test_python_and_the_command_line_give_the_same_plan(
    words: list[str], options: dict[str, Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line("run")(["run", "--dry-run", "--json", "--no-check", *words], standalone_mode=False)
    typed = capsys.readouterr().out
    planned = hidl.plan(**options).to_json()
    assert capsys.readouterr() == ("", "")
    assert same_moment(json.dumps(planned, indent=2, ensure_ascii=False) + "\n") == same_moment(typed)


def test_a_run_within_a_job_says_that_it_does_not_use_its_nodes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    planned = hidl.plan("mpi-sanity", site="frontera", account="p1", nodes=3)
    (warning,) = (each for each in planned.warnings if "job" in each)
    assert "the run is a separate job" in warning
    assert "4711" in warning
    assert not any("4711" in each for each in hidl.plan("mpi-sanity").warnings), "the site local has no jobs"


def same_moment(text: str) -> str:
    """``text`` with the id of the run, which is random, and the time of its plan as constants."""
    plan = json.loads(text)["plan"]
    return text.replace(plan["run"], "RUN").replace(plan["created"], "NOW")


def test_a_run_has_metrics_a_verdict_and_logs(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[hidl.State] = []
    run = hidl.run("mpi-sanity", ranks_per_node=2)
    assert run.verdict is None
    assert run.wait(300, progress=lambda status: seen.append(status.state)) is run
    assert seen[-1] is hidl.State.COMPLETED is run.state
    assert run.verdict is not None
    assert run.verdict.exit_code == hidl.ExitCode.OK
    assert [step.ranks for step in run.steps] == [2]
    assert run.metrics
    assert run.plan.document["run"] == run.id
    assert [each.id for each in hidl.runs()] == [run.id]
    assert hidl.find() == hidl.find(run.id) == run
    assert run.to_json()["run"] == run.id
    assert capfd.readouterr() == ("", ""), "nothing is printed"


def test_a_program_of_ones_own_with_a_metric_and_a_study(here: Path) -> None:
    run = hidl.run(
        command=OWN, uses_mpi=False, scale=[1, 2], repeat=2, metrics={"rate[unit=items/s]": "rate ([0-9.]+)/s"}
    ).wait()
    assert run.metrics["rate"] == hidl.Metric("rate", 12.5, "items/s", (12.5, 12.5))
    assert run.verdict is not None
    assert run.verdict.verdict in ("pass", "fail", "inconclusive")
    assert run.verdict.study is not None
    assert len(run.steps) == 4
    assert run.logs().count("rate 12.5/s") == 6
    assert "rate 12.5 items/s" in run._repr_html_()
    assert run.id in repr(run)


def test_a_matrix_has_metrics_for_each_step(here: Path) -> None:
    run = hidl.run(command=[*OWN, "{lr}"], uses_mpi=False, matrix={"lr": [0.1, 0.2]}, repeat=1).wait()
    assert [dict(step.parameters) for step in run.steps] == [{"lr": "0.1"}, {"lr": "0.2"}]
    with pytest.raises(hidl.UsageError) as raised:
        _ = run.metrics
    assert raised.value.hint == "use run.steps"


def test_wait_times_out_and_the_run_goes_on_until_it_is_cancelled(here: Path) -> None:
    run = hidl.run(command=["python", "sleep.py"], uses_mpi=False)
    with pytest.raises(TimeoutError, match=run.id):
        run.wait(0.5)
    assert run.state in (hidl.State.PENDING, hidl.State.RUNNING)
    assert run.cancel().state is hidl.State.CANCELLED
    assert run.cancel().state is hidl.State.CANCELLED, "again: nothing happens"
    with pytest.raises(hidl.JobFailed) as raised:
        run.wait()
    assert (raised.value.exit_code, raised.value.hint) == (hidl.ExitCode.JOB_FAILED, "run it again")


def test_a_block_that_is_left_early_cancels_its_run(here: Path) -> None:
    with pytest.raises(ZeroDivisionError), hidl.run(command=["python", "sleep.py"], uses_mpi=False) as run:
        _ = 1 / 0
    assert run.state is hidl.State.CANCELLED


def test_an_interrupt_ends_the_waiting_and_not_the_run(here: Path) -> None:
    program = """
import _thread, threading
import hidl_cli.api as hidl
run = hidl.run(command=["python", "sleep.py"], uses_mpi=False)
threading.Timer(1, _thread.interrupt_main).start()
try:
    run.wait()
except KeyboardInterrupt:
    print(run.state.value in ("PENDING", "RUNNING"), run.cancel().state.value)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(120), check=False
    )
    assert (done.stdout, done.stderr) == ("True CANCELLED\n", "")


def test_threads_run_at_the_same_time(here: Path) -> None:
    def both(word: str) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return hidl.run(command=[*OWN, word], uses_mpi=False).wait(300).logs()

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(both, ["a", "b"])) == ["rate 12.5/s a\n", "rate 12.5/s b\n"]


def test_a_program_that_fails_raises_what_the_command_line_says(here: Path) -> None:
    run = hidl.run(command=["python", "-c", "raise SystemExit(3)"], uses_mpi=False)
    with pytest.raises(hidl.JobFailed, match=run.id):
        run.wait()
    assert "FAILED" in run._repr_html_()


def test_what_the_doctor_finds_is_an_error_with_the_findings(here: Path) -> None:
    with pytest.raises(hidl.MissingPrecondition) as raised:
        hidl.run(command=["no-such-program"])
    assert "HD012" in str(raised.value)
    assert "no-such-program" in str(raised.value)
    assert hidl.runs() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no workload or command given"),
        ({"workload": "kmeans", "command": OWN}, "cannot be combined"),
        ({"command": "python show.py"}, "must be a list"),
        ({"workload": "kmeans", "nodes": 0}, "invalid nodes 0"),
        ({"workload": "kmeans", "ranks_per_node": "2"}, "invalid ranks_per_node '2'"),
        ({"workload": "kmeans", "repeat": True}, "invalid repeat True"),
        ({"workload": "kmeans", "until_done": True, "max_node_hours": "1"}, "invalid max_node_hours '1'"),
        ({"workload": "kmeans", "until_done": True, "max_node_hours": -1}, "invalid max_node_hours -1"),
        ({"workload": "kmeans", "until_done": True, "max_cost": True}, "invalid max_cost True"),
        ({"workload": "kmeans", "target": 3}, "invalid target 3"),
        ({"workload": "kmeans", "target": "0.8"}, "invalid target '0.8'"),
        ({"workload": "kmeans", "until_done": True, "max_cost": -1}, "invalid max_cost -1: must be a finite number"),
        ({"workload": "kmeans", "scale": "1,2", "precision": 0}, "invalid precision 0"),
        ({"workload": "kmeans", "precision": 0.1}, "--precision requires --scale"),
        ({"workload": "kmeans", "time": 0}, "invalid time 0"),
        ({"workload": "kmeans", "time": "10 min"}, "invalid time '10 min'"),
        ({"workload": "kmeans", "uses_mpi": False}, "--no-mpi"),
        ({"command": OWN, "matrix": {"a": "bc"}}, "must be a list"),
        ({"command": OWN, "matrix": {"a": ["b,c", "d"]}}, "contains a comma"),
        ({"workload": "kmeanz"}, "unknown workload"),
        ({"workload": "kmeans", "site": "nowhere"}, "unknown site"),
        ({"workload": "kmeans", "scale": [1]}, "two or more"),
    ],
)
def test_misfits_are_usage_errors(options: dict[str, Any], message: str, config: Path) -> None:
    with pytest.raises(hidl.UsageError, match=message) as raised:
        hidl.plan(**options)
    assert raised.value.exit_code == hidl.ExitCode.USAGE
    assert raised.value.hint


def test_a_plan_shows_itself_and_escapes(here: Path) -> None:
    planned = hidl.plan(command=["python", "<b>.py"], uses_mpi=False)
    assert "&lt;b&gt;.py" in planned._repr_html_()
    assert "<b>" not in planned._repr_html_()
    assert repr(planned).startswith("<hidl.Plan of ")


def test_the_import_is_light() -> None:
    """No library that costs a tenth of a second, and none of the command line's."""
    program = "import sys, hidl_cli.api; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    heavy = {"typer", "click", "rich", "pydantic", "yaml", "jinja2", "matplotlib", "numpy", "subprocess"}
    assert heavy & set(done.stdout.split()) == set()


def test_all_is_what_the_module_offers() -> None:
    assert [name for name in hidl.__all__ if not hasattr(hidl, name)] == []
    assert sorted(hidl.__all__) == hidl.__all__

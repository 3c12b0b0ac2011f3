"""``hidl run`` on this machine, with real ranks: what it leaves behind, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.launch.options import clock
from hidl_cli.record import Run
from hidl_cli.store.store import Store
from tests.conftest import Hidl
from tests.tiers import deep
from tests.waiting import patience, until

PARAMETERS = {
    **{name: {"type": "str", "default": ""} for name in ("note", "go")},
    "sleep": {"type": "float", "default": 0},
    "efficiency": {"type": "float", "default": 1},
    **{name: {"type": "bool", "default": False} for name in ("fail", "differ", "silent")},
}
METRICS = {
    "rate": {"unit": "items/s", "better": "higher"},
    "checksum": {"unit": "sha256", "equal_on_all_ranks": True},
}
SCALING = {"metric": "rate", "kind": "weak", "target": 0.8}


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl with the mpi stack and the workload ``toy``."""
    hidl = hidl_with("mpi")
    hidl.add_workload("toy", "toy.py", parameters=PARAMETERS, metrics=METRICS, scaling=SCALING)
    return hidl


def only_run(hidl: Hidl) -> Path:
    (run,) = hidl.runs.iterdir()
    return run


def processes_of(run: Path) -> list[str]:
    """The processes that carry the run's id: what is left of it."""
    mark = f"HIDL_RUN_ID={run.name}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def wait_for_ranks(hidl: Hidl) -> Path:
    """Wait until the program of the only run has printed something."""
    return until(lambda: [log.parent for log in hidl.runs.glob("*/stdout.log") if "here" in log.read_text()])[0]


def test_a_run_leaves_plan_script_logs_status_metrics_and_verdict(hidl: Hidl) -> None:
    document = hidl.json("run", "toy", "--ranks-per-node", "2")
    run = only_run(hidl)
    assert document["schema"] == "hidl.run/1"
    assert document["state"] == "COMPLETED"
    assert document["steps"][0]["metrics"]["rate"]["value"] == pytest.approx(200, rel=2e-3)
    assert document["steps"][0]["metrics"]["checksum"]["samples"] == ["same", "same"]
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["site"], plan["stack"], plan["steps"][0]["placement"]["ranks"]) == ("local", "mpi", 2)
    assert json.loads((run / "status.json").read_text())["exit_status"] == 0
    assert (run / "hosts").read_text().strip() == os.uname().nodename
    assert "rank 1 of 2 here" in (run / "stdout.log").read_text()
    assert json.loads((run / "metrics.json").read_text())["steps"] == document["steps"]
    assert subprocess.run(["bash", "-n", run / "job.sh"], check=False).returncode == 0


def test_ranks_that_do_no_work_do_not_count_for_the_efficiency(hidl: Hidl) -> None:
    hidl.add_workload(
        "led", "toy.py", parameters=PARAMETERS, metrics=METRICS, scaling=SCALING | {"target": 0.3}, overhead_ranks=2
    )
    document = hidl.json("run", "led", "--scale", "3,4", "--repeat", "3")
    study = document["verdict"]["study"]
    assert ([step["n"] for step in study["steps"]], study["step_unit"]) == ([1, 2], "workers")
    assert study["steps"][1]["efficiency"] == pytest.approx(4 / 3 / 2, rel=2e-3)  # the toy's rate grows with all ranks


def test_a_run_of_ranks_none_of_which_works_is_refused(hidl: Hidl) -> None:
    hidl.add_workload("led", "toy.py", parameters=PARAMETERS, metrics=METRICS, overhead_ranks=2)
    refused = hidl("run", "led", "--ranks-per-node", "2")
    assert refused.returncode == 2
    assert "requires at least 3 ranks: 2 of them do not compute" in refused.stderr


@pytest.mark.parametrize("needs", [{"least_ranks": 2}, {"overhead_ranks": 1}], ids=lambda needs: next(iter(needs)))
def test_as_many_ranks_are_started_as_the_workload_needs(hidl: Hidl, needs: dict[str, int]) -> None:
    hidl.add_workload("pair", "toy.py", parameters=PARAMETERS, metrics=METRICS, **needs)
    assert hidl.json("run", "pair", "--dry-run")["plan"]["steps"][0]["placement"]["ranks_per_node"] == 2


def test_fewer_ranks_than_the_workload_needs_are_refused(hidl: Hidl) -> None:
    hidl.add_workload("pair", "toy.py", parameters=PARAMETERS, metrics=METRICS, least_ranks=2)
    refused = hidl("run", "pair", "--ranks-per-node", "1")
    assert refused.returncode == 2
    assert "workload pair requires at least 2 ranks" in refused.stderr


def test_the_script_runs_again_in_a_copy_of_the_directory(hidl: Hidl, tmp_path: Path) -> None:
    """A look at the copy leaves its job alone, and the first run's results are not taken for its own."""
    go = tmp_path / "go"
    go.touch()
    hidl.json("run", "toy", "--set", f"go={go}")
    go.unlink()
    copy = tmp_path / "a copy"
    subprocess.run(["cp", "-r", only_run(hidl), copy], check=True)
    with subprocess.Popen(["bash", copy / "job.sh"], stdout=subprocess.DEVNULL, cwd="/") as job:
        until(lambda: '"RUNNING"' in (copy / "status.json").read_text())
        looked = hidl.json("status", str(copy))
        assert (looked["state"], looked["steps"], looked["verdict"], job.poll()) == ("RUNNING", [], None, None)
        go.touch()
        assert job.wait(patience(60)) == 0
    again = hidl.json("status", str(copy))
    first = hidl.json("status", only_run(hidl).name)
    assert again["state"] == "COMPLETED"
    assert again["steps"] != first["steps"]  # measured again
    assert again["verdict"] is not None


def test_a_copy_that_runs_is_cancelled_without_the_first_run(hidl: Hidl, tmp_path: Path) -> None:
    hidl.json("run", "toy", "--no-wait", "--set", "sleep=60")
    run = wait_for_ranks(hidl)
    copy = tmp_path / run.name
    subprocess.run(["cp", "-r", run, copy], check=True)
    job = subprocess.Popen(["bash", copy / "job.sh"], stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: json.loads((copy / "job.json").read_text())["pid"] == job.pid)
    assert hidl("cancel", str(copy)).returncode == 0
    assert job.wait(patience(20)) != 0
    assert hidl.json("status", str(run))["state"] == "RUNNING"
    assert hidl("cancel", str(run)).returncode == 0
    assert processes_of(run) == []


@pytest.mark.parametrize(
    "note",
    [
        "a b; touch {} $(touch {})",
        deep("`touch {}`"),
        deep("' \" \\ $HOME"),
        "zwei\nZeilen\ttab",
        deep("-n"),
        deep("ü ☃ 𝄞"),
        deep("*"),
        deep("%s %d"),
        deep("=x="),
        "",
    ],
)
def test_a_value_reaches_the_program_unchanged_and_runs_nothing(hidl: Hidl, note: str, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    value = note.replace("{}", str(planted))
    hidl.json("run", "toy", "--set", f"note={value}")
    metrics = json.loads((only_run(hidl) / "steps" / "1" / "metrics.json").read_text())
    assert metrics["parameters"]["note"] == value
    assert not planted.exists()


def test_ranks_that_differ_fail_the_run(hidl: Hidl) -> None:
    document = hidl.json("run", "toy", "--ranks-per-node", "2", "--set", "differ=true", status=10)
    assert document["verdict"]["verdict"] == "fail"
    assert "differs between ranks" in document["verdict"]["reason"]


def test_a_missing_metric_fails_the_run(hidl: Hidl) -> None:
    completed = hidl("run", "toy", "--set", "silent=true")
    assert completed.returncode == 9
    assert "wrote no metrics" in completed.stderr
    assert json.loads((only_run(hidl) / "verdict.json").read_text())["verdict"] == "fail"


def test_a_failing_rank_fails_the_run_with_what_it_said(hidl: Hidl) -> None:
    completed = hidl("run", "toy", "--ranks-per-node", "2", "--set", "fail=true")
    assert completed.returncode == 8
    assert "the last rank fails on purpose" in completed.stderr
    assert hidl.json("status", "last")["state"] == "FAILED"


def test_singletons_are_distinguished_from_a_world(hidl: Hidl) -> None:
    hide_the_launcher = ["env", "-u", "PMI_FD", "-u", "PMI_RANK", "-u", "PMI_SIZE"]
    hidl.add_workload(
        "alone", "toy.py", program={"command": [*hide_the_launcher, "python", "-m", "hidl_workloads.world"]}
    )
    completed = hidl("run", "alone", "--ranks-per-node", "2")
    assert completed.returncode == 8
    assert "singleton" in completed.stderr


def test_an_interrupt_leaves_no_process_and_a_run_marked_interrupted(hidl: Hidl) -> None:
    command = hidl.start("run", "toy", "--ranks-per-node", "2", "--set", "sleep=60", stderr=subprocess.DEVNULL)
    run = wait_for_ranks(hidl)
    command.send_signal(signal.SIGINT)
    assert command.wait(patience(20)) == 130
    assert processes_of(run) == []
    assert json.loads((run / "status.json").read_text())["state"] == "INTERRUPTED"


@pytest.mark.deep
def test_ranks_that_ignore_the_signal_are_ended_too(hidl: Hidl) -> None:
    hidl.add_workload("deaf", "deaf.py")
    command = hidl.start("run", "deaf", "--ranks-per-node", "2", stderr=subprocess.DEVNULL)
    run = wait_for_ranks(hidl)
    command.send_signal(signal.SIGINT)
    assert command.wait(patience(30)) == 130
    assert processes_of(run) == []


def test_under_nohup_a_run_outlives_the_terminal(hidl: Hidl, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = subprocess.Popen(
        ["nohup", *hidl.command("run", "toy", "--set", f"go={go}")],
        env=hidl.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_ranks(hidl)
    command.send_signal(signal.SIGHUP)
    go.touch()
    assert command.wait(patience(60)) == 0


def test_a_run_goes_on_without_hidl_and_is_resumed(hidl: Hidl, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = hidl.start("run", "toy", "--set", f"go={go}", stderr=subprocess.DEVNULL)
    run = wait_for_ranks(hidl)
    command.kill()
    command.wait()
    assert hidl.json("status", run.name)["state"] == "RUNNING"
    go.touch()
    assert hidl.json("resume", run.name)["steps"][0]["metrics"]["rate"]["value"] == pytest.approx(100, rel=2e-3)


def test_a_run_in_the_background_is_cancelled(hidl: Hidl) -> None:
    run = hidl.json("run", "toy", "--no-wait", "--set", "sleep=60")["run"]
    directory = wait_for_ranks(hidl)
    assert hidl("cancel", run).returncode == 0
    assert hidl.json("status", run)["state"] == "CANCELLED"
    assert processes_of(directory) == []
    assert hidl("resume", run).returncode == 8


def test_a_killed_job_is_lost_and_leaves_no_ranks(hidl: Hidl) -> None:
    hidl.json("run", "toy", "--no-wait", "--set", "sleep=60")
    run = wait_for_ranks(hidl)
    os.kill(json.loads((run / "job.json").read_text())["pid"], signal.SIGKILL)
    assert hidl.json("status", run.name)["state"] == "LOST"
    assert processes_of(run) != []  # a look ends nothing
    assert hidl("cancel", run.name).returncode == 0
    assert processes_of(run) == []


def test_a_time_limit_ends_the_run(hidl: Hidl) -> None:
    completed = hidl("run", "toy", "--time", "0:01", "--set", "sleep=60")
    assert completed.returncode == 8
    assert "time limit" in completed.stderr
    assert processes_of(only_run(hidl)) == []


def study(hidl: Hidl, *arguments: str, status: int) -> Any:
    return hidl.json("run", "toy", "--scale", "1,2", "--repeat", "4", *arguments, status=status)


def test_a_study_interleaves_its_steps_in_one_job_and_passes(hidl: Hidl) -> None:
    document = study(hidl, "--set", "efficiency=0.9", status=0)
    assert [step["ranks"] for step in document["steps"]] == [1, 2] * 4
    assert [step["repetition"] for step in document["steps"]] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert document["verdict"]["verdict"] == "pass"
    assert document["verdict"]["study"]["steps"][-1]["efficiency"] == pytest.approx(0.9, rel=2e-3)


def test_a_study_below_its_target_fails(hidl: Hidl) -> None:
    assert study(hidl, "--set", "efficiency=0.5", status=10)["verdict"]["verdict"] == "fail"


def test_a_study_without_repetitions_is_inconclusive(hidl: Hidl) -> None:
    document = hidl.json("run", "toy", "--scale", "1,2", "--repeat", "1", status=11)
    assert document["verdict"]["verdict"] == "inconclusive"


@pytest.mark.deep
def test_a_study_that_spends_its_time_is_judged_by_the_repetitions_that_it_completed(hidl: Hidl) -> None:
    hidl.add_workload("hangs", "hangs_late.py", parameters=PARAMETERS, metrics=METRICS, scaling=SCALING)
    limit = clock(patience(12))  # enough for a repetition that does not hang
    study = ("--scale", "1,2", "--repeat", "40", "--until-settled", "--time", limit)
    document = hidl.json("run", "hangs", *study, status=11)

    assert document["state"] == "TIMEOUT"
    assert [step["repetition"] for step in document["steps"]] == [1, 1]
    assert document["verdict"]["verdict"] == "inconclusive"

    run = hidl.json("run", "hangs", *study, "--no-wait")["run"]
    until(lambda: Run(hidl.runs / run).status().state.is_final)
    verdict = hidl.json("results", "show", run)["verdict"]
    assert verdict["reason"].endswith("; the time limit cut off repetitions 2 to 40 of 40")
    status = hidl.json("status", run)
    assert (status["state"], status["causes"]) == ("TIMEOUT", [])


@pytest.mark.deep
def test_a_study_until_it_is_settled_says_how_many_steps_it_takes_at_most(hidl: Hidl) -> None:
    completed = hidl("run", "toy", "--scale", "1,2", "--repeat", "8", "--until-settled")
    lines = [line for line in completed.stderr.splitlines() if line.startswith("round ")]
    assert lines[0] == "round 1 of at most 8"
    assert re.match(
        r"round 2 of at most 8, at most 0:\d\d left: efficiency of 2 ranks \d\.\d\d, target 0\.80", lines[1]
    )
    assert re.search(r"efficiency of 2 ranks \d\.\d\d( \(.*\))?, target 0\.80; probably settled by", lines[-1])
    assert len(lines) < 8


def test_people_get_a_table_a_picture_and_the_verdict(hidl: Hidl) -> None:
    completed = hidl("run", "toy", "--scale", "1,2", "--repeat", "3")
    assert completed.returncode == 0
    assert "pass" in completed.stdout
    assert (only_run(hidl) / "scaling.png").read_bytes().startswith(b"\x89PNG")
    line = r"^round 3 of 3, \d:\d\d left: efficiency of 2 ranks \d\.\d\d, target"
    assert re.search(line, completed.stderr, re.MULTILINE)


def test_launch_lines_are_short_and_whole_in_the_log(hidl: Hidl, tmp_path: Path) -> None:
    log = tmp_path / "hidl.log"
    completed = hidl("run", "toy", "--ranks-per-node", "2", "--set", "note=x y", HIDL_LOG=str(log))
    assert completed.returncode == 0
    (short,) = [line for line in completed.stderr.splitlines() if line.startswith("$ ")]
    assert re.fullmatch(r"\$ mpiexec -n 2 \.\.\. python .*toy\.py .*'--note=x y'.*", short)
    logged = log.read_text()
    assert re.search(r"^\d{4}-.*\+00:00 \$ env HIDL_WORLD_SIZE=2 .*/bin/mpiexec -n 2 ", logged, re.MULTILINE)
    assert re.search(r"\+00:00 \$ .*job\.sh", logged)


def test_detail_shows_the_whole_launch_line_and_every_process(hidl: Hidl) -> None:
    detailed = hidl("-v", "run", "toy").stderr
    assert re.search(r"^\$ env HIDL_WORLD_SIZE=1 .*/bin/mpiexec -n 1 ", detailed, re.MULTILINE)
    assert not re.search(r"^\$ .*job\.sh", detailed, re.MULTILINE)
    assert re.search(r"^\$ .*job\.sh", hidl("run", "-vv", "toy").stderr, re.MULTILINE)


def test_a_log_that_cannot_be_written_is_named_before_anything_is_done(hidl: Hidl) -> None:
    completed = hidl("run", "toy", HIDL_LOG="/no/such/directory/hidl.log")
    assert completed.returncode == 4
    assert "/no/such/directory/hidl.log" in completed.stderr
    assert not hidl.runs.exists()


def test_a_dry_run_prints_what_the_run_consumes_and_touches_nothing(hidl: Hidl) -> None:
    shown = hidl.json("run", "toy", "--ranks-per-node", "2", "--set", "note=x y", "--dry-run")
    assert not hidl.runs.exists()
    hidl.json("run", "toy", "--ranks-per-node", "2", "--set", "note=x y")
    run = only_run(hidl)
    plan = json.loads((run / "plan.json").read_text())
    assert shown["plan"] | {"run": plan["run"], "created": plan["created"]} == plan
    assert shown["script"].replace(shown["plan"]["run"], plan["run"]) == (run / "job.sh").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["run", "no-such-workload"], 2, "no-such-workload"),
        (["run", "toy", "--site", "no-such-site"], 2, "no-such-site"),
        (["run", "toy", "--scale", "1"], 2, "two or more different sizes"),
        (["run", "toy", "--scale", "1,x"], 2, "invalid --scale"),
        (["run", "toy", "--launcher", "jsrun"], 2, "choose one of: mpiexec"),
        (["run", "toy", "--time", "soon"], 2, "02:00:00"),
        (["run", "toy", "--set", "sleep=long"], 3, "a number"),
        (["run", "toy", "--nodes", "2"], 6, "allows 1 node in a job"),
        (["run", "resnet50"], 4, "hidl install pytorch"),
        (["status", "no-such-run"], 2, "run 'no-such-run' not found"),
    ],
)
def test_what_cannot_be_run_is_reported_with_the_next_step(
    hidl: Hidl, arguments: list[str], status: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    data = {"XDG_DATA_HOME": str(tmp_path / "empty")} if "resnet50" in arguments else {}
    completed = hidl(*arguments, **data)
    assert completed.returncode == status, completed.stderr
    assert told in completed.stderr
    assert not hidl.runs.exists()


def test_results_list_the_runs_that_ended_well(hidl: Hidl) -> None:
    hidl.json("run", "toy", "--ranks-per-node", "2")
    hidl("run", "toy", "--set", "fail=true")
    (result,) = hidl.json("results", "list")["results"]
    assert result["steps"][0]["metrics"]["rate"]["value"] == pytest.approx(200, rel=2e-3)
    assert "items/s" in hidl("results", "list").stdout


def test_a_run_is_among_the_results_once_it_ended(hidl: Hidl) -> None:
    hidl.json("run", "toy", "--ranks-per-node", "2")
    store = Store(hidl.runs.parent / "results.sqlite")
    (sample,) = store.samples()
    assert (sample.run, sample.metric, sample.ranks) == (only_run(hidl).name, "rate", 2)
    assert sample.value == pytest.approx(200, rel=2e-3)
    assert sample.hosts == (os.uname().nodename,)


def test_results_that_cannot_be_kept_harm_no_run(hidl: Hidl) -> None:
    completed = hidl("run", "toy", HIDL_RESULTS="/dev/null/results.sqlite")
    assert completed.returncode == 0
    assert "is complete but not yet indexed" in completed.stderr
    assert (only_run(hidl) / "verdict.json").is_file()


def test_logs_print_what_the_program_printed(hidl: Hidl) -> None:
    hidl.json("run", "toy")
    assert hidl("logs").stdout == "rank 0 of 1 here\n"


def test_a_matrix_is_measured_in_turn_and_ranked(hidl: Hidl) -> None:
    """Every combination of its words is a step, and the store tells them apart."""
    document = hidl.json(
        "run", "toy", "--ranks-per-node", "2", "--matrix", "efficiency=1,0.5", "note=a,b", "--repeat", "3"
    )
    assert [step["parameters"] for step in document["steps"][:4]] == [
        {"efficiency": efficiency, "note": note} for efficiency in (1.0, 0.5) for note in ("a", "b")
    ]
    ranking = document["verdict"]["ranking"]
    assert [round(entry["relative"], 1) for entry in ranking["entries"]] == [1.0, 1.0, 0.5, 0.5]
    series = {
        sample.series for sample in Store(hidl.runs.parent / "results.sqlite").samples() if sample.metric == "rate"
    }
    assert len(series) == 4


def test_a_matrix_and_a_scaling_study_are_not_one_run(hidl: Hidl) -> None:
    completed = hidl("run", "toy", "--matrix", "note=a,b", "--scale", "1,2")
    assert (completed.returncode, "cannot be combined" in completed.stderr) == (2, True)


def test_an_alternative_is_started_where_its_condition_holds(hidl: Hidl) -> None:
    """The other program gets the words that its file says, and no others."""
    show = {"command": ["echo"], "arguments": ["{note}", "{silent?--quiet}", "{fail?--fail}"], "when": {"silent": True}}
    hidl.add_workload("either", "toy.py", parameters=PARAMETERS, alternatives=[show])
    script = hidl("run", "either", "--set", "silent=true", "--set", "note=a b", "--dry-run").stdout
    assert "echo 'a b' --quiet 6<&-\n" in script


@pytest.mark.parametrize(
    ("workload", "starter"), [("omb-latency", "single_threaded"), ("omb-latency-mt", "world"), ("mpi-sanity", "world")]
)
def test_only_a_program_that_says_so_is_started_without_mpi_s_locks(hidl: Hidl, workload: str, starter: str) -> None:
    script = hidl("run", workload, "--ranks-per-node", "2", "--dry-run").stdout
    assert f"-m hidl_workloads.{starter} hidl_workloads." in script


@pytest.mark.deep
def test_a_study_is_reported_beside_the_earlier_ones_of_its_kind(hidl: Hidl) -> None:
    for _ in range(3):
        hidl("run", "toy", "--scale", "1,2", "--repeat", "1")
    document = hidl.json("run", "toy", "--scale", "1,2", "--repeat", "1", status=11)
    told = document["verdict"]["study"]["reference"]
    assert re.match(r"here before: a median of \d\.\d+ in 3 earlier studies", told), told


def test_one_run_that_cannot_be_read_leaves_the_others_in_the_list(hidl: Hidl) -> None:
    hidl.json("run", "toy")
    sick = only_run(hidl)
    hidl.json("run", "toy")
    for name in ("status", "metrics"):
        (sick / f"{name}.json").write_text("{")
    for run in hidl.runs.iterdir():
        (run / "verdict.json").write_text("{")
    runs = hidl.json("status")["runs"]
    assert sorted(run["state"] for run in runs) == ["COMPLETED", "LOST"]
    assert hidl("resume", "--all").returncode == 0
    assert hidl("cancel", sick.name).returncode == 0

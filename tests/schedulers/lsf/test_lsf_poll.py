"""How LSF is asked about runs: seldom, once for all, and no run is lost if a process is killed or LSF is silent."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from hidl_cli.errors import HidlError
from hidl_cli.record import State, Status
from hidl_cli.schedulers import backend, poller
from hidl_cli.schedulers.lsf import LsfBackend
from tests.conftest import REPOSITORY
from tests.schedulers.lsf.conftest import FakeLsf, is_running, lsf_scheduler
from tests.waiting import until

Poll = Callable[..., Status]


# ---- polling


def test_one_question_serves_all_runs(lsf: FakeLsf) -> None:
    lsf.set(pending="Not enough job slot(s)")
    runs = [lsf.submitted("true", f"run-{number}") for number in range(5)]
    assert [status.state for status in lsf_scheduler().poll(runs)] == [State.PENDING] * 5
    assert len(lsf.calls("bjobs")) == 1


def test_runs_that_have_ended_cost_no_question(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("true")
    polled(run, lambda _: run.status().state is State.COMPLETED)
    before = len(lsf.calls("bjobs"))
    lsf_scheduler().poll([run, run])
    assert len(lsf.calls("bjobs")) == before


def test_while_lsf_is_down_the_status_known_last_stands(lsf: FakeLsf) -> None:
    run = lsf.submitted("sleep 60")
    until(lambda: is_running(run.status()))  # by the job's own word
    lsf.set(down=True)
    (status,) = lsf_scheduler().poll([run])
    assert (status.state, "LSF is down" in (status.reason or "")) == (State.RUNNING, True)


def test_a_job_whose_end_lsf_missed_is_followed_to_its_end(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("while [[ ! -e go ]]; do sleep 0.02; done")
    polled(run, is_running)
    lsf.set(down=True)
    (run.directory / "go").touch()
    assert polled(run).state is State.COMPLETED


def test_a_job_that_lsf_forgets_for_a_moment_is_not_lost(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("sleep 60")
    until(lambda: is_running(run.status()))  # by the job's own word
    lsf.set(hide=True)
    forgotten = polled(run, lambda status: status.reason is not None)
    lsf.set(hide=False)
    remembered = polled(run, lambda status: status.reason is None)
    assert [forgotten.state, remembered.state] == [State.RUNNING, State.RUNNING]


def test_a_job_that_vanishes_is_lost(lsf: FakeLsf, polled: Poll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LsfBackend, "grace_seconds", 0.3)
    run = lsf.submitted("sleep 60")
    polled(run, is_running)
    lsf.set(hide=True)
    assert polled(run).state is State.LOST


def test_a_job_that_lsf_has_cleaned_away_is_looked_up_in_its_history(
    lsf: FakeLsf, polled: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LsfBackend, "grace_seconds", 0.3)
    lsf.set(minute=0.3, interval=0.0)
    run = lsf.submitted("trap '' USR2 INT TERM; kill -KILL $PPID; sleep 60", time_limit=60.0)
    until(lambda: lsf.job("101").ended is not None, within=20)
    lsf.set(clean_period=0.0)
    assert (polled(run).state, len(lsf.calls("bhist"))) == (State.FAILED, 1)


# ---- hidl itself is killed


def test_a_run_is_found_again_by_another_hidl(lsf: FakeLsf, polled: Poll) -> None:
    """The job is submitted by a process that has ended by the time its end is looked for."""
    run = lsf.run("sleep 0.5")
    program = f"""
import os, signal
from pathlib import Path
from hidl_cli.record import Run
from hidl_cli.schedulers import scheduler
scheduler("lsf").submit(Run(Path({str(run.directory)!r})))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False)
    assert polled(run).state is State.COMPLETED


def test_a_hidl_killed_before_it_noted_the_job_finds_it_by_the_runs_name(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("sleep 60")
    (run.directory / "job.json").unlink()
    polled(run, is_running)
    lsf_scheduler().cancel(run, state=State.CANCELLED)
    assert (json.loads((run.directory / "job.json").read_text())["id"], run.status().state) == ("101", State.CANCELLED)


def test_a_hidl_killed_while_it_submitted_is_not_taken_for_a_lost_job(lsf: FakeLsf) -> None:
    run = lsf.run("true")
    backend.write_reference(run, "lsf", backend.JobReference(None, "fake", time.time() - 1))
    (status,) = lsf_scheduler().poll([run])
    assert status.state is State.PENDING


def test_a_run_that_was_never_submitted_is_lost_in_the_end(
    lsf: FakeLsf, polled: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LsfBackend, "grace_seconds", 0.3)
    run = lsf.run("true")
    backend.write_reference(run, "lsf", backend.JobReference(None, "fake", time.time() - 2 * poller.SUBMISSION_SECONDS))
    assert polled(run).state is State.LOST


def test_the_number_of_a_job_of_somebody_elses_is_not_believed(lsf: FakeLsf) -> None:
    """A cluster that is set up again counts from the beginning."""
    lsf.submitted("sleep 60", "run-1")
    run = lsf.run("true", "run-0")
    backend.write_reference(run, "lsf", backend.JobReference("101", "fake", time.time() - 1))
    (status,) = lsf_scheduler().poll([run])
    assert (status.state, status.reason) == (
        State.PENDING,
        "LSF has no record of job 101; waiting for the job to record its end",
    )


def test_a_job_of_another_cluster_is_left_alone(lsf: FakeLsf) -> None:
    run = lsf.run("true")
    backend.write_reference(run, "lsf", backend.JobReference("101", "summit", time.time() - 3600))
    (status,) = lsf_scheduler().poll([run])
    assert (status.state, status.reason) == (State.PENDING, "the job is on cluster summit, but this is fake")


def test_a_job_of_another_cluster_is_not_cancelled_from_here(lsf: FakeLsf) -> None:
    run = lsf.run("true")
    backend.write_reference(run, "lsf", backend.JobReference("101", "summit", time.time() - 3600))
    with pytest.raises(HidlError, match="the job is on cluster summit"):
        lsf_scheduler().cancel(run, state=State.CANCELLED)


# ---- politeness


def test_processes_share_one_answer(lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LsfBackend, "first_interval", 60.0)
    monkeypatch.setattr(poller, "LAST_INTERVAL", 60.0)
    lsf.set(pending="Not enough job slot(s)")
    runs = [lsf.submitted("true", f"run-{number}") for number in range(3)]
    for run in runs:
        assert lsf_scheduler().poll([run])[0].state is State.PENDING
    assert len(lsf.calls("bjobs")) == 1


def test_an_old_answer_does_not_hide_that_a_job_has_begun(lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch) -> None:
    lsf.set(pending="Not enough job slot(s)")
    run = lsf.submitted("sleep 60")
    lsf_scheduler().poll([run])
    lsf.set(pending="")
    until(lambda: run.status().state is not State.PENDING, within=10)
    monkeypatch.setattr(poller.Poller, "_max_age", lambda *_: 60.0)
    assert lsf_scheduler().poll([run])[0].state is State.RUNNING

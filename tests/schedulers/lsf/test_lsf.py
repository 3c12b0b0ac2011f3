"""Runs through LSF, from their submission to their end, on a stand-in LSF that does what the documentation says."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from hidl_cli.errors import MissingPrecondition, SchedulerUnreachable, SubmitRefused
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers import batch, scheduler
from hidl_cli.schedulers import lsf as commands
from hidl_cli.schedulers import lsf as lsf_jobs
from hidl_cli.schedulers import lsf as lsf_module
from hidl_cli.schedulers.batch import BatchScheduler
from hidl_cli.schedulers.lsf import LsfBackend
from hidl_cli.site.schema import Policies
from tests.schedulers.lsf.conftest import FakeLsf, is_running, lsf_scheduler
from tests.waiting import until

Poll = Callable[..., Status]


def test_lsf_is_known_by_its_name() -> None:
    found = scheduler("lsf")
    assert isinstance(found, BatchScheduler)
    assert isinstance(found.backend, LsfBackend)


# ---- a run's life


def test_a_job_that_ends_well_is_completed(lsf: FakeLsf, polled: Poll) -> None:
    assert polled(lsf.submitted("true")).state is State.COMPLETED


def test_a_job_that_fails_is_failed_with_its_own_exit_status(lsf: FakeLsf, polled: Poll) -> None:
    status = polled(lsf.submitted("exit 7"))
    assert (status.state, status.exit_status) == (State.FAILED, 7)


def test_a_pending_job_has_lsfs_reason(lsf: FakeLsf) -> None:
    lsf.set(pending="Not enough job slot(s)")
    (status,) = lsf_scheduler().poll([lsf.submitted("true")])
    assert (status.state, status.reason) == (State.PENDING, "Not enough job slot(s)")


def test_what_the_job_prints_is_there_while_it_runs(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("echo one; sleep 60")
    polled(run, is_running)
    until(lambda: run.stdout.is_file() and run.stdout.read_text() == "one\n", within=10)


def test_lsfs_report_is_kept_apart_from_what_the_job_prints(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("echo out; echo err >&2")
    polled(run, lambda _: (run.directory / "lsf.log").is_file())
    assert (run.stdout.read_text(), run.stderr.read_text()) == ("out\n", "err\n")


def test_the_hosts_are_the_compute_nodes(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("true")
    polled(run)
    assert (run.directory / "hosts").read_text() == "node01\nnode02\n"


@pytest.mark.parametrize("parse_script", [False, True])
def test_the_allocation_is_asked_for_whether_or_not_lsf_reads_scripts(lsf: FakeLsf, parse_script: bool) -> None:
    lsf.set(parse_script=parse_script)
    run = lsf.submitted("true", nodes=3, queue="debug", account="ABC123", time_limit=5400.0)
    given = lsf.job((run.document("job") or {})["id"]).options
    assert [given[name] for name in ("-nnodes", "-q", "-P", "-W")] == ["3", "debug", "ABC123", "1:30"]


@pytest.mark.parametrize("parse_script", [False, True])
def test_the_job_runs_in_the_runs_directory_also_where_lsf_runs_a_copy_of_the_script(
    lsf: FakeLsf, polled: Poll, parse_script: bool
) -> None:
    lsf.set(parse_script=parse_script)
    run = lsf.submitted("pwd -P")
    polled(run)
    assert run.stdout.read_text() == f"{run.directory.resolve()}\n"


def test_a_site_can_keep_the_users_environment_out_of_its_jobs(
    lsf: FakeLsf, polled: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the shell")
    run = lsf.submitted('echo "${SECRET:-none}"', policies=Policies.model_validate({"export": "none"}))
    polled(run)
    assert run.stdout.read_text() == "none\n"


# ---- submission


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"queue": "nowhere"}, "No such queue"),
        ({"nodes": 5}, "Too many processors requested"),
        ({"time_limit": 3 * 3600.0}, "Cannot exceed queue's hard limit"),
    ],
)
def test_what_lsf_refuses_is_refused_in_its_words(lsf: FakeLsf, asked: dict[str, object], words: str) -> None:
    with pytest.raises(SubmitRefused, match=words):
        lsf.submitted("true", **asked)


def test_lsf_that_is_down_is_unreachable(lsf: FakeLsf) -> None:
    lsf.set(down=True)
    with pytest.raises(SchedulerUnreachable, match="LSF is down"):
        lsf.submitted("true")


def test_an_lsf_that_never_answers_leaves_open_whether_it_took_the_job(
    lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lsf_module, "SUBMIT_SECONDS", 0.5)
    monkeypatch.setattr(commands, "call", replace(commands.PROGRAMS, added={}).call)
    monkeypatch.setattr(batch, "_SEARCHES", 1)
    lsf.set(down="bsub")
    with pytest.raises(SchedulerUnreachable, match="unknown whether LSF accepted the job of run run-1"):
        lsf.submitted("true")


@pytest.mark.deep
def test_a_job_that_was_taken_without_an_answer_is_not_submitted_again(
    lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lsf_module, "SUBMIT_SECONDS", 5.0)  # by then it has taken the job, on a busy machine too
    lsf.set(mute=True, pending="Not enough job slot(s)")
    run = lsf.submitted("true")
    assert ((run.document("job") or {})["id"], len(lsf.calls("bsub"))) == ("101", 1)


@pytest.mark.parametrize("asked", [{"queue": "nowhere"}, {"nodes": 5}])
def test_what_lsf_refused_is_recorded(lsf: FakeLsf, asked: dict[str, object]) -> None:
    with pytest.raises(SubmitRefused):
        lsf.submitted("true", **asked)
    assert lsf_scheduler().poll([Run(lsf.runs / "run-1")])[0].state is State.REFUSED


def test_a_machine_without_lsf_is_distinguished(lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch) -> None:
    run = lsf.run("true")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingPrecondition, match="cannot be started"):
        lsf_scheduler().submit(run)


def test_what_a_site_prints_with_every_submission_does_no_harm(lsf: FakeLsf) -> None:
    lsf.set(noise="Job <7> was your last one. Project <x> has 12 hours left.")
    run = lsf.submitted("true")
    assert (run.document("job") or {})["id"] == "101"


def test_a_user_who_wants_bsub_silent_does_not_keep_hidl_from_hearing_it(
    lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BSUB_QUIET", "1")
    assert (lsf.submitted("true").document("job") or {})["id"] == "101"


def test_a_job_submitted_from_within_a_job_is_one_of_its_own(
    lsf: FakeLsf, polled: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSB_INTERACTIVE", "Y")
    run = lsf.submitted("echo mine")
    polled(run)
    assert run.stdout.read_text() == "mine\n"


def test_a_value_that_lsf_would_take_for_an_option_is_refused(lsf: FakeLsf) -> None:
    run = lsf.run("echo 'a\n#BSUB -q other\n'")
    with pytest.raises(Exception, match="LSF would read it as an option"):
        lsf_scheduler().submit(run)
    assert lsf.calls("bsub") == []


# ---- ends that others make


def test_a_job_that_reaches_its_run_limit_has_timed_out(lsf: FakeLsf, polled: Poll) -> None:
    lsf.set(minute=0.3)
    status = polled(lsf.submitted("sleep 60", time_limit=60.0))
    assert (status.state, (status.reason or "").split(":")[0]) == (State.TIMEOUT, "TERM_RUNLIMIT")


def test_a_job_that_somebody_else_kills_is_cancelled(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("sleep 60")
    polled(run, is_running)
    lsf.set(killer="TERM_ADMIN")
    subprocess.run(["bkill", "101"], check=True)
    status = polled(run)
    assert (status.state, status.reason) == (
        State.CANCELLED,
        "TERM_ADMIN: job killed by root or LSF administrator",
    )


def test_a_job_that_lsf_kills_for_its_memory_ran_out_of_memory(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("sleep 60")
    polled(run, is_running)
    lsf.set(killer="TERM_MEMLIMIT")
    subprocess.run(["bkill", "101"], check=True)
    assert polled(run).state is State.OUT_OF_MEMORY


def test_the_reason_counts_though_lsf_reports_it_late(lsf: FakeLsf, polled: Poll) -> None:
    lsf.set(minute=0.3, lag=1.0, parse_script=True)
    run = lsf.submitted("sleep 60", time_limit=60.0)
    polled(run, lambda _: run.status().state.is_final)
    assert polled(run).state is State.TIMEOUT


def test_the_reason_stays_known_when_lsf_has_forgotten_the_job(lsf: FakeLsf, polled: Poll) -> None:
    lsf.set(minute=0.3)
    run = lsf.submitted("sleep 60", time_limit=60.0)
    polled(run)
    lsf.set(clean_period=0.0)
    assert lsf_scheduler().poll([run])[0].state is State.TIMEOUT


def test_a_job_that_kills_its_own_script_has_failed(
    lsf: FakeLsf, polled: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LsfBackend, "grace_seconds", 0.3)
    status = polled(lsf.submitted("kill -KILL $PPID; sleep 60"))
    assert (status.state, "left no record of its end" in (status.reason or "")) == (State.FAILED, True)


def test_a_job_that_can_never_start_is_refused_and_taken_back(lsf: FakeLsf) -> None:
    lsf.set(pending="Dependency condition invalid or never satisfied")
    run = lsf.submitted("true")
    (status,) = lsf_scheduler().poll([run])
    assert (status.state, len(lsf.calls("bkill"))) == (State.REFUSED, 1)


def test_a_reason_that_lsf_takes_back_must_stand_before_a_job_is_refused(
    lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lsf_jobs, "_NO_HOST_SECONDS", 1.0)
    lsf.set(pending="There are no suitable hosts for the job")
    run = lsf.submitted("true")
    scheduler = lsf_scheduler()
    assert scheduler.poll([run])[0].state is State.PENDING
    lsf.set(pending="Not enough job slot(s)")
    until(lambda: "slot" in (scheduler.poll([run])[0].reason or ""))
    lsf.set(pending="There are no suitable hosts for the job")
    until(lambda: "suitable" in (scheduler.poll([run])[0].reason or ""))
    assert not lsf.calls("bkill")
    until(lambda: scheduler.poll([run])[0].state is State.REFUSED)
    assert len(lsf.calls("bkill")) == 1


# ---- cancel


def test_a_running_job_ends_in_the_state_that_was_asked_for(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("sleep 60")
    polled(run, is_running)
    lsf_scheduler().cancel(run, state=State.INTERRUPTED)
    assert lsf_scheduler().poll([run])[0].state is State.INTERRUPTED


def test_a_cancelled_job_leaves_no_process(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted('trap "" INT TERM; sleep 61.25')
    polled(run, is_running)
    lsf_scheduler().cancel(run, state=State.CANCELLED)
    time.sleep(0.2)
    assert subprocess.run(["pgrep", "-f", "sleep 61.25"], capture_output=True, check=False).stdout == b""


def test_a_pending_job_is_cancelled_without_having_begun(lsf: FakeLsf) -> None:
    lsf.set(pending="Not enough job slot(s)")
    run = lsf.submitted("touch began")
    lsf_scheduler().cancel(run, state=State.CANCELLED)
    assert (run.status().state, (run.directory / "began").exists()) == (State.CANCELLED, False)


def test_what_has_ended_is_not_cancelled_again(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("true")
    polled(run)
    lsf_scheduler().cancel(run, state=State.CANCELLED)
    assert (run.status().state, lsf.calls("bkill")) == (State.COMPLETED, [])


def test_a_cancellation_that_lsf_did_not_hear_leaves_no_trace(lsf: FakeLsf, polled: Poll) -> None:
    run = lsf.submitted("sleep 60")
    polled(run, is_running)
    lsf.set(down=True)
    with pytest.raises(SchedulerUnreachable):
        lsf_scheduler().cancel(run, state=State.CANCELLED)
    assert not (run.directory / "reason").exists()

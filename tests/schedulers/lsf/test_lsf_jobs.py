"""What LSF's commands print, read. The forms are those of the manuals of LSF 9.1.3 and 10.1, and of public reports."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.record import State
from hidl_cli.schedulers.backend import NoAnswer, complaint
from hidl_cli.schedulers.decision import StartBlocker
from hidl_cli.schedulers.lsf import PROGRAMS, never_starts, parse, parse_history

ANSWER = """\
Cannot connect to LSF. Please wait ...
331590|RUN|-|-|resnet50-1|-
331715|PEND|-|-|resnet50-2|Job dependency condition not satisfied;
331716|PEND|-|-|-|Affinity resource requirement cannot be met because there are not enough
processor units to satisfy the job affinity request: 30 hosts;
Job's requirements for resource reservation not satisfied (Resource: mem): 4 hosts;
331717|EXIT|140|TERM_RUNLIMIT: job killed after reaching LSF run time limit|resnet50-4|-
331718|EXIT|1|-|resnet50-5|-
331719|DONE|-|-|resnet50-6|-
331720[3]|RUN|-|-|array|-
"""

HISTORY = """\
Job <1532>, Job Name <resnet50>, User <user1>, Project <abc123>, Command <./job.s
                     h>, Job Description <resnet50-1>
Thu Mar 13 17:28:05: Submitted from host <login1>, to Queue <batch>, CWD </ccs/ho
                     me/user1>, Requested Resources <1*{select[LN]}>;
Thu Mar 13 17:29:05: Dispatched 1 Task(s) on Host(s) <batch2>;
Thu Mar 13 20:18:32: Exited with exit code 140. The CPU time used is 0.1 seconds
                     ;
Thu Mar 13 20:18:32: Completed <exit>; TERM_RUNLIMIT: job killed after reaching L
                     SF run time limit;

Summary of time in seconds spent in various states by  Thu Mar 13 20:18:32
  PEND     PSUSP    RUN      USUSP    SSUSP    UNKWN    TOTAL
  60       0        10167    0        0        0        10227
------------------------------------------------------------------------------
Job <1533>, User <user1>, Project <abc123>, Command <./job.sh>
Thu Mar 13 17:28:05: Submitted from host <login1>, to Queue <batch>;
Thu Mar 13 20:18:32: Done successfully. The CPU time used is 0.1 seconds;
------------------------------------------------------------------------------
Job <1534>, User <user1>, Project <abc123>, Command <./job.sh>
Thu Mar 13 17:28:05: Submitted from host <login1>, to Queue <batch>;
"""


def test_each_line_is_a_job() -> None:
    assert [(job.id, job.word) for job in parse(ANSWER.splitlines())] == [
        ("331590", "RUN"),
        ("331715", "PEND"),
        ("331716", "PEND"),
        ("331717", "EXIT"),
        ("331718", "EXIT"),
        ("331719", "DONE"),
        ("331720[3]", "RUN"),
    ]


def test_what_lsf_does_not_report_is_empty() -> None:
    running = parse(ANSWER.splitlines())[0]
    assert (running.state, running.reason, running.ended) == (State.RUNNING, "", None)


def test_a_reason_for_pending_over_several_lines_is_one() -> None:
    assert parse(ANSWER.splitlines())[2].reason.endswith("(Resource: mem): 4 hosts")


def test_the_reason_of_an_end_is_kept_in_lsfs_words() -> None:
    assert parse(ANSWER.splitlines())[3].reason == "TERM_RUNLIMIT: job killed after reaching LSF run time limit"


def test_the_description_reports_which_run_a_job_is() -> None:
    assert parse(ANSWER.splitlines())[4].mark == "resnet50-5"


def test_a_reason_may_hold_the_delimiter() -> None:
    assert parse(["1|PEND|-|-|-|a | b;"])[0].reason == "a | b"


def test_a_line_that_was_cut_off_is_not_a_record() -> None:
    assert parse(["1|RUN|-|-", "2|RUN|-|-|x|-"]) == parse(["2|RUN|-|-|x|-"])
    assert len(parse(["2|RUN|-|-|x|-"])) == 1


@given(st.lists(st.text() | st.from_regex(r"[0-9]+\|.*")))
def test_no_answer_breaks_the_reading(answer: list[str]) -> None:
    assert all(job.id for job in parse(answer))


@given(st.text())
def test_no_history_breaks_the_reading(answer: str) -> None:
    assert all(job.state.is_final for job in parse_history(answer))


def test_history_reports_how_jobs_ended_that_bjobs_has_forgotten() -> None:
    assert [(job.id, job.state, job.reason) for job in parse_history(HISTORY)] == [
        ("1532", State.TIMEOUT, "TERM_RUNLIMIT: job killed after reaching LSF run time limit"),
        ("1533", State.COMPLETED, ""),
    ]


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit", State.TIMEOUT),
        ("TERM_OWNER: job killed by owner", State.CANCELLED),
        ("TERM_ADMIN: job killed by root or LSF administrator", State.CANCELLED),
        ("TERM_FORCE_OWNER: job killed by owner without time for cleanup", State.CANCELLED),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", State.OUT_OF_MEMORY),
        ("TERM_SWAP: job killed after reaching LSF swap usage limit", State.OUT_OF_MEMORY),
        ("TERM_PREEMPT: job killed after preemption", State.PREEMPTED),
        ("TERM_REQUEUE_ADMIN: job killed and requeued by root or LSF administrator", State.PREEMPTED),
        ("TERM_ZOMBIE: job exited while LSF is not available", State.NODE_FAIL),
        ("TERM_CSM_ALLOC: job killed by LSF due to CSM allocation API error", State.NODE_FAIL),
        ("TERM_CWD_NOTEXIST: current working directory is not accessible", State.FAILED),
        ("TERM_NEW_IN_LSF_11: unknown", State.FAILED),
    ],
)
def test_lsf_says_why_a_job_was_ended(reason: str, state: State) -> None:
    (job,) = parse([f"1|EXIT|1|{reason}|x|-"])
    assert (job.state, job.reason, job.by_itself) == (state, reason, False)


@pytest.mark.parametrize(
    ("stat", "state"),
    [
        *((word, State.PENDING) for word in ("PEND", "PSUSP", "PROV", "WAIT")),
        *((word, State.RUNNING) for word in ("RUN", "USUSP", "SSUSP", "UNKWN", "NEW_IN_LSF_11")),
        ("ZOMBI", State.NODE_FAIL),
        ("DONE", State.COMPLETED),
        ("EXIT", State.FAILED),
    ],
)
def test_lsfs_word_is_a_state(stat: str, state: State) -> None:
    assert parse([f"1|{stat}|-|-|x|-"])[0].state is state


def test_a_host_that_lsf_cannot_reach_is_reported() -> None:
    assert parse(["1|UNKWN|-|-|x|-"])[0].reason == "LSF has lost contact with the job's host"


def test_a_job_without_a_host_never_starts_only_after_a_while() -> None:
    (job,) = parse(["1|PEND|-|-|x|There are no suitable hosts for the job"])
    assert never_starts(job) == StartBlocker(job.reason, after=600.0)


@pytest.mark.parametrize(
    "reason", ["New job is waiting for scheduling", "Not enough job slot(s)", "The queue is inactivated by its policy"]
)
def test_a_reason_that_may_pass_is_waited_for(reason: str) -> None:
    assert never_starts(parse([f"1|PEND|-|-|x|{reason}"])[0]) is None


def prints(directory: Path, *lines: str) -> Path:
    """Return a program that prints these lines as its errors, and fails."""
    program = directory / "bsub"
    program.write_text("#!/bin/sh\nprintf '%s\\n' " + shlex.join(lines) + " >&2\nexit 255\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    "words",
    [
        "Cannot connect to LSF. Please wait ...",
        "LSF is down. Please wait ...",
        "LSF is processing your request. Please wait ...",
        "batch system daemon not responding ... still trying",
        "ls_gethostinfo: LIM is down; try later",
        "Failed in an LSF library call: Communication time out",
    ],
)
def test_the_words_of_an_lsf_that_does_not_answer(tmp_path: Path, words: str) -> None:
    with pytest.raises(NoAnswer, match=re.escape(words)):
        PROGRAMS.call(prints(tmp_path, words))


@pytest.mark.parametrize(
    "words",
    [
        "Too many processors requested. Job not submitted.",
        "No such queue. Job not submitted.",
        "User cannot use the queue. Job not submitted.",
        "Request aborted by esub. Job not submitted.",
        "Bad argument for option -n. Job not submitted.",
    ],
)
@pytest.mark.parametrize("before", [(), ("LSF is processing your request. Please wait ...",) * 2])
def test_the_words_of_an_lsf_that_refuses(tmp_path: Path, before: tuple[str, ...], words: str) -> None:
    assert complaint(PROGRAMS.call(prints(tmp_path, *before, words))) == words


def test_an_outage_after_a_wait_is_an_outage(tmp_path: Path) -> None:
    failed = "Failed in an LSF library call: LIM is down; try later. Job not submitted."
    with pytest.raises(NoAnswer, match="LIM is down"):
        PROGRAMS.call(prints(tmp_path, "LSF is processing your request. Please wait ...", failed))

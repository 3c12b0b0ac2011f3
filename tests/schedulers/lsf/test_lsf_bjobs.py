"""What LSF's commands print, read. The forms are those of the manuals of LSF 9.1.3 and 10.1, and of public reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.schedulers.lsf.bjobs import Record, parse, parse_history
from hidl_cli.schedulers.lsf.commands import is_down

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


def test_each_job_is_a_record() -> None:
    assert [(record.id, record.stat) for record in parse(ANSWER.splitlines())] == [
        ("331590", "RUN"),
        ("331715", "PEND"),
        ("331716", "PEND"),
        ("331717", "EXIT"),
        ("331718", "EXIT"),
        ("331719", "DONE"),
        ("331720[3]", "RUN"),
    ]


def test_what_lsf_says_nothing_of_is_empty() -> None:
    assert parse(ANSWER.splitlines())[0] == Record("331590", "RUN", description="resnet50-1")


def test_a_reason_for_pending_over_several_lines_is_one() -> None:
    assert parse(ANSWER.splitlines())[2].pend_reason.endswith("(Resource: mem): 4 hosts")


def test_the_reason_of_an_end_is_kept_in_lsfs_words() -> None:
    assert parse(ANSWER.splitlines())[3].exit_reason == "TERM_RUNLIMIT: job killed after reaching LSF run time limit"


def test_the_description_tells_which_run_a_job_is() -> None:
    assert parse(ANSWER.splitlines())[4].description == "resnet50-5"


def test_a_reason_may_hold_the_delimiter() -> None:
    assert parse(["1|PEND|-|-|-|a | b;"])[0].pend_reason == "a | b"


def test_a_line_that_was_cut_off_is_no_record() -> None:
    assert parse(["1|RUN|-|-", "2|RUN|-|-|x|-"]) == [Record("2", "RUN", description="x")]


@given(st.lists(st.text() | st.from_regex(r"[0-9]+\|.*")))
def test_no_answer_breaks_the_reading(answer: list[str]) -> None:
    assert all(record.id for record in parse(answer))


@given(st.text())
def test_no_history_breaks_the_reading(answer: str) -> None:
    assert all(record.stat in ("DONE", "EXIT") for record in parse_history(answer))


def test_history_tells_how_jobs_ended_that_bjobs_has_forgotten() -> None:
    assert parse_history(HISTORY) == [
        Record("1532", "EXIT", "140", "TERM_RUNLIMIT: job killed after reaching LSF run time limit"),
        Record("1533", "DONE"),
    ]


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
def test_the_words_of_an_lsf_that_does_not_answer(words: str) -> None:
    assert is_down(words)


@pytest.mark.parametrize(
    "words",
    [
        "Too many processors requested. Job not submitted.",
        "No such queue. Job not submitted.",
        "User cannot use the queue. Job not submitted.",
        "Request aborted by esub. Job not submitted.",
    ],
)
def test_the_words_of_an_lsf_that_refuses(words: str) -> None:
    assert not is_down(words)

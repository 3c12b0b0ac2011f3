"""Jobs as a real OpenPBS 23.06 described them (``recorded/pbs/README.md``), and what is read from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.record import State
from hidl_cli.schedulers.decision import Job, StartBlocker
from hidl_cli.schedulers.pbs import compact, never_starts, parse

RECORDED = Path(__file__).parents[1] / "recorded" / "pbs"


def told(name: str) -> Job:
    """The job of a recording in JSON, from the text that ``qstat -f`` has for the same attributes."""
    (found,) = json.loads((RECORDED / f"qstat_{name}.json").read_text())["Jobs"].items()
    id, attributes = found
    flat = {
        **{key: value for key, value in attributes.items() if not isinstance(value, dict)},
        "Variable_List": ",".join(f"{key}={value}" for key, value in attributes["Variable_List"].items()),
    }
    text = "\n".join([f"Job Id: {id}", *(f"    {key} = {value}" for key, value in flat.items()), ""])
    (job,) = parse(compact(text))
    return job


@pytest.mark.parametrize(
    ("name", "state", "reason", "by_itself"),
    [
        ("done0", State.COMPLETED, "", True),
        ("exit3", State.FAILED, "PBS reports Exit_status 3", True),
        ("walltime", State.TIMEOUT, "exceeded resource walltime", False),
        ("trapped", State.TIMEOUT, "exceeded resource walltime", False),
        ("deleted", State.CANCELLED, "terminated by root@node1", False),
        ("trapped_deleted", State.CANCELLED, "terminated by root@node1", False),
        ("deleted_queued", State.CANCELLED, "deleted before it started", False),
        ("depend_failed", State.CANCELLED, "a job that it depends on did not end as required", False),
        ("nodelost", State.NODE_FAIL, "PBS reports Exit_status -20", False),
        ("held", State.PENDING, "held by its owner", True),
        ("waiting", State.PENDING, "Not Running: Not enough free nodes available", True),
        ("running", State.RUNNING, "", True),
    ],
)
def test_each_end_has_its_state_and_reason(name: str, state: State, reason: str, by_itself: bool) -> None:
    job = told(name)
    assert (job.state, job.reason, job.by_itself, job.mark) == (state, reason, by_itself, "/home/user/run")


def test_a_job_that_can_never_run_never_starts() -> None:
    assert never_starts(told("toomany")) == StartBlocker("Can Never Run: Not enough total nodes available")
    assert [never_starts(told(name)) for name in ("waiting", "held", "stopped", "depends")] == [None] * 4


def test_all_jobs_of_an_answer_are_read() -> None:
    found = parse(compact((RECORDED / "qstat_full.txt").read_text()))
    assert [(job.id, job.state) for job in found] == [
        ("87.node1", State.COMPLETED),
        ("88.node1", State.FAILED),
        ("89.node1", State.TIMEOUT),
        ("90.node1", State.CANCELLED),
        ("91.node1", State.CANCELLED),
        ("92.node1", State.CANCELLED),
        ("94.node1", State.COMPLETED),
        ("95.node1", State.FAILED),
    ]


def test_a_directory_with_a_comma_and_a_wrapped_line_is_read() -> None:
    assert parse(compact((RECORDED / "qstat_full.txt").read_text()))[0].mark == "/home/user/a,b/my runs/ok-a"


@given(st.text())
def test_any_answer_can_be_read(answer: str) -> None:
    assert all(job.id is not None for job in parse(compact(answer)))

"""Jobs as a real flux-core 0.88 described them (``recorded/flux/README.md``), and what is read from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.record import State
from hidl_cli.schedulers.flux import compact, parse

RECORDED = Path(__file__).parents[1] / "recorded" / "flux"


@pytest.mark.parametrize(
    ("name", "state", "reason", "by_itself"),
    [
        ("done0", State.COMPLETED, "", True),
        ("exit3", State.FAILED, "Flux reports FAILED, exit code 3", True),
        ("kill9", State.FAILED, "Flux reports FAILED, exit code 137", True),
        ("timelimit", State.TIMEOUT, "timeout: resource allocation expired", False),
        ("cancelled", State.CANCELLED, "cancel", False),
        ("cancelled_pending", State.CANCELLED, "cancel", False),
        ("badoutput", State.FAILED, "exec: shell_init: No such file or directory", False),
        ("held", State.PENDING, "held (urgency 0)", True),
        ("depends", State.PENDING, "depends on after-success=ƒV3m8wnX", True),
        ("running", State.RUNNING, "", True),
        ("nodelost", State.RUNNING, "", True),
    ],
)
def test_each_end_has_its_state_and_reason(name: str, state: State, reason: str, by_itself: bool) -> None:
    (job,) = parse(compact((RECORDED / f"jobs_{name}.json").read_text()))
    assert (job.state, job.reason, job.by_itself, job.mark) == (state, reason, by_itself, "/home/user/run")


def test_what_can_never_be_allocated_is_refused() -> None:
    found = parse(compact((RECORDED / "jobs_all.json").read_text()))
    assert sum(job.state is State.REFUSED and job.reason.startswith("alloc") for job in found) == 2


def test_a_waiting_job_is_reported_with_its_start() -> None:
    (job,) = parse(compact((RECORDED / "jobs_waiting.json").read_text()))
    assert job.reason.startswith("expected to start at 20")


@pytest.mark.parametrize("answer", ["[]", "1", "{"])
def test_another_answer_is_an_error(answer: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        compact(answer)

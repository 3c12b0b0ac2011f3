"""Jobs as Flux describes them (``flux jobs --json``): RFC 21 of the Flux framework for the states, RFC 24 and
flux-jobs(1) for the fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from hidl_cli.record.state import State
from hidl_cli.schedulers.decision import Job

_STATES = {
    **dict.fromkeys(("NEW", "DEPEND", "PRIORITY", "SCHED"), State.PENDING),
    **dict.fromkeys(("RUN", "CLEANUP"), State.RUNNING),
}
_RESULTS = {
    "COMPLETED": State.COMPLETED,
    "FAILED": State.FAILED,
    "CANCELED": State.CANCELLED,
    "TIMEOUT": State.TIMEOUT,
}
#: Exceptions whose type says more than the job's result: what can never be allocated was never started.
_EXCEPTIONS = {"alloc": State.REFUSED, "node-failure": State.NODE_FAIL, "preempt": State.PREEMPTED}
_KEPT = ("jobid", "cwd", "state", "result", "returncode", "exception", "annotations", "dependencies", "urgency")


def compact(answer: str) -> list[str]:
    """Reduce the answer of ``flux jobs --json`` to what ``parse`` needs, a job a line. Raises ``ValueError``."""
    document = json.loads(answer)
    found = document.get("jobs", [document]) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise ValueError("not a list of jobs")
    return [json.dumps({name: job[name] for name in (*_KEPT, "t_inactive") if name in job}) for job in found]


def parse(lines: Iterable[str]) -> list[Job]:
    """Parse the lines of ``compact``."""
    return [_job(json.loads(line)) for line in lines]


def _job(job: Mapping[str, Any]) -> Job:
    """A job ends only in the state INACTIVE; any other unknown state counts as running."""
    word, id, mark = str(job.get("state", "")), str(job["jobid"]), str(job.get("cwd", ""))
    if word != "INACTIVE":
        state = _STATES.get(word, State.RUNNING)
        reason = _waiting(job) if state is State.PENDING else "the job is ending" if word == "CLEANUP" else ""
        return Job(id, state, word, mark, reason)
    result, exception = str(job.get("result", "")), job.get("exception") or {}
    occurred = bool(exception.get("occurred"))
    known = _RESULTS.get(result, State.FAILED)
    state = _EXCEPTIONS.get(str(exception.get("type")), known) if occurred else known
    why = ": ".join(filter(None, (str(exception.get("type", "")), str(exception.get("note", ""))))) if occurred else ""
    ended = float(job.get("t_inactive") or 0)
    return Job(id, state, result, mark, why or _status(job, state), ended, by_itself=not occurred)


def _waiting(job: Mapping[str, Any]) -> str:
    scheduled = (job.get("annotations") or {}).get("sched") or {}
    estimate = scheduled.get("t_estimate")
    parts = [
        *([f"waits for {', '.join(job['dependencies'])}"] if job.get("dependencies") else []),
        *(["held (urgency 0)"] if job.get("urgency") == 0 else []),
        *filter(None, [scheduled.get("reason_pending")]),
        *([f"expected to start at {datetime.fromtimestamp(estimate):%Y-%m-%dT%H:%M:%S}"] if estimate else []),
    ]
    return ", ".join(parts)


def _status(job: Mapping[str, Any], state: State) -> str:
    return "" if state is State.COMPLETED else f"Flux says {job.get('result')}, exit code {job.get('returncode')}"

"""The Flux backend, which uses ``flux batch``, ``flux jobs`` and ``flux cancel``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import HidlError, InvalidInput
from hidl_cli.launch.placement import Allocation
from hidl_cli.record import Run, State
from hidl_cli.schedulers.backend import (
    SUBMIT_SECONDS,
    Backend,
    NoAnswer,
    Programs,
    Receipt,
    batches,
    complaint,
    refusal,
)
from hidl_cli.schedulers.decision import Job
from hidl_cli.site.job_options import render_settings
from hidl_cli.site.schema import Policies

#: File for the output that Flux collects; the job writes stdout.log and stderr.log itself (``flux.sh``).
OUTPUT = "flux.log"
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/+@=,|&-]*")


def header(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """Return the ``# flux:`` lines that request ``allocation`` according to the site's policies.

    Raises ``InvalidInput`` if Flux lacks a required option, or if a value is not a plain word.
    """
    _refuse_unsupported(allocation, policies)
    limit = None if allocation.time_limit is None else f"{math.ceil(allocation.time_limit)}s"
    uses = {
        "job-name": ("required", allocation.job_name),
        "queue": (policies.partition, allocation.queue),
        "time-limit": (policies.time, limit),
        "bank": (policies.account, allocation.account),
        "requires": (policies.constraint, allocation.constraint),
    }
    lines = [
        *(f"--{name}={_word(name, value)}" for name, (use, value) in uses.items() if use != "never" and value),
        f"--nodes={allocation.nodes}",
        *(["--exclusive"] if allocation.is_exclusive(policies) else []),
        *(_slots(allocation) if allocation.exclusive is False else []),
        f"--output={OUTPUT}",
        *policies.directives,
        *render_settings("flux", allocation.settings, policies),
    ]
    return tuple(f"# flux: {line}" for line in lines)


def _slots(allocation: Allocation) -> list[str]:
    """Return the options that request a part of each node. Without them, Flux allocates whole nodes."""
    ranks, gpus = allocation.ranks_per_node, allocation.gpus_per_node or 0
    cores = allocation.cores_per_node or ranks * (allocation.cores_per_rank or 1)
    return [
        f"--nslots={allocation.nodes}",
        f"--cores-per-slot={cores}",
        *([f"--gpus-per-slot={gpus}"] if gpus else []),
    ]


def _refuse_unsupported(allocation: Allocation, policies: Policies) -> None:
    requested = {
        "a quality of service": allocation.qos if policies.qos != "never" else None,
        "a reservation": allocation.reservation if policies.reservation != "never" else None,
    }
    for what, value in requested.items():
        if value is not None:
            raise InvalidInput(
                f"Flux has no option for {what}, but {value!r} is requested",
                hint="omit it; a queue or the site's policies.directives may have the same effect",
            )


def _word(name: str, value: str) -> str:
    if not _WORD.fullmatch(value):
        raise InvalidInput(
            f"invalid value {value!r} for Flux's --{name}: must be one plain word",
            hint="use letters, digits and _ . : / + @ = , | & - only, and begin with a letter, digit or _",
        )
    return value


# Parsers for ``flux jobs --json``. The states are specified in Flux RFC 21, and the fields in RFC 24 and flux-jobs(1).


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
#: Types of exceptions that determine a job's state. After ``alloc``, the job can never start.
_EXCEPTIONS = {"alloc": State.REFUSED, "node-failure": State.NODE_FAIL, "preempt": State.PREEMPTED}
_KEPT = ("jobid", "cwd", "state", "result", "returncode", "exception", "annotations", "dependencies", "urgency")


def compact(output: str) -> list[str]:
    """Reduce the output of ``flux jobs --json`` to one line per job, with the fields that ``parse`` needs.

    Raises ``ValueError`` if it is invalid.
    """
    document = json.loads(output)
    found = document.get("jobs", [document]) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise ValueError("not a list of jobs")
    return [json.dumps({name: job[name] for name in (*_KEPT, "t_inactive") if name in job}) for job in found]


def parse(lines: Iterable[str]) -> list[Job]:
    """Parse the lines of ``compact``."""
    return [_job(json.loads(line)) for line in lines]


def _job(job: Mapping[str, Any]) -> Job:
    """Parse a job. Only the state INACTIVE is final, and unknown states count as running."""
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
        *([f"depends on {', '.join(job['dependencies'])}"] if job.get("dependencies") else []),
        *(["held (urgency 0)"] if job.get("urgency") == 0 else []),
        *filter(None, [scheduled.get("reason_pending")]),
        *([f"expected to start at {datetime.fromtimestamp(estimate):%Y-%m-%dT%H:%M:%S}"] if estimate else []),
    ]
    return ", ".join(parts)


def _status(job: Mapping[str, Any], state: State) -> str:
    return "" if state is State.COMPLETED else f"Flux reports {job.get('result')}, exit code {job.get('returncode')}"


PROGRAMS = Programs(
    dropped=("FLUX_JOB_", "FLUX_TASK_", "FLUX_ENCLOSING_ID", "FLUX_KVS_NAMESPACE", "PMI_", "PMIX_"),
    unreachable=re.compile(
        r"unable to connect to flux|broker socket|connection refused|host is unreachable|timed? ?out", re.IGNORECASE
    ),
    added={"FLUX_F58_FORCE_ASCII": "1"},  # makes job ids begin with f in every locale
)
_ID = re.compile(r"^[fƒ][1-9A-HJ-NP-Za-km-z]+$", re.MULTILINE)
#: Hints for flux batch error messages.
_HINTS = (
    (r"exceeds policy limit", "request fewer nodes (--nodes), less time (--time) or another queue (--partition)"),
    (r"queue", "flux queue list shows the queues; choose one with --partition NAME"),
    (r"bank|account", "use --account NAME"),
    (r"constraint", "--constraint must have the syntax of `flux batch --requires`"),
)


class FluxBackend(Backend):
    """Flux, where a job is identified by the directory it was submitted from."""

    traits = SYSTEMS["flux"]
    programs = PROGRAMS
    grace_seconds = 15.0
    first_interval = 0.5
    asks_by_id = True

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        return header(allocation, policies)

    def submit(self, run: Run) -> Receipt | None:
        completed = PROGRAMS.call("flux", "batch", run.script.name, timeout=SUBMIT_SECONDS, cwd=run.directory)
        if completed.status != 0:
            raise refusal(completed, _HINTS)
        printed = _ID.search(completed.stdout)
        return Receipt(printed.group().replace("ƒ", "f")) if printed else None

    def query(self, cluster: str | None) -> Sequence[str]:
        completed = PROGRAMS.call("flux", "jobs", "-a", "--count=0", "--json")  # the default count is 1,000
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        return _compact(completed.stdout)

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        known = [id for id in ids if id is not None]
        # If one of several jobs is unknown, Flux exits with status 1 but still describes the others.
        outputs = (PROGRAMS.call("flux", "jobs", "--json", *some).stdout for some in batches(known))
        return parse(line for output in outputs if output.strip() for line in _compact(output))

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        completed = PROGRAMS.call("flux", "jobs", "--json", id)
        if completed.stdout.strip():
            return next((job for job in parse(_compact(completed.stdout)) if job.id == id), None)
        if re.search(r"\bunknown\b", completed.stderr):
            return None
        raise NoAnswer(complaint(completed))

    def parse(self, lines: Iterable[str]) -> list[Job]:
        return parse(lines)

    def kill(self, id: str, cluster: str | None) -> None:
        completed = PROGRAMS.call("flux", "cancel", id)
        if completed.status != 0 and not re.search(r"job is inactive|unknown job id", completed.stderr):
            raise HidlError(f"job {id} could not be cancelled: {complaint(completed)}")


def _compact(output: str) -> list[str]:
    try:
        return compact(output)
    except ValueError as error:
        raise NoAnswer(f"flux jobs printed invalid JSON: {error}") from error


BACKEND = FluxBackend

"""The PBS Professional and OpenPBS backend, which uses ``qsub``, ``qselect``, ``qstat`` and ``qdel``."""

from __future__ import annotations

import json
import math
import os
import pwd
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

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
    whole_lines,
)
from hidl_cli.schedulers.decision import Job, StartBlocker
from hidl_cli.site.job_options import render_settings
from hidl_cli.site.schema import Policies

#: File for the output that PBS collects; the job writes stdout.log and stderr.log itself (``pbs.sh``).
OUTPUT = "pbs.log"
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/+@=,-]*")
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*=[A-Za-z0-9_.,+/-]+")


def header(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """Return the ``#PBS`` lines that request ``allocation`` according to the site's policies.

    Raises ``InvalidInput`` if PBS lacks a required option, or if a value is not a plain word.
    """
    uses = {
        "-N": ("required", allocation.job_name),
        "-q": (policies.partition, _queue(allocation, policies)),
        "-A": (policies.account, allocation.account),
    }
    words = [f"{option} {_word(option, value)}" for option, (use, value) in uses.items() if use != "never" and value]
    limit = _walltime(allocation.time_limit) if policies.time != "never" else None
    lines = [
        *words,
        f"-l select={_select(allocation, policies)}",
        "-l place=scatter:excl" if allocation.is_exclusive(policies) else "-l place=scatter",
        *([f"-l walltime={limit}"] if limit else []),
        *(["-V"] if policies.export != "none" else []),  # other schedulers pass the environment by default
        f"-j oe -o {OUTPUT}",
        *policies.directives,
        *render_settings("pbs", allocation.settings, policies),
    ]
    return tuple(f"#PBS {line}" for line in lines)


def _queue(allocation: Allocation, policies: Policies) -> str | None:
    """Return the queue. In PBS, each reservation has its own queue."""
    return (allocation.reservation if policies.reservation != "never" else None) or allocation.queue


def _select(allocation: Allocation, policies: Policies) -> str:
    """Return a ``select`` specification with one chunk per node: ``4:ncpus=64:mpiprocs=4:ngpus=4:system=polaris``."""
    if allocation.qos is not None and policies.qos != "never":
        raise InvalidInput(
            f"PBS has no quality of service, but {allocation.qos!r} is requested",
            hint="omit --qos; a queue or the site's policies.directives may have the same effect",
        )
    ranks = allocation.ranks_per_node
    cores = allocation.cores_per_node or ranks * (allocation.cores_per_rank or 0)
    memory, gpus = allocation.memory_gib, allocation.gpus_per_node
    resources = {
        "ncpus": cores * (allocation.threads_per_core or 1)
        if cores and (policies.cpus != "none" or allocation.exclusive is False)
        else None,
        "mpiprocs": ranks if policies.tasks != "none" else None,
        "ngpus": gpus if policies.gpus != "none" or allocation.exclusive is False else None,
        "mem": f"{int(memory * 1024)}mb"
        if memory and (allocation.requests_memory or policies.memory in ("mem", "mem-per-cpu"))
        else None,
    }
    chunk = [f"{name}={value}" for name, value in resources.items() if value is not None]
    if allocation.constraint is not None and policies.constraint != "never":
        if not all(_RESOURCE.fullmatch(one) for one in allocation.constraint.split(":")):
            raise InvalidInput(
                f"invalid constraint {allocation.constraint!r}: expected a PBS resource, such as system=polaris",
                hint="separate several resources with colons, as in `-l select`",
            )
        chunk.append(allocation.constraint)
    return ":".join([str(allocation.nodes), *chunk])


def _walltime(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    whole = max(60, math.ceil(seconds))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _word(option: str, value: str) -> str:
    if not _WORD.fullmatch(value):
        raise InvalidInput(
            f"invalid value {value!r} for PBS's {option}: must be one plain word",
            hint="use letters, digits and _ . : / + @ = , - only, and begin with a letter, digit or _",
        )
    return value


# Parsers for job descriptions.


_STATES = {State.PENDING: "QHWTM", State.RUNNING: "RESUB"}
_BY_LETTER = {letter: state for state, letters in _STATES.items() for letter in letters}

_LIMIT = re.compile(r"exceeded resource (\w+)")
_LIMITS = {"walltime": State.TIMEOUT, "cput": State.TIMEOUT} | dict.fromkeys(
    ("mem", "vmem", "pmem", "pvmem"), State.OUT_OF_MEMORY
)
#: Exit statuses for jobs that PBS ended or could not start.
_ENDED_BY = {
    -29: State.TIMEOUT,  # walltime
    -28: State.TIMEOUT,  # cput
    -27: State.OUT_OF_MEMORY,  # mem
    -26: State.OUT_OF_MEMORY,  # vmem
    -20: State.NODE_FAIL,  # one of the job's nodes was lost
    -4: State.NODE_FAIL,  # the MoM was restarted
    -5: State.NODE_FAIL,
    -6: State.NODE_FAIL,
}
_DELETED, _DEPENDENCY_FAILED = "91", "92"  # job substates; a job in 92 with an exit status ended normally
_KEPT = re.compile(
    r"^    (job_state|substate|comment|Exit_status|Hold_Types|estimated\.start_time|history_timestamp|Variable_List)"
    r" = (.*)$",
    re.MULTILINE,
)
_DIRECTORY = re.compile(r"(?:^|,)PBS_O_WORKDIR=((?:\\.|[^,\\])*)")
_ABOUT = {"S": "suspended by PBS", "U": "suspended: its node is in use", "E": "the job is ending"}
_NEVER = "Can Never Run"


def compact(output: str) -> list[str]:
    """Reduce the output of ``qstat -f`` to one line per job, with the fields that ``parse`` needs.

    The JSON format is not used, because OpenPBS 23 only includes the first of several jobs in it.
    """
    unwrapped = output.replace("\n\t", "")
    return [
        json.dumps({"id": block.partition("\n")[0].strip(), **dict(_KEPT.findall(block))})
        for block in re.split(r"(?m)^Job Id: ", unwrapped)[1:]
    ]


def parse(lines: Iterable[str]) -> list[Job]:
    """Parse the lines of ``compact``."""
    return [_job(json.loads(line)) for line in lines]


def never_starts(job: Job) -> StartBlocker | None:
    """Return the scheduler's reason why a job will never start, or None if the job may start."""
    return StartBlocker(job.reason) if job.reason.startswith(_NEVER) else None


def _job(job: Mapping[str, str]) -> Job:
    """Parse a job. Only the states F (finished) and X are final, and unknown states count as running."""
    letter, id, comment = job.get("job_state", ""), job["id"], job.get("comment", "").strip()
    directory = _DIRECTORY.search(job.get("Variable_List", ""))
    mark = re.sub(r"\\(.)", r"\1", directory[1]) if directory else ""
    if letter not in ("F", "X"):
        state = _BY_LETTER.get(letter, State.RUNNING)
        reason = _waiting(job, letter, comment) if state is State.PENDING else _ABOUT.get(letter, "")
        return Job(id, state, letter, mark, reason)
    state, by_itself = _end(job, comment)
    reason = "" if state is State.COMPLETED else _why(job, comment)
    return Job(id, state, letter, mark, reason, float(job.get("history_timestamp", 0)), by_itself)


def _waiting(job: Mapping[str, str], letter: str, comment: str) -> str:
    held = {"u": "held by its owner", "o": "held by an operator", "s": "held by PBS, or for a dependency"}
    holds = [held[kind] for kind in job.get("Hold_Types", "n") if kind in held] if letter == "H" else []
    start = job.get("estimated.start_time")
    return ", ".join([*filter(None, [comment]), *holds, *([f"expected to start at {start}"] if start else [])])


def _end(job: Mapping[str, str], comment: str) -> tuple[State, bool]:
    """Return the final state, and whether the job ended on its own."""
    status, limit = job.get("Exit_status"), _LIMIT.search(comment)
    if limit and limit[1] in _LIMITS:
        return _LIMITS[limit[1]], False
    if status is None or job.get("substate") == _DELETED:
        return State.CANCELLED, False
    if int(status) in _ENDED_BY:
        return _ENDED_BY[int(status)], False
    return (State.COMPLETED if status == "0" else State.FAILED), int(status) >= 0


def _why(job: Mapping[str, str], comment: str) -> str:
    if "Exit_status" not in job:
        failed = job.get("substate") == _DEPENDENCY_FAILED
        return "a job that it depends on did not end as required" if failed else "deleted before it started"
    how = re.sub(r"^Job run at .*? on \S+( and )?", "", comment)
    return f"PBS reports Exit_status {job['Exit_status']}" if how in ("", "failed", "finished") else how


PROGRAMS = Programs(
    dropped=("PBS_", "PMI_", "PMIX_", "PALS_"),
    kept=frozenset(("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_EXEC", "PBS_HOME", "PBS_SERVER")),
    unreachable=re.compile(
        r"cannot connect to (any )?server|connection refused|communication failure|timed? ?out|pbs_iff"
        r"|no default server|end of message|server (is )?shutting down|could not connect|authentication",
        re.IGNORECASE,
    ),
)
_FINISHED, _UNKNOWN = 35, 153  # exit statuses of qstat and qdel
_ID = re.compile(r"^\d+(\[\d*\])?\.\S+$", re.MULTILINE)
#: Hints for qsub error messages.
_HINTS = (
    (r"queue", "qstat -Q lists the queues; choose one with --partition NAME"),
    (
        r"resource limits",
        "qstat -Qf QUEUE shows its limits; request fewer nodes (--nodes), less time (--time) or another queue",
    ),
    (r"account|project|allocation|uid", "use --account NAME"),
    (r"resource", "in the site's file, `policies` set what is requested per node, and `directives` anything else"),
)


class PbsBackend(Backend):
    """PBS, where a job is identified by the directory it was submitted from."""

    traits = SYSTEMS["pbs"]
    programs = PROGRAMS
    asks_by_id = True
    end_seconds = 60.0  # SIGKILL follows kill_delay seconds (10 by default) after SIGTERM

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        return header(allocation, policies)

    def submit(self, run: Run) -> Receipt | None:
        completed = PROGRAMS.call("qsub", run.script.name, timeout=SUBMIT_SECONDS, cwd=run.directory)
        if completed.status != 0:
            raise refusal(completed, _HINTS)
        printed = _ID.search(completed.stdout)  # a site hook may print additional text
        return Receipt(printed.group()) if printed else None

    def query(self, cluster: str | None) -> Sequence[str]:
        # Without the ids from qselect, qstat -f would describe the jobs of all users.
        user = pwd.getpwuid(os.getuid()).pw_name
        selected = PROGRAMS.call("qselect", "-x", "-u", user)
        if selected.status != 0:
            raise NoAnswer(complaint(selected))
        ids = whole_lines(selected)
        return _describe(ids) if ids else []

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        return parse(_describe([id for id in ids if id is not None]))

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        completed = PROGRAMS.call("qstat", "-x", "-f", id)
        if completed.status == _UNKNOWN:
            return None
        found = [job for job in parse(compact(completed.stdout)) if job.id == id]
        if not found or not completed.stdout.endswith("\n\n"):
            raise NoAnswer(complaint(completed))
        return found[0]

    def parse(self, lines: Iterable[str]) -> list[Job]:
        return parse(lines)

    def kill(self, id: str, cluster: str | None) -> None:
        completed = PROGRAMS.call("qdel", id)
        if completed.status not in (0, _FINISHED, _UNKNOWN):
            raise HidlError(f"job {id} could not be cancelled: {complaint(completed)}")

    def never_starts(self, job: Job) -> StartBlocker | None:
        return never_starts(job)


def _describe(ids: Sequence[str]) -> list[str]:
    """Return the ``compact`` lines for these jobs, leaving out unknown jobs."""
    lines = []
    for some in batches(ids):
        completed = PROGRAMS.call("qstat", "-x", "-f", *some)
        if completed.status not in (0, _UNKNOWN, _FINISHED):  # PBS may have purged one of them in the meantime
            raise NoAnswer(complaint(completed))
        if completed.status == 0 and not completed.stdout.endswith("\n\n"):  # a blank line ends each job
            raise NoAnswer("qstat printed incomplete output")
        lines += compact(completed.stdout)
    return lines


BACKEND = PbsBackend

"""A run's directory, the source of truth for the run. Files are written once; only ``status.json`` changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.documents import read_json, write_json, write_text
from hidl_cli.errors import HidlError, UsageError, hint_for
from hidl_cli.redaction import holds_secret


class State(str, Enum):
    """The state of a run, using Slurm's names for the states that Slurm has.

    REFUSED means that the scheduler accepted the job but would never start it. LOST means that the job disappeared
    without recording its end.
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    REFUSED = "REFUSED"
    LOST = "LOST"

    @property
    def is_final(self) -> bool:
        """True if a run in this state has ended."""
        return self not in (State.PENDING, State.RUNNING)


@dataclass(frozen=True)
class Status:
    """The status of a run.

    Attributes:
        step: Number of the current step, counted from 1, out of ``steps``.
        started: Start of the job in seconds since the epoch.
        ended: End of the job in seconds since the epoch.
        reason: The scheduler's explanation of the state.
        job: Id of the job that wrote the status.
        not_written: Reason why the job could not write its last files, such as ``No space left on device``, or None if
            it could.
        not_run: True if the job did not start its program because the run had reached its limits.
    """

    state: State
    step: int = 0
    steps: int = 0
    started: float | None = None
    ended: float | None = None
    exit_status: int | None = None
    hosts: tuple[str, ...] = ()
    reason: str | None = None
    job: str | None = None
    not_written: str | None = None
    not_run: bool = False

    @property
    def is_settled(self) -> bool:
        """True if the run has ended, whatever the scheduler reports.

        Without a reason, only COMPLETED is certain: after any other end, the scheduler may start the job again.
        """
        return self.state is State.COMPLETED or (self.state.is_final and self.reason is not None)

    @property
    def seconds(self) -> float | None:
        """The duration of the job, or None until it has ended."""
        return None if self.started is None or self.ended is None else self.ended - self.started


@dataclass(frozen=True)
class Run:
    """A run, identified by its directory."""

    directory: Path

    @property
    def id(self) -> str:
        """The id of the run, which is the name of its directory."""
        return self.directory.name

    @property
    def script(self) -> Path:
        """The path of the job script."""
        return self.directory / "job.sh"

    @property
    def stdout(self) -> Path:
        """The path of the job's standard output."""
        return self.directory / "stdout.log"

    @property
    def stderr(self) -> Path:
        """The path of the job's standard error."""
        return self.directory / "stderr.log"

    def metrics_file(self, step: int) -> Path:
        """Return the path of the metrics of step ``step``, counted from 1."""
        return self.directory / "steps" / str(step) / "metrics.json"

    def status(self) -> Status:
        """Read the last status that the job wrote, or return PENDING if there is none."""
        try:
            return _status(read_json(self.directory / "status.json"))
        except FileNotFoundError:
            return Status(State.PENDING)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HidlError(f"cannot read {self.directory / 'status.json'}: {error}") from error

    def attempts(self) -> list[Status]:
        """Read the last status of each attempt after which the job was requeued, starting with the oldest."""
        try:
            lines = (self.directory / "attempts.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):  # a line that was cut off by a full disk
                found.append(_status(json.loads(line)))
        return each_job_once(found)

    def next_job(self) -> str | None:
        """Return the id of the job that continues the run after the current one, or None if no job is submitted."""
        try:
            return self._next.read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    def forget_next_job(self) -> None:
        """Remove the id of the next job, which has been cancelled."""
        with suppress(OSError):
            self._next.unlink()

    @property
    def _next(self) -> Path:
        return self.directory / "next"

    def end_as(self, state: State, *, reason: str | None = None) -> Status:
        """Write and return the final state of a job that could not write it itself, and keep the job's other records.

        If the file cannot be written, for example on a full disk, the reason mentions it, and the next call tries
        again.

        Args:
            state: The final state.
            reason: The scheduler's explanation.
        """
        try:
            last = self.status()
        except HidlError:  # damaged by a full disk or a node failure
            last = Status(State.PENDING)
        document = {
            "schema": "hidl.status/1",
            "state": state.value,
            "exit_status": last.exit_status,
            "started": last.started,
            "ended": last.ended,
            "step": last.step,
            "steps": last.steps,
            "hosts": list(last.hosts),
            "reason": reason,
            "job": last.job,
        }
        if last.not_written:
            document["not_written"] = last.not_written
        if last.not_run:
            document["not_run"] = True
        ended = _status(document)
        try:
            write_json(self.directory / "status.json", document)
        except OSError as error:
            why = f"{reason}; " if reason else ""
            ended = replace(ended, reason=f"{why}cannot write status.json: {error.strerror}")
        return ended

    def document(self, name: str) -> dict[str, Any] | None:
        """Read ``metrics``, ``verdict``, ``job`` or another document, or return None if it does not exist."""
        try:
            document = read_json(self.directory / f"{name}.json")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise HidlError(f"cannot read {self.directory / name}.json: {error}") from error
        return document if isinstance(document, dict) else None

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Write ``<name>.json`` atomically."""
        write_json(self.directory / f"{name}.json", document)


def each_job_once(statuses: Iterable[Status]) -> list[Status]:
    """Return the statuses without repetitions: of several with the same start, the one with the latest end.

    A job that waits for the next one has recorded its end in ``attempts.jsonl``, and not in ``status.json``.
    """
    found: dict[float, Status] = {}
    for each in statuses:
        key = -float(len(found)) if each.started is None else each.started
        known = found.get(key)
        if known is None or (each.ended is not None and (known.ended is None or known.ended < each.ended)):
            found[key] = each
    return list(found.values())


def job_id(job: Mapping[str, Any], status: Status) -> str | None:
    """Return the scheduler's id for a run's job, or None on the local host, where jobs have no ids.

    The id comes from ``job.json``, or from the job's own status if that is newer, or if hidl was killed before it
    received the id.
    """
    if "id" not in job:
        return None
    known = job["id"]
    return status.job or (known if isinstance(known, str) else None)


def _status(document: Any) -> Status:
    """Parse ``status.json``; raises ``ValueError``, ``KeyError`` or ``TypeError`` if it is invalid."""
    return Status(
        State(document["state"]),
        document["step"],
        document["steps"],
        document["started"],
        document["ended"],
        document["exit_status"],
        tuple(document["hosts"]),
        document.get("reason"),
        document.get("job"),
        document.get("not_written"),
        document.get("not_run", False),
    )


def create(
    run_id: str,
    plan: dict[str, Any],
    script: str,
    documents: Mapping[str, Any] | None = None,
    *,
    root: Path | None = None,
) -> Run:
    """Create a run's directory with ``plan.json``, ``job.sh`` and any additional documents.

    The directory may already exist and contain files from the run, but not a plan. The job needs the secrets in its
    script, so a directory that contains secrets is accessible only to its owner.

    Args:
        run_id: Id of the run.
        plan: The plan as plain data.
        script: Text of the job script.
        documents: Additional documents, by name.
        root: Directory of all runs (default: the user's).
    """
    run = Run((root or paths.runs()) / run_id)
    try:
        run.directory.mkdir(parents=True, exist_ok=True)
        if (run.directory / "plan.json").exists():
            raise FileExistsError(f"run {run_id} already exists")
        kept = dict(documents or {})
        if holds_secret(script, plan, kept):
            run.directory.chmod(0o700)
        for name, document in kept.items():
            run.write(name, document)
        run.write("plan", plan)
        write_text(run.script, script, mode=0o755)
    except OSError as error:
        raise HidlError(
            f"cannot write the run directory {run.directory}: {error}",
            hint=hint_for(error, "free some space, or set XDG_STATE_HOME to a writable directory"),
        ) from error
    return run


def all_runs(root: Path | None = None) -> Iterator[Run]:
    """Yield all runs of this user, starting with the newest."""
    directory = root or paths.runs()
    for plan in sorted(directory.glob("*/plan.json"), reverse=True):
        yield Run(plan.parent)


def find(name: str | None, root: Path | None = None) -> Run:
    """Return a run by its directory, id, or a unique prefix or suffix of its id; None and ``last`` mean the newest."""
    if name and Path(name, "plan.json").is_file():
        return Run(Path(name).resolve())
    runs = list(all_runs(root))
    if name in (None, "last"):
        if not runs:
            raise UsageError("no runs yet", hint="to start one, run: hidl run WORKLOAD")
        return runs[0]
    fitting = [run for run in runs if run.id.startswith(str(name)) or run.id.endswith(str(name))]
    exact = [run for run in fitting if run.id == name]
    if len(exact or fitting) != 1:
        several = ", ".join(run.id for run in fitting[:5])
        raise UsageError(
            f"{len(fitting)} runs match {name!r}: {several}" if fitting else f"run {name!r} not found",
            hint="to list the runs, run: hidl status",
        )
    return (exact or fitting)[0]

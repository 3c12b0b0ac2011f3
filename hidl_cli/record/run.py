"""A run's directory: the truth about one run. Its files are written once; only ``status.json`` changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import paths
from hidl_cli.documents import read_json, write_json, write_text
from hidl_cli.errors import HidlError, UsageError
from hidl_cli.record.state import State, Status

if TYPE_CHECKING:
    from hidl_cli.runs.plan import Plan


@dataclass(frozen=True)
class Run:
    """One run, by its directory."""

    directory: Path

    @property
    def id(self) -> str:
        """The run's name: the directory's."""
        return self.directory.name

    @property
    def script(self) -> Path:
        """The job script."""
        return self.directory / "job.sh"

    @property
    def stdout(self) -> Path:
        """What the job printed."""
        return self.directory / "stdout.log"

    @property
    def stderr(self) -> Path:
        """What the job complained about."""
        return self.directory / "stderr.log"

    def metrics_file(self, step: int) -> Path:
        """Where step ``step`` (from 1) of the plan leaves its metrics."""
        return self.directory / "steps" / str(step) / "metrics.json"

    def status(self) -> Status:
        """What the job itself said last; PENDING before it said anything."""
        try:
            document = read_json(self.directory / "status.json")
            return Status(
                State(document["state"]),
                document["step"],
                document["steps"],
                document["started"],
                document["ended"],
                document["exit_status"],
                tuple(document["hosts"]),
                document.get("reason"),
            )
        except FileNotFoundError:
            return Status(State.PENDING)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HidlError(f"{self.directory / 'status.json'} cannot be read: {error}") from error

    def end_as(self, state: State, *, reason: str | None = None) -> None:
        """Write the final state of a job that could not write it itself, or did not know it; ``reason``: the
        scheduler's, for people. What the job wrote of its end stays."""
        last = self.status()
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
        }
        write_json(self.directory / "status.json", document)

    def document(self, name: str) -> dict[str, Any] | None:
        """``metrics``, ``verdict`` or ``job``; None where it is not there (yet)."""
        try:
            document = read_json(self.directory / f"{name}.json")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise HidlError(f"{self.directory / name}.json cannot be read: {error}") from error
        return document if isinstance(document, dict) else None

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Write ``<name>.json``, whole or not at all."""
        write_json(self.directory / f"{name}.json", document)


def create(plan: Plan, script: str, *, root: Path | None = None) -> Run:
    """Make the directory of a new run with its plan and its script, under ``root`` (None: the user's runs)."""
    run = Run((root or paths.runs()) / plan.run)
    try:
        run.directory.mkdir(parents=True)
        run.write("plan", plan.to_json())
        write_text(run.script, script, mode=0o755)
    except OSError as error:
        raise HidlError(
            f"the run's directory {run.directory} cannot be written: {error}",
            hint="make room there, or set XDG_STATE_HOME to a directory that can be written",
        ) from error
    return run


def all_runs(root: Path | None = None) -> Iterator[Run]:
    """Every run of this user, the newest first."""
    directory = root or paths.runs()
    for plan in sorted(directory.glob("*/plan.json"), reverse=True):
        yield Run(plan.parent)


def find(name: str | None, root: Path | None = None) -> Run:
    """The run of that id, whose id alone begins or ends so, or in that directory; None or ``last``: the newest."""
    if name and Path(name, "plan.json").is_file():
        return Run(Path(name).resolve())
    runs = list(all_runs(root))
    if name in (None, "last"):
        if not runs:
            raise UsageError("there is no run yet", hint="hidl run WORKLOAD")
        return runs[0]
    fitting = [run for run in runs if run.id.startswith(str(name)) or run.id.endswith(str(name))]
    exact = [run for run in fitting if run.id == name]
    if len(exact or fitting) != 1:
        several = ", ".join(run.id for run in fitting[:5])
        raise UsageError(
            f"{len(fitting)} runs are called {name!r}: {several}" if fitting else f"there is no run {name!r}",
            hint="hidl status lists the runs",
        )
    return (exact or fitting)[0]

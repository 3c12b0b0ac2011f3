"""hidl's launchers and schedulers as ReFrame's: those that ReFrame lacks, or cannot use from hidl's Python."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import batch_systems
from hidl_cli.quoting import sh
from hidl_cli.record.run import Run
from hidl_cli.record.state import State
from hidl_cli.schedulers.backend import Backend, Refused
from hidl_cli.schedulers.programs import NoAnswer
from hidl_cli.validate import launchers

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site

#: Seconds between two queries of one job, the last for ever.
_PAUSES = (0.2, 0.5, 1.0, 2.0)
#: Queries in a row without the job after which it has ended.
_MISSING = 3


def scheduler_in_reframe(site: Site, accounting: bool) -> str:
    """Return the name of ReFrame's scheduler for the site; ``accounting``: it answers."""
    system = batch_systems.system(site.scheduler)
    if system is None:
        return str(site.scheduler)
    if system.reframe is None:
        return _name(system)
    return system.reframe if accounting else system.reframe_without_records or system.reframe


def register(site: Site) -> None:
    """Register with ReFrame what the site needs of hidl's own; again: nothing happens."""
    launchers.register(site)
    system = batch_systems.system(site.scheduler)
    if system is not None and system.reframe is None:
        _register_scheduler(_name(system), batch_systems.SCHEDULERS.get(system.name))


def needed(site: Site) -> list[str]:
    """Return the names of what ``register`` registers."""
    system = batch_systems.system(site.scheduler)
    return [*launchers.ours(site), *([system.name] if system is not None and system.reframe is None else [])]


def _name(system: batch_systems.BatchSystem) -> str:
    return f"hidl-{system.name}"


@dataclass(frozen=True)
class _Staged(Run):
    """A job script of ReFrame's in its stage directory."""

    name: str

    @property
    def script(self) -> Path:
        """See ``Run``."""
        return self.directory / self.name


def _register_scheduler(name: str, backend: Backend) -> None:
    from reframe.core.backends import register_scheduler
    from reframe.core.exceptions import ConfigError, JobError, JobSchedulerError
    from reframe.core.schedulers import Job, JobScheduler

    class Ours(JobScheduler):  # type: ignore[misc]  # ReFrame is not typed
        """Jobs of one batch system, through hidl's backend."""

        def make_job(self, *arguments: Any, **options: Any) -> Any:
            return Job(*arguments, **options)

        def emit_preamble(self, job: Any) -> list[str]:
            """The header, and where output goes. The check's options come before ``access``: hidl reads the first."""
            lines = dict.fromkeys([*job.options, *job.cli_options, *job.sched_access])
            redirection = f"exec > {sh(job.stdout)} 2> {sh(job.stderr)}"
            return [*lines, f"cd {sh(str(Path(job.workdir).resolve()))}", redirection]

        def submit(self, job: Any) -> None:
            directory = Path(job.workdir).resolve()
            try:
                receipt = backend.submit(_Staged(directory, job.script_filename))
            except Refused as refused:
                raise JobSchedulerError(f"{backend.traits.title} refused the job: {refused.words}") from refused
            except NoAnswer as silence:
                raise JobSchedulerError(f"{backend.traits.title} does not answer: {silence}") from silence
            if receipt is None:
                raise JobSchedulerError(f"{backend.traits.submit} printed no job id")
            job._jobid, job._submit_time, job._state, job._missing = receipt.id, time.time(), "PENDING", 0

        def poll(self, *jobs: Any) -> None:
            open_jobs = [job for job in jobs if job is not None and not self.finished(job)]
            if not open_jobs:
                return
            try:
                known = {job.id: job for job in backend.parse(backend.query(None))}
            except NoAnswer as silence:
                self.log(f"{backend.traits.title} does not answer: {silence}")
                return
            for job in open_jobs:
                found = known.get(job.jobid)
                job._missing = 0 if found else job._missing + 1
                if found is not None:
                    job._state = found.state.value
                elif job._missing >= _MISSING:  # forgotten: the job's own record tells how it ended
                    job._state = State.COMPLETED.value
                self._end_what_waits_too_long(job)

        def _end_what_waits_too_long(self, job: Any) -> None:
            waits = job.state == State.PENDING.value and job.max_pending_time
            if waits and time.time() - job.submit_time >= job.max_pending_time:
                self.cancel(job)
                job._exception = JobError("maximum pending time exceeded", job.jobid)

        def finished(self, job: Any) -> bool:
            return State(job.state).is_final

        def wait(self, job: Any) -> None:
            for seconds in chain(_PAUSES, repeat(_PAUSES[-1])):
                self.poll(job)
                if self.finished(job):
                    return
                time.sleep(seconds)

        def cancel(self, job: Any) -> None:
            backend.kill(job.jobid, None)

        def allnodes(self) -> Any:
            raise NotImplementedError(f"{name} lists no nodes")

        def filternodes(self, job: Any, nodes: Any) -> Any:
            raise NotImplementedError(f"{name} filters no nodes")

    try:
        register_scheduler(name)(Ours)
    except ConfigError:  # by an earlier call
        return

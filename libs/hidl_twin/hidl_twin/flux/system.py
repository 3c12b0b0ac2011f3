"""Flux as a stand-in."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hidl_twin.batch import task
from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import FINAL, Job, Store, refuse
from hidl_twin.batch.system import Command, System
from hidl_twin.flux import batch, ids, jobs, resource, run

_VERSION = "0.88.0"
_COMMANDS: Mapping[str, Command] = {
    "batch": batch.batch,
    "submit": batch.submit,
    "jobs": jobs.jobs,
    "job": jobs.job,
    "cancel": jobs.cancel,
    "resource": resource.resource,
    "queue": resource.queue,
    "hostlist": resource.hostlist,
    "getattr": resource.getattr_,
    "version": resource.version,
    "run": run.run,
}
#: A site's rules, as options of flux batch.
_OPTIONS = {"time": "--time-limit", "partition": "--queue", "account": "--bank"}


def flux(store: Store, arguments: Sequence[str]) -> None:
    """``flux COMMAND``."""
    words = list(arguments)
    if words[:1] == ["--parent"]:  # jobs reach the instance that has the queue anyway
        words = words[1:]
    if words[:1] in (["--version"], ["-V"]):
        words = ["version"]
    if not words or words[0] not in _COMMANDS:
        refuse(f"flux: `{words[0] if words else ''}' is not a flux command.  See 'flux --help'", 1)
    _COMMANDS[words[0]](store, words[1:])


class Flux(System):
    """See ``System``."""

    name = "flux"
    title = "Flux"
    daemon = "flux-broker"
    variable = "FLUX_URI"
    commands: ClassVar = {"flux": flux}
    internal: ClassVar = {"task": task.task}

    def environment(self, store: Store, job: Job) -> dict[str, str]:
        """What the initial program of a subinstance finds."""
        return {
            "FLUX_ENCLOSING_ID": ids.f58(int(job.id)),
            "FLUX_URI": f"local://{store.job_directory(job.id)}/local-0",
            "FLUX_TERMINUS_SESSION": "0",
        }

    def place(self, directory: Path) -> Path:
        """The socket's path; Flux itself has a URI here."""
        return directory / "local"

    def obstacle(self, store: Store, job: Job) -> str:
        """A hold (urgency 0), or a dependency that is not met."""
        if job.options.get("urgency") in ("0", "hold"):
            return "held"
        for dependency in filter(None, job.options.get("dependencies", "").split(",")):
            scheme, _, word = dependency.partition(":")
            other = store.job(str(ids.parse(word)))
            if other is not None and (
                (scheme == "after" and other.started is None)
                or (scheme in ("afterany", "afterok", "afternotok") and other.stat not in FINAL)
                or (scheme == "afterok" and other.stat == "EXIT")
                or (scheme == "afternotok" and other.stat == "DONE")
            ):
                return "dependency"
        return ""

    def files(self, store: Store, job: Job) -> tuple[Path, Path]:
        """Files of --output and --error, else flux-ID.out in the job's directory; written while the job runs."""
        given = job.options
        out = self._named(job, given.get("output") or "flux-{{id}}.out")
        return out, self._named(job, given["error"]) if given.get("error") else out

    def _named(self, job: Job, name: str) -> Path:
        names = {"{{id}}": ids.f58(int(job.id)), "{{jobid}}": ids.f58(int(job.id)), "{{name}}": job.options["name"]}
        for tag, value in names.items():
            name = name.replace(tag, value)
        return Path(job.cwd, name)

    def signals(self, reason: str) -> Sequence[signal.Signals]:
        """A time limit is announced by SIGALRM."""
        return (signal.SIGALRM if reason == "TERM_RUNLIMIT" else signal.SIGTERM, signal.SIGTERM, signal.SIGKILL)

    def unanswered(self, store: Store, command: str) -> None:
        """No broker: every command ends at once."""
        words = sys.argv[2:]
        socket = store["local"]
        sub = words[0] if words else "jobs"
        print(f"flux-{sub}: ERROR: Unable to connect to Flux: broker socket {socket} was not found", file=sys.stderr)
        sys.exit(1)

    def host_states(self, store: Store) -> dict[str, str]:
        """As flux resource list shows them."""
        return resource.states(store)

    def settings(self, settings: Settings, rules: Mapping[str, str], account: str) -> Settings:
        """The options that the site requires; scripts start on the first host."""
        required = tuple(_OPTIONS[rule] for rule in rules if rule in _OPTIONS)
        return replace(settings, version=_VERSION, required=required, launch_host=None)

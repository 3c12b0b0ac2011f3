"""What a shell consists of, in its run's directory: the job script, ``bin/ranks`` and the start of bash."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hidl_cli import batch_systems, paths
from hidl_cli.documents import write_text
from hidl_cli.launch.limits import clock
from hidl_cli.plan.job_script import values_of
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.quoting import sh_line
from hidl_cli.record.run import Run
from hidl_cli.shell.prepare import PROGRAM
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import UNSET, variables
from hidl_cli.templates import render_script


@dataclass(frozen=True)
class Files:
    """Their texts; ``ranks_line``: what ``ranks PROGRAM`` starts."""

    script: str
    ranks: str
    bashrc: str
    ranks_line: str

    def write(self, run: Run) -> None:
        """Write what is beside the job script."""
        write_text(run.directory / "bin" / "ranks", self.ranks, mode=0o755)
        write_text(run.directory / "bashrc", self.bashrc)


def make_files(plan: Plan, site: Site, command: Sequence[str], cwd: Path) -> Files:
    """Render them; ``cwd``: where the shell starts."""
    ranks, line = _ranks(plan)
    batch = batch_systems.system(plan.scheduler) is not None
    limit = plan.allocation.time_limit
    login = site.login_host or (socket.gethostname() if batch else "")
    options = [
        *(["--beat"] if batch else []),
        *(["--limit", f"{limit:.0f}"] if limit is not None and not batch else []),
        *("--user", getpass.getuser(), "--login", login),
    ]
    script = render_script(
        "shell.sh.j2",
        {
            **values_of(plan),
            "local_limit": 0,  # what runs at the terminal enforces it
            "batch": batch,
            "command": list(command),
            "cwd": str(cwd),
            "options": options,
            "hints": _hints(plan, line),
        },
    )
    prefix = Path(plan.prefix)
    bashrc = render_script("bashrc.j2", {"unset": UNSET, "variables": variables(prefix, plan.stack)})
    return Files(script, ranks, bashrc, line)


def _ranks(plan: Plan) -> tuple[str, str]:
    """Return the script ``ranks``, and its launch line for people."""
    (step,) = plan.steps
    hosts = str(paths.runs() / plan.run / "steps" / "1" / "hosts")
    launch = replace(step.launch, argv=_at(hosts, step.launch.argv), rest=_at(hosts, step.launch.rest))
    assert launch.words[-1] == PROGRAM
    if launch.input_option is not None:
        launch = replace(launch, argv=(*launch.argv[:-1], launch.input_option, PROGRAM))
    text = render_script(
        "ranks.sh.j2",
        {
            "open_mpi": plan.launcher == "mpirun",
            "title": _title(plan),
            "ranks": step.placement.ranks,
            "launch": launch,
            "argv": launch.argv if launch.rest else launch.argv[:-1],
            "rest": launch.rest[:-1],
        },
    )
    return text, sh_line(launch.words)


def _at(hosts: str, words: Sequence[str]) -> tuple[str, ...]:
    """Name the host file by its whole path: `ranks` is called in any directory."""
    return tuple(hosts if word == "steps/1/hosts" else word for word in words)


def _title(plan: Plan) -> str:
    return plan.steps[0].title.rpartition(",")[0]


def _hints(plan: Plan, ranks_line: str) -> list[str]:
    """What a user wants to know when the shell begins."""
    limit = plan.allocation.time_limit
    until = f" for {clock(limit)}" if limit is not None else ""
    return [
        f"stack {plan.stack} on {plan.site}{until}; exit or Ctrl-D leaves it, and ends all that was started in it",
        f"ranks PROGRAM starts {_title(plan)}: {ranks_line}",
    ]

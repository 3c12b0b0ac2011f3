"""Runs one step as a job script does: the shell functions of ``templates/launchers/`` around a launch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.launch.launchers.contract import Launch
from hidl_cli.plan.job_script import scheduler_values
from hidl_cli.quoting import sh, sh_line
from hidl_cli.templates import render_script
from tests.conftest import REPOSITORY
from tests.waiting import patience

PROGRAMS = REPOSITORY / "tests" / "launch" / "programs"

_PARTS = ("end", "launch", "run_ranks", "as_root", "forwarded", "status")
_BEGIN = """
set -euo pipefail
step=1
child=
mkdir -p steps/1
use_system_programs() { :; } # these tests put programs of their own first on PATH
write_status() {
    printf '%s %s' "$1" "$2" > ended
}
"""


@dataclass(frozen=True)
class Ended:
    """How a step ended: what the script told of it, and what came out."""

    state: str
    status: int
    stdout: str
    stderr: str


def functions() -> str:
    """The shell functions."""
    return _BEGIN + "".join(render_script(f"launchers/{part}.sh.j2", {}) for part in _PARTS)


def script(
    launch: Launch, ranks: int, *, hosts: tuple[str, ...] | None = ("localhost",), exports: Mapping[str, str]
) -> str:
    """A whole job script of one step; ``hosts``: None for those of the Slurm job that it runs in."""
    lines = [functions()]
    lines += [f"export {name}={sh(value)}" for name, value in {**exports, **launch.environment}.items()]
    if hosts is None:
        lines.append(scheduler_values("slurm")["scheduler_functions"])
    listed = "list_hosts" if hosts is None else f"printf '%s\\n' {sh_line(hosts)}"
    line = launch.host_line.format(host="$host")
    lines.append(f'{listed} | while read -r host; do echo "{line}"; done > hosts')
    forwarded = ""
    if launch.forwarded:
        lines.append(f"forwarded {ranks} {launch.forward_option or ''} {sh_line(launch.forwarded)}")
        forwarded = '"${forwarded[@]}"'
    reader = "status_from_stderr" if launch.status_on_stderr else ""
    lines.append(f"launch {ranks} {reader} {sh_line(launch.argv)} {forwarded} {sh_line(launch.rest)}")
    return "\n".join([*lines, "finish COMPLETED 0", ""])


def run(text: str, directory: Path, *, timeout: float = 120, **variables: str) -> Ended:
    """Run a script in ``directory`` in an environment that no launcher has been in."""
    file = directory / "job.sh"
    file.write_text(text, encoding="utf-8")
    environment = {"PATH": f"{PROGRAMS}:/usr/bin:/bin", "HOME": os.environ["HOME"], "LC_ALL": "C.UTF-8", **variables}
    completed = subprocess.run(
        ["bash", file],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(timeout),
        check=False,
    )
    state, _, status = (directory / "ended").read_text().partition(" ")
    return Ended(state, int(status), completed.stdout, completed.stderr)

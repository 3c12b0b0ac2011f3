"""Ranks of a step: started on their hosts by an MPI's own launcher, each as the step's file says (``task``)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hidl_cli import process
from hidl_cli.documents import read_json, write_text
from hidl_twin.batch.host import MARK

_KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TERM", MARK)
#: Keeps Open MPI's mpirun from asking a scheduler whose variables happen to be set.
_NO_SCHEDULER = {"PRTE_MCA_ras": "^slurm,lsf,pbs,gridengine", "PRTE_MCA_plm": "ssh"}
#: Open MPI's mpirun starts nothing as root unless it is told twice; IBM's does.
_AS_ROOT = {f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")}


@dataclass(frozen=True)
class Task:
    """One rank. ``cores``: those that it is bound to, numbers of its host; empty: to none. ``variables``: its own."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    cores: tuple[int, ...]
    gpus: tuple[int, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def run(
    program: Path, directory: Path, tasks: Sequence[Task], step: Mapping[str, Any], launcher: Path
) -> subprocess.Popen[bytes]:
    """Start the step's ranks. ``program``: the stand-in's file; ``launcher``: MPICH's mpiexec, or Open MPI's mpirun.

    ``step``: ``program``, ``cwd``, ``environment``, and what else ``task`` reads.
    """
    document = {**step, "tasks": [asdict(task) for task in tasks]}
    write_text(directory / "step.json", json.dumps(document), mode=0o600)
    own = {name: os.environ[name] for name in _KEPT if name in os.environ} | _AS_ROOT | _NO_SCHEDULER
    own["PATH"] = f"{launcher.parent}:/usr/bin:/bin"
    hosts = directory / "hosts"
    if is_hydra(launcher):
        write_text(hosts, "".join(f"{task.host}:1\n" for task in tasks))
        command = [str(launcher), "-launcher", "ssh", "-f", str(hosts), "-n", str(len(tasks))]
    else:
        write_text(hosts, "".join(f"{task.host}\n" for task in tasks))
        command = [str(launcher), "--hostfile", str(hosts), "-n", str(len(tasks))]
        command += ["--map-by", "seq", "--bind-to", "none"]
    command += [sys.executable, "-IS", str(program), "task", str(directory)]
    # A signal to the whole job reaches the launcher's stand-in, which passes it on: mpirun takes a second one for
    # "at once".
    return process.start_attached(command, cwd=Path.cwd(), env=own, own_session=True)


def is_hydra(launcher: Path) -> bool:
    """Whether it is MPICH's."""
    return (launcher.parent / "hydra_pmi_proxy").exists()


def find(name: str, beside: str, *, first: str | None, path: str) -> Path | None:
    """The program beside which ``beside`` lies: that in prefix ``first``, else one on ``path``."""
    for place in ([f"{first}/bin"] if first else []) + path.split(os.pathsep):
        found = shutil.which(name, path=place)
        if found and (Path(found).parent / beside).exists():
            return Path(found)
    return None


def wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for the step; signals go on to it."""

    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM if number == signal.SIGUSR2 else number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, pass_on)
    return child.wait()


def status(directory: Path, status: int) -> int:
    """The status of the rank that failed first: 128 + the signal where one ended it; else the runtime's."""
    ended = sorted(tuple(read_json(file)) for file in directory.glob("ended.*"))
    failed = [int(code) for _, code in ended if code]
    if failed:
        return failed[0]
    return status if status >= 0 else 128 - status

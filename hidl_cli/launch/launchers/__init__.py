"""Launchers: who starts ranks inside an allocation. One module each, registered by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hidl_cli.errors import UsageError
from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.launchers.ibrun import Ibrun
from hidl_cli.launch.launchers.jsrun import Jsrun
from hidl_cli.launch.launchers.mpiexec import Mpiexec
from hidl_cli.launch.launchers.mpirun import Mpirun
from hidl_cli.launch.launchers.mpirun_rsh import MpirunRsh
from hidl_cli.launch.launchers.srun import Srun


class Launcher(Protocol):
    """Answers one question: how is a program started on every rank of a placement?"""

    name: str

    def launch(self, request: Request) -> Launch:
        """The launch of the request; ``InvalidInput`` where this launcher cannot serve its MPI library."""


def launchers() -> Mapping[str, Launcher]:
    """All launchers by name."""
    known: tuple[Launcher, ...] = (Mpiexec(), Mpirun(), MpirunRsh(), Srun(), Ibrun(), Jsrun())
    return {launcher.name: launcher for launcher in known}


def launcher(name: str) -> Launcher:
    """The launcher of that name; ``UsageError`` where there is none."""
    known = launchers()
    if name not in known:
        raise UsageError(f"there is no launcher {name!r}", hint=f"known launchers: {', '.join(known)}")
    return known[name]

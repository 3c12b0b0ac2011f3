"""Launchers: who starts ranks inside an allocation. One module each, registered by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from hidl_cli.errors import UsageError
from hidl_cli.launch.launchers.mpiexec import Mpiexec
from hidl_cli.launch.placement import Placement


class Launcher(Protocol):
    """Answers one question: which argv starts ``program`` on every rank of a placement."""

    name: str

    def command(self, placement: Placement, program: list[str], *, mpi_prefix: Path, on_one_host: bool) -> list[str]:
        """Return the argv; it is run in the run's directory, where the file ``hosts`` lists the allocation's hosts.

        ``mpi_prefix`` is where the stack's own MPI lies; ``on_one_host``: the allocation is the machine itself.
        """


def launchers() -> Mapping[str, Launcher]:
    """All launchers by name."""
    return {launcher.name: launcher for launcher in (Mpiexec(),)}


def launcher(name: str) -> Launcher:
    """The launcher of that name; ``UsageError`` where there is none."""
    known = launchers()
    if name not in known:
        raise UsageError(f"there is no launcher {name!r}", hint=f"known launchers: {', '.join(known)}")
    return known[name]

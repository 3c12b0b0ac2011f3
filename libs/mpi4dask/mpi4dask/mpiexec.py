"""The `mpiexec` of the MPI library that mpi4py is linked with. Others start ranks that do not form one job."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mpi4dask.errors import Mpi4DaskError

# Runs in a separate process: querying MPI loads the library, which cannot be unloaded.
_ASK = """
import json, re, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
maps = open("/proc/self/maps", errors="surrogateescape").read().splitlines()
paths = [line.split(maxsplit=5)[5] for line in maps if len(line.split(maxsplit=5)) == 6]
mapped = [path for path in paths if re.match(r"libmpi(ch)?[._-]", path.rpartition("/")[2])]
print(json.dumps([MPI.Get_library_version(), mapped[0] if mapped else None]))
"""
_NAMES = ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi", "mpirun")
_HYDRA, _OPEN_MPI = re.compile("HYDRA", re.IGNORECASE), re.compile(r"Open ?MPI|OpenRTE|PRRTE|prte", re.IGNORECASE)

#: Variables of the launcher or batch job of this process, which would attach the ranks to another job.
_FOREIGN = ("PMI", "HYDRA_", "HYDI_", "MPI_LOCAL", "OMPI_COMM_", "PRTE_", "SLURM_")


class NoLauncher(Mpi4DaskError, RuntimeError):
    """No `mpiexec` was found for the MPI library of this Python."""


@dataclass(frozen=True)
class Launcher:
    """An `mpiexec`, and the MPI library for which it was chosen."""

    program: str
    library: str
    open_mpi: bool

    def argv(self, ranks: int) -> list[str]:
        """Return the command that starts `ranks` unbound ranks on this machine."""
        words = [self.program, "-n", str(ranks)]
        return [*words, "--bind-to", "none"] if self.open_mpi else [*words, "-bind-to", "none"]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return `base` without variables of another job, and with those that let Open MPI oversubscribe cores."""
        kept = {name: value for name, value in base.items() if not name.startswith(_FOREIGN)}
        if not self.open_mpi:
            return kept
        kept |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        if os.geteuid() == 0:
            kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return kept


def find(program: str | None = None) -> Launcher:
    """Find the launcher of this Python's MPI: `program` if given, else one installed with the library.

    Raises:
        NoLauncher: There is none, or mpi4py cannot be imported.
    """
    asked = subprocess.run(
        [sys.executable, "-c", _ASK], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if asked.returncode != 0:
        raise NoLauncher(f"mpi4py cannot be imported: {asked.stderr.strip().splitlines()[-1:]}")
    version, file = json.loads(asked.stdout.splitlines()[-1])
    title, open_mpi = " ".join(version.split())[:80], "Open MPI" in version
    tried = [program] if program else list(dict.fromkeys(_candidates(file)))
    for candidate in tried:
        if program or _fits(candidate, open_mpi):
            return Launcher(candidate, title, open_mpi)
    raise NoLauncher(
        f"no mpiexec matches the MPI library that mpi4py is linked with ({title}, {file}); tried: {', '.join(tried)}; "
        "set it with `mpiexec=`"
    )


def _candidates(file: str | None) -> Iterator[str]:
    """Yield launchers near the library's file, up to its prefix, and then those on PATH."""
    for directory in list(Path(file).resolve().parents)[:5] if file else ():
        for name in _NAMES:
            if os.access(directory / "bin" / name, os.X_OK):
                yield str(directory / "bin" / name)
    for name in _NAMES:
        found = shutil.which(name)
        if found:
            yield found


def _fits(program: str, open_mpi: bool) -> bool:
    """Return whether the launcher matches the library; others would start singletons."""
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=30
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool((_OPEN_MPI if open_mpi else _HYDRA).search(said))

"""The binary interfaces of MPI that compiled Python packages were built for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hidl_cli.mpi import abi_of
from hidl_cli.stack import elf

#: What mpi4py's wheels call the interface that is neither MPICH's nor Open MPI's: any library serves.
ANY = "mpiabi"

#: Modules of mpi4py: one per ABI in wheels, a single one if compiled against one library.
_OF_A_WHEEL = re.compile(r"MPI\.(mpich|openmpi|impi|mpiabi|msmpi)\.")
_OF_WHEELS = {"impi": "mpich"}


def of_mpi4py(package: Path) -> frozenset[str]:
    """The ABIs that the mpi4py in this directory was built for; empty if unknown."""
    found: set[str] = set()
    for module in package.glob("MPI.*.so"):
        if of_a_wheel := _OF_A_WHEEL.match(module.name):
            found.add(_OF_WHEELS.get(of_a_wheel[1], of_a_wheel[1]))
        else:
            found |= of_modules([module])
    return frozenset(found)


def of_modules(modules: Iterable[Path]) -> frozenset[str]:
    """The ABIs of the MPI libraries that compiled modules are linked to; empty: of none."""
    return frozenset(abi for module in modules for name in elf.needed(module) or () if (abi := abi_of(name)))

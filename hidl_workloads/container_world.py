"""Check the size of MPI's world inside a container image, which need not have mpi4py.

::

    HIDL_WORLD_SIZE=2 mpiexec -n 2 ... python3 .../hidl_workloads/start.py hidl_workloads.container_world

The MPI library is the one that the dynamic linker finds, which is also that of the programs in the image. An image
without one is not checked: its programs may meet through other libraries, whose worlds are checked in the program.
In a run on GPUs, each rank must find its GPU in the image.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from contextlib import suppress

EXPECTED_SIZE = "HIDL_WORLD_SIZE"
WRONG_WORLD, NO_GPU = 86, 88
"""Exit statuses as of ``hidl_workloads.world``."""

_NAMES = ("libmpi.so.12", "libmpich.so.12", "libmpi.so.40", "libmpi.so")
_WORLD_OF_MPICH = 0x44000000
_LONGEST = 8192


def main() -> int:
    """Return 0 if the world has the expected size, and an exit status otherwise."""
    expected = int(os.environ[EXPECTED_SIZE])
    if os.environ.get("HIDL_DEVICE") == "gpu" and (fault := _without_gpu()):
        _say(fault)
        return NO_GPU
    try:
        library = _load()
    except OSError as error:
        _say(f"hidl: the MPI library in the image cannot be loaded: {error}")
        return WRONG_WORLD
    if library is None:
        if os.environ.get("HIDL_RANK", "0") == "0":
            _say("hidl: no MPI library in the image: only the worlds of frameworks are checked")
        return 0
    if library.MPI_Init(None, None):
        _say("hidl: MPI_Init failed in the image")
        return WRONG_WORLD
    world = _world(library)
    size, rank = ctypes.c_int(), ctypes.c_int()
    library.MPI_Comm_size(world, ctypes.byref(size))
    library.MPI_Comm_rank(world, ctypes.byref(rank))
    name = _version(library)
    library.MPI_Finalize()
    if size.value == expected:
        return 0
    if rank.value == 0 and os.environ.get("RANK", "0") == "0":
        _say(
            f"hidl: wrong world: MPI in the image has {size.value} rank(s), expected {expected} ({name})\n"
            "next: the launcher and the MPI library of the image do not understand each other: set `srun_mpi` of the "
            "library in the site file, or mount an MPI library of the site with --mpi NAME"
        )
    return WRONG_WORLD


def _load() -> ctypes.CDLL | None:
    """Load the MPI library of the image, or return None if there is none. Raises ``OSError`` if it cannot be loaded."""
    found = ctypes.util.find_library("mpi") or ctypes.util.find_library("mpich")
    for name in (*_NAMES, *([found] if found else ())):
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            if not str(error).startswith(f"{name}:"):  # it exists, but lacks a library that it is linked to
                raise
    return None


def _world(library: ctypes.CDLL) -> ctypes.c_void_p | ctypes.c_int:
    """Return MPI_COMM_WORLD, which is an address in Open MPI and a number in MPICH."""
    with suppress(ValueError):
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")))
    return ctypes.c_int(_WORLD_OF_MPICH)


def _version(library: ctypes.CDLL) -> str:
    text, length = ctypes.create_string_buffer(_LONGEST), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    return " ".join(text.value.decode("utf-8", "replace").splitlines()[0].split()) if text.value else "MPI"


def _without_gpu() -> str | None:
    """Return what to say if this rank has no GPU in the image."""
    from hidl_workloads import gpus

    try:
        gpus.take(dict(os.environ), int(os.environ.get("LOCAL_RANK", "0")), first=False)
    except gpus.NoGpu as error:
        return gpus.message(f"in the image, {error}", os.uname().nodename, int(os.environ.get("RANK", "0")))
    return None


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

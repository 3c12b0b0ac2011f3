"""The MPI library that this process uses: its version, and its files that are mapped into memory."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_MAPS = Path("/proc/self/maps")

# libmpi.so.12, libmpich.so.12, libmpi_abi.so.1 (the standard ABI), libmpi_gnu_123.so.12 (Cray), and the copies that
# wheels contain under a mangled name (libmpi-1f2e3d4c.so.12), but not language bindings (libmpi_mpifh.so, ...).
_LIBMPI = re.compile(r"libmpi(ch)?(_abi|_(cray|gnu|intel|nvidia|amd|aocc)(_\d+)?)?(-[0-9a-f]{8})?\.(so|dylib)(\.|$)")


def version() -> str:
    """The library's own version string, its first line with single blanks (``MPICH Version: 5.0.2``)."""
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().replace("\0", " ").splitlines()[0].split())


def mapped() -> tuple[Path, ...] | None:
    """Every MPI library in this process's memory, each distinct file once; None without a /proc/self/maps."""
    if not _MAPS.exists():
        return None
    files: dict[tuple[str, str], Path] = {}
    for line in _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # address, permissions, offset, device, inode, path (which may contain blanks)
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and _LIBMPI.match(fields[5].rpartition("/")[2]):
            files.setdefault((fields[3], fields[4]), Path(fields[5].removesuffix(" (deleted)")))
    return tuple(files.values())


def strange(libraries: Iterable[Path]) -> tuple[Path, ...]:
    """Return the ``libraries`` that are not the stack's own, if it has one and the site sets no other.

    A library that is preloaded takes the place of the one that the stack was made for: mpi4py's wheel runs on either.
    ``MPI4PY_MPIABI`` is what hidl sets where a library of the site is meant.
    """
    places = (Path(sys.prefix, name) for name in ("lib", "lib64"))
    own = {file.resolve() for place in places for file in place.glob("libmpi*") if _LIBMPI.match(file.name)}
    is_of_a_stack = sys.prefix != sys.base_prefix  # otherwise, these are the system's own directories
    if not own or not is_of_a_stack or "MPI4PY_MPIABI" in os.environ:
        return ()
    return tuple(path for path in libraries if path.resolve() not in own)

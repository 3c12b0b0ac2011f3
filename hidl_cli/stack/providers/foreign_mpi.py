"""Expose an external MPI library in a stack's prefix: its programs in ``bin``, and its libraries in ``lib``.

Programs are exposed through wrapper scripts instead of links, because launchers look for their helpers
(``hydra_pmi_proxy``, ``mpispawn``) in the directory from which they were started.
"""

from __future__ import annotations

import os
from pathlib import Path

from hidl_cli.errors import BuildFailed
from hidl_cli.templates import render_script

#: The MPI library programs that get wrapper scripts.
PROGRAMS = (
    "mpiexec", "mpirun", "mpirun_rsh", "mpiexec.hydra", "mpiexec.mpirun_rsh", "mpispawn", "srun",
    "mpicc", "mpicxx", "mpic++", "mpiCC", "mpif77", "mpif90", "mpifort",
    "mpichversion", "mpiname", "mpivars", "ompi_info", "impi_info", "prte",
)  # fmt: skip


def write_wrappers(mpi: Path, prefix: Path) -> None:
    """Write wrapper scripts for an MPI library's programs. Raises ``BuildFailed`` if the library has no launcher."""
    shown = [name for name in PROGRAMS if os.access(mpi / "bin" / name, os.X_OK)]
    if not any(name in shown for name in ("mpiexec", "mpirun", "mpirun_rsh")):
        raise BuildFailed(
            f"no mpiexec, mpirun or mpirun_rsh found in {mpi / 'bin'}",
            hint="`prefix` of the MPI library in the site file must be the directory above bin",
        )
    for name in shown:
        _write(prefix / "bin" / name, mpi / "bin" / name)
    if "mpiexec" not in shown:
        _write(prefix / "bin" / "mpiexec", mpi / "bin" / next(n for n in ("mpirun", "mpirun_rsh") if n in shown))


def link_libraries(mpi: Path, prefix: Path) -> None:
    """Link all files in the library directories of ``mpi`` into ``prefix/lib``, where mpi4py wheels look for MPI.

    All files are linked because libraries look for each other relative to their own location.
    """
    for directory in ("lib64", "lib"):
        for library in sorted((mpi / directory).glob("*")):
            link = prefix / "lib" / library.name
            if not os.path.lexists(link):
                link.symlink_to(os.path.relpath(library, link.parent))


def _write(script: Path, program: Path) -> None:
    script.unlink(missing_ok=True)
    script.write_text(render_script("program.sh.j2", {"program": str(program)}), encoding="utf-8")
    script.chmod(0o755)

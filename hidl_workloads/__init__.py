"""Programs that run inside jobs; they import only what their stack installs."""

from __future__ import annotations

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from mpi4py import MPI

__version__ = "0.1.0"


def should_stop(communicator: MPI.Comm | None = None) -> bool:
    """Return whether the program was asked to stop; see ``hidl_workloads.stop``."""
    from hidl_workloads import stop

    return stop.should_stop(communicator)

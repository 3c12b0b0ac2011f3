"""Is MPI whole at each scale: world size, one library per process, exact sums, ranks bound as the placement says."""

import reframe as rfm
from hidl_checks import LARGE, SMALL, Run
from reframe.core.builtins import parameter, run_after


class MpiSanity(Run):
    """Every rank tells its library and its cores; whatever is wrong ends the run with a status other than 0."""

    workload = "mpi-sanity"
    fill_nodes = True

    @run_after("setup")
    def tell_the_placement(self):
        """What the program is to hold its binding against."""
        placement = self.placement()
        self.assignments = [
            *self.assignments,
            f"ranks_per_node={placement.ranks_per_node}",
            f"cores={placement.threads_per_rank if placement.bind else 0}",
        ]


@rfm.simple_test
class mpi_sanity(MpiSanity):
    """Where every nightly begins."""

    scale = parameter(SMALL)
    tags = {"smoke", "nightly"}


@rfm.simple_test
class mpi_sanity_large(MpiSanity):
    """The same on many nodes."""

    scale = parameter(LARGE)
    tags = {"scale"}

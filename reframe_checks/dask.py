"""Dask over sockets and over MPI: an array's sum with its transpose, the merge of two data frames, and XGBoost.

Scheduler and client come on top of the workers that a scale means, where its nodes would hold less than two workers.
"""

import reframe as rfm
from hidl_checks import LARGE, SMALL, Run, Study
from reframe.core.builtins import parameter, run_after

#: As little of each as still makes workers exchange data.
LITTLE = {
    "dask-transpose": ["size=1000", "chunk_size=250"],
    "dask-merge": ["chunk_size=100000"],
    "dask-xgboost": ["rows=4000", "columns=5", "rounds=5"],
}


@rfm.simple_test
class dask_smoke(Run):
    """Does it run, and is the result what the data say that it must be."""

    application = parameter(LITTLE)
    protocol = parameter(["tcp", "mpi"])
    scale = parameter(SMALL[1:3])
    tags = {"smoke"}

    @run_after("init")
    def choose(self):
        """The application, and how its processes talk."""
        self.workload = self.application
        self.assignments = [*LITTLE[self.application], "runs=1", "warmup=0", f"protocol={self.protocol}"]


class Dask(Study):
    """Throughput against that of the fewest workers, in one allocation."""

    application = parameter(LITTLE)
    protocol = parameter(["tcp", "mpi"])

    @run_after("init")
    def choose(self):
        """The application, and how its processes talk."""
        self.workload = self.application
        self.assignments = [f"protocol={self.protocol}"]


@rfm.simple_test
class dask(Dask):
    """What a nightly can afford."""

    scale = parameter(SMALL[1:])
    tags = {"nightly"}


@rfm.simple_test
class dask_large(Dask):
    """For maintenance days."""

    scale = parameter(LARGE)
    tags = {"scale"}

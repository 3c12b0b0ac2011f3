"""Micro-benchmarks: hidl's own in Python everywhere, OMB's in C where the stack omb is installed."""

import reframe as rfm
from hidl_checks import SMALL, Run
from reframe.core.builtins import parameter, run_after


class Omb(Run):
    """Every size must arrive whole; what is measured goes into the history, and into the report's curves."""

    suite = parameter(["python", "c"])
    iterations = 200
    largest = 65536

    @run_after("init")
    def choose(self):
        """Whose benchmark, by which the stack is chosen too; what arrives is checked."""
        words = {"suite": self.suite, "iterations": self.iterations, "warmup": 20, "max_size": self.largest}
        self.assignments = [*self.assignments, "validation=true", *(f"{name}={value}" for name, value in words.items())]


class OfTwoRanks(Omb):
    """Two ranks: on one node, or one on each of two."""

    scale = parameter(["1-node", "2-nodes"])

    @run_after("init")
    def place_two(self):
        """Neither more nor fewer."""
        self.ranks_per_node = 2 if self.scale == "1-node" else 1


@rfm.simple_test
class osu_latency(OfTwoRanks):
    """Latency by message size."""

    workload = "osu-latency"
    tags = {"nightly"}


@rfm.simple_test
class osu_bw(OfTwoRanks):
    """Bandwidth by message size."""

    workload = "osu-bw"
    iterations = 20
    largest = 1048576
    tags = {"nightly"}


@rfm.simple_test
class osu_allreduce(Omb):
    """The collective that trainings wait for, on all ranks of each scale."""

    workload = "osu-allreduce"
    scale = parameter(SMALL[1:])
    fill_nodes = True
    tags = {"nightly"}

"""A GPT-style decoder, trained with PyTorch over MPI: does it run in every kind of parallelism, and does it scale."""

import reframe as rfm
from hidl_checks import LARGE, SMALL, Run, Study
from reframe.core.builtins import parameter, run_after

#: As little of it as still trains.
LITTLE = ["layers=4", "width=32", "context=16", "vocabulary=100", "batch=2", "steps=2", "warmup=1"]


@rfm.simple_test
class gpt_smoke(Run):
    """Each kind of parallelism on a small network: all ranks must end with the same weights."""

    workload = "gpt"
    parallel = parameter(["ddp", "fsdp", "hsdp", "tp", "pp"])
    scale = parameter(SMALL[1:2])
    ranks_per_node = 2
    tags = {"smoke"}

    @run_after("init")
    def choose(self):
        """The kind of parallelism, over MPI."""
        self.assignments = [*LITTLE, "backend=mpi", f"parallel={self.parallel}"]


class Gpt(Study):
    """Tokens per second with a batch for each rank (weak scaling)."""

    workload = "gpt"
    parallel = parameter(["ddp", "fsdp"])

    @run_after("init")
    def choose(self):
        """The kind of parallelism, over MPI."""
        self.assignments = ["backend=mpi", f"parallel={self.parallel}"]


class GptStrong(Study):
    """The time of a step on a batch of the same size (strong scaling)."""

    workload = "gpt-strong"
    assignments = ["backend=mpi"]

    @run_after("setup")
    def choose_batch(self):
        """Four sequences for each rank of the largest step, which smaller steps divide too."""
        self.assignments = [*self.assignments, f"total_batch={4 * self.placement().ranks}"]


@rfm.simple_test
class gpt(Gpt):
    """What a nightly can afford."""

    scale = parameter(SMALL[1:])
    tags = {"nightly"}


@rfm.simple_test
class gpt_large(Gpt):
    """For maintenance days."""

    scale = parameter(LARGE)
    tags = {"scale"}


@rfm.simple_test
class gpt_strong(GptStrong):
    """What a nightly can afford."""

    scale = parameter(SMALL[1:])
    tags = {"nightly"}


@rfm.simple_test
class gpt_strong_large(GptStrong):
    """For maintenance days."""

    scale = parameter(LARGE)
    tags = {"scale"}

"""Keras models trained by hyparflow, in replicas and in partitions: do they train, and do they scale."""

import reframe as rfm
from hidl_checks import LARGE, SMALL, Run, Study
from reframe.core.builtins import parameter, run_after

#: As little of it as still trains: eight layers, a batch in two micro-batches.
LITTLE = ["depth=8", "batch=8", "micro_batches=2", "steps=2", "warmup=1", "costs=estimated"]


@rfm.simple_test
class hyparflow_smoke(Run):
    """A small ResNet on a few images: ranks that hold the same weights must end with the same."""

    workload = "hyparflow-resnet"
    mode = parameter(["data", "model"])
    scale = parameter(SMALL[1:3])
    tags = {"smoke"}

    @run_after("init")
    def choose(self):
        """Replicas, or partitions of one."""
        self.assignments = [*LITTLE, f"mode={self.mode}"]


class Hyparflow(Study):
    """Images per second against those of one rank or node."""

    workload = "hyparflow-resnet"
    mode = parameter(["data", "model"])

    @run_after("init")
    def choose(self):
        """Replicas, each with a batch of its own, or one batch through partitions, which costs a bubble."""
        self.assignments = [f"mode={self.mode}", "depth=56", "batch=256"]


@rfm.simple_test
class hyparflow(Hyparflow):
    """What a nightly can afford."""

    scale = parameter(SMALL[1:])
    tags = {"nightly"}


@rfm.simple_test
class hyparflow_large(Hyparflow):
    """For maintenance days."""

    mode = parameter(["data"])
    scale = parameter(LARGE)
    tags = {"scale"}

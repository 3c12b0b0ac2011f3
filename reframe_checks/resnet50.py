"""ResNet-50, trained by each framework over MPI and by each backend: does it run, and does it scale."""

import reframe as rfm
from hidl_checks import LARGE, SMALL, Run, Study
from reframe.core.builtins import parameter, run_after


@rfm.simple_test
class resnet50_smoke(Run):
    """As little of it as still trains: all ranks must end with the same weights."""

    workload = "resnet50"
    framework = parameter(["torch", "tensorflow"])
    scale = parameter(SMALL[1:3])
    assignments = ["image_size=32", "batch=2", "steps=2", "warmup=1"]
    tags = {"smoke"}

    @run_after("init")
    def choose(self):
        """The framework, by which the stack is chosen too."""
        self.assignments = [*self.assignments, f"framework={self.framework}"]


@rfm.simple_test
class resnet50_backends(Run):
    """Each way to average the gradients that is not our own, where the stack that has it is installed."""

    workload = "resnet50"
    backend = parameter(["horovod", "gloo"])
    framework = parameter(["torch", "tensorflow"])
    scale = parameter(SMALL[1:2])
    assignments = ["image_size=32", "batch=2", "steps=2", "warmup=1"]
    tags = {"nightly"}

    @run_after("init")
    def choose(self):
        """The backend and the framework, by which the stack is chosen too."""
        self.assignments = [*self.assignments, f"framework={self.framework}", f"backend={self.backend}"]


class Resnet50(Study):
    """Images per second against those of one rank or node, in one allocation."""

    workload = "resnet50"
    framework = parameter(["torch", "tensorflow"])

    @run_after("init")
    def choose(self):
        """The framework, by which the stack is chosen too."""
        self.assignments = [*self.assignments, f"framework={self.framework}"]


@rfm.simple_test
class resnet50(Resnet50):
    """What a nightly can afford."""

    scale = parameter(SMALL[1:])
    tags = {"nightly"}


@rfm.simple_test
class resnet50_large(Resnet50):
    """For maintenance days."""

    scale = parameter(LARGE)
    tags = {"scale"}

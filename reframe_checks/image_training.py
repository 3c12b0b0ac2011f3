"""Networks for images beside ResNet-50, trained by each framework over MPI: do they run, and do they scale."""

import reframe as rfm
from hidl_checks import LARGE, SMALL, Run, Study
from reframe.core.builtins import parameter, run_after

#: Smallest images that each network accepts.
SIDES = {"resnet101": 32, "resnet152": 32, "vgg16": 32, "inception3": 75, "mobilenet": 32}


@rfm.simple_test
class image_training_smoke(Run):
    """As little of each as still trains: all ranks must end with the same weights."""

    workload = "image-training"
    model = parameter(SIDES)
    framework = parameter(["torch", "tensorflow"])
    scale = parameter(SMALL[1:2])
    tags = {"smoke"}

    @run_after("init")
    def choose(self):
        """The network and the framework, by which the stack is chosen too."""
        little = [f"image_size={SIDES[self.model]}", "batch=2", "steps=2", "warmup=1", "learning_rate=0.001"]
        self.assignments = [*little, f"model={self.model}", f"framework={self.framework}"]


class ImageTraining(Study):
    """Images per second against those of one rank or node: the most gradients (VGG-16), and the fewest (MobileNet)."""

    workload = "image-training"
    model = parameter(["vgg16", "mobilenet"])

    @run_after("init")
    def choose(self):
        """The network."""
        self.assignments = [f"model={self.model}"]


@rfm.simple_test
class image_training(ImageTraining):
    """What a nightly can afford."""

    scale = parameter(SMALL[1:])
    tags = {"nightly"}


@rfm.simple_test
class image_training_large(ImageTraining):
    """For maintenance days."""

    scale = parameter(LARGE)
    tags = {"scale"}

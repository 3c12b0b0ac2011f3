"""k-means by allreduced sums and counts: does it run, and does it scale."""

import reframe as rfm
from hidl_checks import LARGE, SMALL, Run, Study
from reframe.core.builtins import parameter


@rfm.simple_test
class kmeans_smoke(Run):
    """A small one: all ranks must end with the same centers, and the program checks the clustering."""

    workload = "kmeans"
    scale = parameter(SMALL[1:3])
    assignments = ["points=20000", "steps=2", "warmup=1"]
    tags = {"smoke"}


class Kmeans(Study):
    """Points per second against those of one rank or node, with as many points for each rank."""

    workload = "kmeans-weak"


@rfm.simple_test
class kmeans(Kmeans):
    """What a nightly can afford."""

    scale = parameter(SMALL[1:])
    tags = {"nightly"}


@rfm.simple_test
class kmeans_large(Kmeans):
    """For maintenance days."""

    scale = parameter(LARGE)
    tags = {"scale"}

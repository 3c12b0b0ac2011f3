"""What checks are made of: ``Run``, one run of a workload, and ``Study``, how it scales, judged.

::

    @rfm.simple_test
    class osu_allreduce(Study):
        workload = "osu-allreduce"
        scale = parameter(SMALL)
        tags = {"nightly"}
"""

from hidl_checks.run import Run
from hidl_checks.study import Study
from hidl_cli.validate.reframe import FULL, LARGE, NAMES, SMALL

__all__ = ["FULL", "LARGE", "NAMES", "SMALL", "Run", "Study"]

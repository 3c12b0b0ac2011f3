"""``Study``: how a workload scales up to one scale, against a baseline that is measured in the same allocation."""

from dataclasses import replace

from reframe.core.builtins import variable

from hidl_checks.run import Run


class Study(Run):
    """A scaling study: it holds where hidl's verdict is a pass. One rank alone is no study: leave ``1-rank`` out.

    The numbers below are hidl's own defaults where they are 0.
    """

    #: Repetitions of each size, and the efficiency to reach (``hidl run --repeat``, ``--target``).
    repeat = variable(int, value=0)
    target = variable(float, value=0.0)

    def wish(self):
        """What is to be run."""
        return replace(super().wish(), study=True, repeat=self.repeat or None, target=self.target or None)

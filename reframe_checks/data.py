"""Trainings on archives that are made for the check: do all ranks find, read and share the samples."""

from pathlib import Path

import reframe as rfm
from hidl_checks import SMALL, Run
from reframe.core.builtins import parameter, run_after

from hidl_workloads import archives

STEPS = ["batch=2", "steps=3", "warmup=1"]
#: As little of each workload as still trains.
LITTLE = {
    "resnet50": [*STEPS, "image_size=32"],
    "gpt": [*STEPS, "layers=2", "width=32", "context=16", "vocabulary=100"],
}


@rfm.simple_test
class data_smoke(Run):
    """Three epochs or more of a small data set, in the check's directory, which all nodes must see."""

    application = parameter(LITTLE)
    scale = parameter(SMALL[1:3])
    tags = {"smoke"}

    @run_after("init")
    def choose(self):
        """The workload."""
        self.workload = self.application
        self.assignments = LITTLE[self.application]

    @run_after("setup")
    def make_data(self):
        """Write the archives, of fewer samples than the ranks train on."""
        directory = Path(self.stagedir) / "data"
        if self.application == "gpt":
            archives.make_tokens(directory, tokens=60, vocabulary=100, shards=3, seed=0)
        else:
            archives.make_images(directory, samples=5, side=40, classes=3, shards=3, seed=0)
        self.assignments = [*self.assignments, f"data={directory}"]

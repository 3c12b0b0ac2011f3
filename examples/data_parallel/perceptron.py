# perceptron.py
from dataclasses import dataclass

import numpy as np

from hidl_workloads.arguments import parameter
from hidl_workloads.parameters import Training
from hidl_workloads.training.model import Batch, Model
from hidl_workloads.training.program import main


@dataclass(frozen=True)
class Parameters(Training):
    width: int = parameter(512, min=1, help="elements of a layer")


class Perceptron(Model):
    title, items, label = "Perceptron", "samples", "Samples"

    def __init__(self, parameters):
        self.parameters = parameters

    def items_per_step(self):
        return self.parameters.batch

    def describe_batch(self):
        return f"{self.parameters.batch} per rank"

    def make_batch(self, random):
        inputs = random.standard_normal((self.parameters.batch, 20), np.float32)
        return Batch(inputs, (inputs.sum(1) > 0).astype(np.int64))

    def torch_network(self):
        from torch import nn

        width = self.parameters.width
        return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 2))


main("perceptron", Parameters, Perceptron)

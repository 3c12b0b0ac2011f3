"""Data-parallel training of networks that classify images with PyTorch or TensorFlow.

``python -m hidl_workloads.image_training --model=vgg16 --framework=torch --batch=8 ...``; ``--help`` lists the
parameters. ``hidl_workloads.resnet50`` is the same with ResNet-50.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hidl_workloads.parameters import ImageTraining, Resnet50
from hidl_workloads.training.model import Batch, DataSet, Model

if TYPE_CHECKING:
    from mpi4py import MPI

CLASSES = 1000


@dataclass(frozen=True)
class Network:
    """A network of ``hidl_workloads.image_networks``, and its counterpart in Keras.

    Attributes:
        title: Name in the report.
        keras: Name in ``keras.applications``.
        side: Height and width in pixels of the images in its publication.
        smallest: Smallest height and width that it accepts.
    """

    title: str
    keras: str
    side: int = 224
    smallest: int = 32


NETWORKS = {
    "resnet50": Network("ResNet-50", "ResNet50"),
    "resnet101": Network("ResNet-101", "ResNet101"),
    "resnet152": Network("ResNet-152", "ResNet152"),
    "vgg16": Network("VGG-16", "VGG16"),
    "inception3": Network("Inception-v3", "InceptionV3", side=299, smallest=75),
    "mobilenet": Network("MobileNet", "MobileNet"),
}


class Images(Model):
    """Images, (N, 3, H, W): of archives, or synthetic ones of a normal distribution, each of a random class."""

    items = "images"
    label = "Img"

    def __init__(self, parameters: Resnet50 | ImageTraining) -> None:
        """Raise ``ValueError`` if the images are too small for the network."""
        self._name = getattr(parameters, "model", "resnet50")
        network = NETWORKS[self._name]
        self.title = network.title
        self._seed = parameters.seed
        self._batch, self._side = parameters.batch, parameters.image_size or network.side
        if self._side < network.smallest:
            raise ValueError(f"image_size must be at least {network.smallest} for {self._name}, not {self._side}")

    def items_per_step(self) -> int:
        """Return the images of a step."""
        return self._batch

    def describe_batch(self) -> str:
        """Return the images of a batch and their size."""
        return f"{self._batch} per rank, images of {self._side} x {self._side} pixels"

    def make_batch(self, random: np.random.Generator) -> Batch:
        """Return images and their classes."""
        images = random.standard_normal((self._batch, 3, self._side, self._side), np.float32)
        return Batch(images, random.integers(CLASSES, size=self._batch))

    def open_data(self, communicator: MPI.Comm, path: Path) -> DataSet:
        """Open archives of images."""
        from hidl_workloads.training.data import ImageData

        return ImageData(communicator, path, side=self._side, classes=CLASSES, seed=self._seed)

    def torch_network(self) -> Any:
        """Return the network in the layout of ``torch_inputs``."""
        import torch

        from hidl_workloads import image_networks

        return getattr(image_networks, self._name)(CLASSES).to(memory_format=torch.channels_last)

    def torch_inputs(self, inputs: NDArray[Any]) -> Any:
        """Return the images with the channels last, which on CPUs makes a step on 64 pixels 1.5 times as fast."""
        import torch

        return torch.from_numpy(inputs).contiguous(memory_format=torch.channels_last)

    def keras_network(self) -> Any:
        """Return the network of ``keras.applications``."""
        import keras

        return getattr(keras.applications, NETWORKS[self._name].keras)(
            weights=None, classes=CLASSES, classifier_activation=None, input_shape=(self._side, self._side, 3)
        )

    def keras_inputs(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return the images with the channels last."""
        return inputs.transpose(0, 2, 3, 1)


if __name__ == "__main__":
    from hidl_workloads.training.program import main

    main("image-training", ImageTraining, Images)

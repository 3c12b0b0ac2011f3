"""Data-parallel training of ResNet-50 on synthetic images, with PyTorch or TensorFlow.

``python -m hidl_workloads.resnet50 --framework=torch --batch=8 ...``; ``--help`` lists the parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidl_workloads.parameters import Resnet50
from hidl_workloads.training.model import Batch, Model

CLASSES = 1000
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, number of blocks, stride of the first block
_EXPANSION = 4


class ResNet50(Model):
    """Synthetic images, (N, 3, H, W) of a normal distribution, each of a random class."""

    title = "ResNet-50"
    items = "images"
    label = "Img"

    def __init__(self, parameters: Resnet50) -> None:
        self._batch, self._side = parameters.batch, parameters.image_size

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

    def torch_network(self) -> Any:
        """Return the network in the layout of ``torch_inputs``."""
        import torch

        return torch_network(CLASSES).to(memory_format=torch.channels_last)

    def torch_inputs(self, inputs: NDArray[Any]) -> Any:
        """Return the images with the channels last, which on CPUs makes a step on 64 pixels 1.5 times as fast."""
        import torch

        return torch.from_numpy(inputs).contiguous(memory_format=torch.channels_last)

    def keras_network(self) -> Any:
        """Return ``keras.applications.ResNet50``."""
        import keras

        return keras.applications.ResNet50(
            weights=None, classes=CLASSES, classifier_activation=None, input_shape=(self._side, self._side, 3)
        )

    def keras_inputs(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return the images with the channels last."""
        return inputs.transpose(0, 2, 3, 1)


def torch_network(classes: int = CLASSES) -> Any:
    """Return ResNet-50 for PyTorch: torchvision's names, initial values and 25,557,032 parameters for 1000 classes.

    (torchvision's own package has no build for every CPU build of PyTorch.)
    """
    import torch
    from torch import nn

    class Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
        """1x1, 3x3, 1x1 convolutions around a shortcut, from ``channels`` to ``4 * width`` channels.

        He et al., Deep Residual Learning for Image Recognition (2015), as "v1.5": the 3x3 convolution has the stride.
        """

        def __init__(self, channels: int, width: int, stride: int) -> None:
            super().__init__()
            out = _EXPANSION * width
            self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.conv3 = nn.Conv2d(width, out, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(out)
            self.relu = nn.ReLU(inplace=True)
            self.downsample = None
            if stride != 1 or channels != out:
                self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Map (N, channels, H, W) to (N, 4 * width, H / stride, W / stride)."""
            y = self.relu(self.bn1(self.conv1(x)))
            y = self.relu(self.bn2(self.conv2(y)))
            y = self.bn3(self.conv3(y))
            shortcut = x if self.downsample is None else self.downsample(x)
            return self.relu(y + shortcut)

    class Network(nn.Module):  # type: ignore[misc]
        """The network, whose ``fc`` maps to the classes."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(64)
            self.relu = nn.ReLU(inplace=True)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
            channels = 64
            for number, (width, blocks, stride) in enumerate(_STAGES, start=1):
                layers = [Bottleneck(channels, width, stride)]
                channels = _EXPANSION * width
                layers += [Bottleneck(channels, width, 1) for _ in range(blocks - 1)]
                self.add_module(f"layer{number}", nn.Sequential(*layers))
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(channels, classes)
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Map images (N, 3, H, W) to logits (N, classes)."""
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(torch.flatten(self.avgpool(x), 1))

    return Network()


if __name__ == "__main__":
    from hidl_workloads.training.program import main

    main("resnet50", Resnet50, ResNet50)

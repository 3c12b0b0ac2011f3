"""Networks that classify images, in PyTorch: the names of torchvision's layers, its initial values and its sizes.

(torchvision's own package has no build for every CPU build of PyTorch.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

CLASSES = 1000

_EXPANSION = 4
_WIDTHS = (64, 128, 256, 512)  # of ResNet's stages
_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels and convolutions between two poolings
_MOBILENET = (  # channels and stride of each separable convolution
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *[(512, 1)] * 5,
    *((1024, 2), (1024, 1)),
)

#: The convolutions of a branch, one after the other: channels, kernel and, unless it is 1, the stride.
_Branch = Sequence[tuple[Any, ...]]


def resnet50(classes: int = CLASSES) -> Any:
    """Return ResNet-50: 25,557,032 parameters.

    He et al., Deep Residual Learning for Image Recognition (2015), as "v1.5": the 3x3 convolution has the stride.
    """
    return _resnet((3, 4, 6, 3), classes)


def resnet101(classes: int = CLASSES) -> Any:
    """Return ResNet-101: 44,549,160 parameters."""
    return _resnet((3, 4, 23, 3), classes)


def resnet152(classes: int = CLASSES) -> Any:
    """Return ResNet-152: 60,192,808 parameters."""
    return _resnet((3, 8, 36, 3), classes)


def vgg16(classes: int = CLASSES) -> Any:
    """Return VGG-16, whose 138,357,544 parameters do not depend on the size of the images.

    Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition (2014).
    """
    network = _VGG(classes)
    _initialize_like_he(network)
    for module in network.classifier:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)
    return network


def inception3(classes: int = CLASSES) -> Any:
    """Return Inception-v3 without the auxiliary classifier: 23,834,568 parameters.

    Szegedy et al., Rethinking the Inception Architecture for Computer Vision (2015).
    """
    network = _Inception(classes)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.1)
    return network


def mobilenet(classes: int = CLASSES) -> Any:
    """Return MobileNet, of width 1 and the first version, which torchvision does not have: 4,231,976 parameters.

    Howard et al., MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications (2017).
    """
    layers: list[nn.Module] = _normalized(3, 32, 3, 2, relu=nn.ReLU6)
    channels = 32
    for out, stride in _MOBILENET:
        layers += _normalized(channels, channels, 3, stride, groups=channels, relu=nn.ReLU6)
        layers += _normalized(channels, out, 1, relu=nn.ReLU6)
        channels = out
    tail = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.001), nn.Linear(channels, classes))
    network = nn.Sequential(*layers, *tail)
    _initialize_like_he(network)
    return network


def _resnet(blocks: Sequence[int], classes: int) -> Any:
    network = _ResNet(blocks, classes)
    _initialize_like_he(network)
    return network


def _initialize_like_he(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _normalized(
    channels: int, out: int, kernel: int, stride: int = 1, *, groups: int = 1, relu: type[nn.Module] = nn.ReLU
) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out), relu(inplace=True)]


class _Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """1x1, 3x3, 1x1 convolutions around a shortcut, from ``channels`` to ``4 * width`` channels."""

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


class _ResNet(nn.Module):  # type: ignore[misc]
    """The network, whose ``fc`` maps to the classes."""

    def __init__(self, blocks: Sequence[int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for number, (width, count) in enumerate(zip(_WIDTHS, blocks, strict=True), start=1):
            layers = [_Bottleneck(channels, width, stride=1 if number == 1 else 2)]
            channels = _EXPANSION * width
            layers += [_Bottleneck(channels, width, 1) for _ in range(count - 1)]
            self.add_module(f"layer{number}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class _VGG(nn.Module):  # type: ignore[misc]
    """The network, whose ``classifier`` has nine tenths of the parameters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, count in _VGG16:
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        hidden = 4096
        self.classifier = nn.Sequential(
            *(nn.Linear(channels * 7 * 7, hidden), nn.ReLU(inplace=True), nn.Dropout()),
            *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout()),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class _Convolution(nn.Module):  # type: ignore[misc]
    """A convolution, normalised, and ReLU; padded unless it has a stride."""

    def __init__(self, channels: int, out: int, kernel: Any, stride: int = 1, *, padded: bool = True) -> None:
        super().__init__()
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (height // 2, width // 2) if padded and stride == 1 else 0
        self.conv = nn.Conv2d(channels, out, (height, width), stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, channels, H, W) to (N, out, H / stride, W / stride)."""
        return nn.functional.relu(self.bn(self.conv(x)), inplace=True)


class _Mixed(nn.Module):  # type: ignore[misc]
    """Branches of convolutions, joined by their channels.

    ``branch_pool`` begins with the average of 3x3 pixels, and a module that halves the image has a branch of their
    maximum. If the last layer of a branch is two convolutions, both have the same input.
    """

    def __init__(self, channels: int, branches: Mapping[str, _Branch]) -> None:
        super().__init__()
        self.channels = 0
        self._chains: list[tuple[str, list[list[str]]]] = []
        self._halves = any(layer[2:] == (2,) for branch in branches.values() for layer in branch)
        for name, branch in branches.items():
            width, chain = channels, []
            for number, layer in enumerate(branch, start=1):
                label = name if len(branch) == 1 else f"{name}_{number}"
                fork = isinstance(layer[0], tuple)
                parallel = {f"{label}a": layer[0], f"{label}b": layer[1]} if fork else {label: layer}
                for each, convolution in parallel.items():
                    self.add_module(each, _Convolution(width, *convolution))
                chain.append(list(parallel))
                width = sum(convolution[0] for convolution in parallel.values())
            self._chains.append((name, chain))
            self.channels += width
        self.channels += channels if self._halves else 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, C, H, W) to (N, channels, H, W), or to half of the height and width."""
        outputs = []
        for name, chain in self._chains:
            y = nn.functional.avg_pool2d(x, 3, stride=1, padding=1) if name == "branch_pool" else x
            for layer in chain:
                y = torch.cat([getattr(self, each)(y) for each in layer], 1)
            outputs.append(y)
        if self._halves:
            outputs.append(nn.functional.max_pool2d(x, 3, stride=2))
        return torch.cat(outputs, 1)


def _mixed_5(pooled: int) -> Mapping[str, _Branch]:
    return {
        "branch1x1": [(64, 1)],
        "branch5x5": [(48, 1), (64, 5)],
        "branch3x3dbl": [(64, 1), (96, 3), (96, 3)],
        "branch_pool": [(pooled, 1)],
    }


def _mixed_6(width: int) -> Mapping[str, _Branch]:
    across, down = (1, 7), (7, 1)
    return {
        "branch1x1": [(192, 1)],
        "branch7x7": [(width, 1), (width, across), (192, down)],
        "branch7x7dbl": [(width, 1), (width, down), (width, across), (width, down), (192, across)],
        "branch_pool": [(192, 1)],
    }


def _mixed_7() -> Mapping[str, _Branch]:
    fork = ((384, (1, 3)), (384, (3, 1)))
    return {
        "branch1x1": [(320, 1)],
        "branch3x3": [(384, 1), fork],
        "branch3x3dbl": [(448, 1), (384, 3), fork],
        "branch_pool": [(192, 1)],
    }


_INCEPTION: Mapping[str, Mapping[str, _Branch]] = {
    "Mixed_5b": _mixed_5(32),
    "Mixed_5c": _mixed_5(64),
    "Mixed_5d": _mixed_5(64),
    "Mixed_6a": {"branch3x3": [(384, 3, 2)], "branch3x3dbl": [(64, 1), (96, 3), (96, 3, 2)]},
    "Mixed_6b": _mixed_6(128),
    "Mixed_6c": _mixed_6(160),
    "Mixed_6d": _mixed_6(160),
    "Mixed_6e": _mixed_6(192),
    "Mixed_7a": {
        "branch3x3": [(192, 1), (320, 3, 2)],
        "branch7x7x3": [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)],
    },
    "Mixed_7b": _mixed_7(),
    "Mixed_7c": _mixed_7(),
}


class _Inception(nn.Module):  # type: ignore[misc]
    """The network, whose ``fc`` maps to the classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = _Convolution(3, 32, 3, 2)
        self.Conv2d_2a_3x3 = _Convolution(32, 32, 3, padded=False)
        self.Conv2d_2b_3x3 = _Convolution(32, 64, 3)
        self.maxpool1 = nn.MaxPool2d(3, 2)
        self.Conv2d_3b_1x1 = _Convolution(64, 80, 1)
        self.Conv2d_4a_3x3 = _Convolution(80, 192, 3, padded=False)
        self.maxpool2 = nn.MaxPool2d(3, 2)
        channels = 192
        for name, branches in _INCEPTION.items():
            mixed = _Mixed(channels, branches)
            self.add_module(name, mixed)
            channels = mixed.channels
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout()
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        x = self.maxpool1(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        for name in _INCEPTION:
            x = getattr(self, name)(x)
        return self.fc(self.dropout(torch.flatten(self.avgpool(x), 1)))

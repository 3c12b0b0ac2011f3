"""Well-known models as graphs, built without a framework, to estimate trainings at any scale.

ResNets and VGGs for images of 32 x 32 with the layers, widths and biases of Keras' example `cifar10_resnet` (version 1:
He et al. 2015, section 4.2; version 2: He et al. 2016, where ResNet-1001 has 30.5 million parameters) and of Simonyan
and Zisserman 2014.
"""

from __future__ import annotations

import math
import re

from hyparflow.errors import PlanError
from hyparflow.graph.types import Graph, Node, Tensor

CLASSES = 10
NAMES = "resnet<depth>v1 (6n+2 layers), resnet<depth>v2 (9n+2 layers), vgg11, vgg13, vgg16, vgg19"


def model(name: str) -> Graph | None:
    """Return the graph of `resnet1001v2`, `vgg16`, ...; None for other names.

    Raises:
        PlanError: A ResNet or VGG has no such depth.
    """
    if match := re.fullmatch(r"resnet(\d+)v([12])", name):
        return resnet(int(match[2]), int(match[1]))
    if match := re.fullmatch(r"vgg(\d+)", name):
        return vgg(int(match[1]))
    return None


def resnet(version: int, depth: int) -> Graph:
    """Build a ResNet.

    Raises:
        PlanError: There is none of that depth.
    """
    each = {1: 6, 2: 9}[version]
    if depth < each + 2 or (depth - 2) % each:
        raise PlanError(f"a ResNet of version {version} has {each}n+2 layers, not {depth}")
    build = _Build((32, 32, 3))
    x = build.normalised(build.convolution(0, 16, 3))
    for group in range(3):
        block = _first_version if version == 1 else _second_version
        for number in range((depth - 2) // each):
            x = block(build, x, group, number)
    if version == 2:
        x = build.normalised(x)
    x = build.add("AveragePooling2D", [x], (1, 1, build.shapes[x][-1]))
    x = build.add("Flatten", [x], build.shapes[x][-1:])
    return build.graph(build.dense(x, CLASSES), f"resnet{depth}v{version}")


def vgg(depth: int) -> Graph:
    """Build a VGG with fully connected layers of 512.

    Raises:
        PlanError: There is none of that depth.
    """
    columns = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
    if depth not in columns:
        raise PlanError(f"there are VGGs of depth {', '.join(map(str, columns))}, not {depth}")
    build = _Build((32, 32, 3))
    x = 0
    for count, filters in zip(columns[depth], (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            x = build.convolution(x, filters, 3)
        height, width, channels = build.shapes[x]
        x = build.add("MaxPooling2D", [x], (height // 2, width // 2, channels))
    x = build.add("Flatten", [x], (math.prod(build.shapes[x]),))
    for _ in range(2):
        x = build.dense(x, 512)
        x = build.add("Dropout", [x], build.shapes[x])
    return build.graph(build.dense(x, CLASSES), f"vgg{depth}")


def _first_version(build: _Build, x: int, group: int, block: int) -> int:
    filters, smaller = 16 * 2**group, group > 0 and block == 0
    y = build.normalised(build.convolution(x, filters, 3, 2 if smaller else 1))
    y = build.add("BatchNormalization", [build.convolution(y, filters, 3)], parameters=2 * filters)
    if smaller:
        x = build.convolution(x, filters, 1, 2)
    return build.add("ReLU", [build.add("Add", [x, y])])


def _second_version(build: _Build, x: int, group: int, block: int) -> int:
    width = 16 if group == 0 else 16 * 2 ** (group + 1)
    filters, strides = 16 * 2 ** (group + 2), 2 if group > 0 and block == 0 else 1
    before = x if group == 0 and block == 0 else build.normalised(x)
    y = build.convolution(before, width, 1, strides)
    y = build.convolution(build.normalised(y), width, 3)
    y = build.convolution(build.normalised(y), filters, 1)
    if block == 0:
        x = build.convolution(x, filters, 1, strides)
    return build.add("Add", [x, y])


class _Build:
    """Builder of a sequence of nodes. Values are numbers of tensors; tensor 0 is the model's input."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shapes = [shape]
        self._nodes: list[Node] = []

    def add(
        self, kind: str, taken: list[int], shape: tuple[int, ...] | None = None, parameters: int = 0, variant: str = ""
    ) -> int:
        """Add a layer; its output has the shape of its first input unless one is given."""
        index, made = len(self._nodes), len(self.shapes)
        self.shapes.append(shape or self.shapes[taken[0]])
        signature = f"{kind} {variant} {[self.shapes[tensor] for tensor in (*taken, made)]}"
        name = f"{kind.lower()}_{index}"
        self._nodes.append(Node(index, name, kind, name, tuple(taken), (made,), (), parameters, signature))
        return made

    def convolution(self, x: int, filters: int, size: int, strides: int = 1) -> int:
        """Add a convolution with padding and bias."""
        height, width, channels = self.shapes[x]
        parameters = (size * size * channels + 1) * filters
        shape = (height // strides, width // strides, filters)
        return self.add("Conv2D", [x], shape, parameters, f"{size}x{size}")

    def normalised(self, x: int) -> int:
        """Add BatchNorm and ReLU."""
        return self.add("ReLU", [self.add("BatchNormalization", [x], parameters=2 * self.shapes[x][-1])])

    def dense(self, x: int, units: int) -> int:
        """Add a fully connected layer."""
        return self.add("Dense", [x], (units,), (self.shapes[x][-1] + 1) * units)

    def graph(self, output: int, name: str) -> Graph:
        """Return the graph of all nodes, with the tensors between them."""
        consumers: list[list[int]] = [[] for _ in self.shapes]
        for node in self._nodes:
            for tensor in dict.fromkeys(node.inputs):
                consumers[tensor].append(node.index)
        tensors = tuple(
            Tensor(index, f"tensor_{index}", shape, "float32", index - 1 if index else None, tuple(consumers[index]))
            for index, shape in enumerate(self.shapes)
        )
        return Graph(name, tuple(self._nodes), tensors, (0,), (output,), name)

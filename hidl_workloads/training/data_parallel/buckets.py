"""Buckets of gradients that travel together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BUCKET_BYTES = 25 * 2**20
_SUPPORTED = ("float32", "float64")


@dataclass(frozen=True)
class Gradient:
    """A gradient to plan for: its parameter's name, its number of elements, their NumPy type's name, and its shape.

    Ranks must agree on all of it; the shape may be left empty where nothing else depends on it.
    """

    name: str
    size: int
    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bucket:
    """Gradients that lie behind each other in one flat buffer: their indices, and where each begins (in elements).

    At ``presence`` begin as many numbers, each 1 where the rank has that gradient and 0 where it has none: their sum
    tells whether any rank has it. ``size`` counts them too.
    """

    members: tuple[int, ...]
    offsets: tuple[int, ...]
    presence: int
    size: int
    dtype: str

    @property
    def nbytes(self) -> int:
        """The length of the buffer, in bytes."""
        return self.size * _width(self.dtype)


def plan(gradients: Sequence[Gradient], limit: int) -> tuple[Bucket, ...]:
    """Put ``gradients`` (in the model's order) into buckets of at most ``limit`` bytes of them, last gradient first.

    The backward pass yields the last layers' gradients first, so the first bucket is full first. A gradient larger
    than ``limit`` gets a bucket of its own. Raises ``TypeError`` for a type that MPI does not have.
    """
    groups: list[list[int]] = []
    filled = 0
    for index in reversed(range(len(gradients))):
        gradient = gradients[index]
        if gradient.dtype not in _SUPPORTED:
            advice = "keep weights in float32 and use the framework's mixed precision for the arithmetic"
            if gradient.dtype.startswith("complex"):
                advice = "keep weights as pairs of float32, and view them as complex numbers (torch.view_as_complex)"
            raise TypeError(f"the gradient of {gradient.name} is {gradient.dtype}, which MPI cannot sum: {advice}")
        width = gradient.size * _width(gradient.dtype)
        if not groups or filled + width > limit or gradients[groups[-1][0]].dtype != gradient.dtype:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += width
    return tuple(_bucket(gradients, members) for members in groups)


def _width(dtype: str) -> int:
    return int(dtype.removeprefix("float")) // 8


def _bucket(gradients: Sequence[Gradient], members: Sequence[int]) -> Bucket:
    offsets, end = [], 0
    for index in members:
        offsets.append(end)
        end += gradients[index].size
    return Bucket(tuple(members), tuple(offsets), end, end + len(members), gradients[members[0]].dtype)

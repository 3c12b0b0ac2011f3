"""The product of two dense matrices by SUMMA: ``python -m hidl_workloads.ml.matmul --rows=2048 --inner=2048``.

SUMMA (van de Geijn and Watts 1997, Concurrency: Practice and Experience 9, 255-274): the ranks form a grid, each has
a tile of every matrix; panel by panel of the inner dimension, the owners broadcast theirs along the grid's rows and
columns, and all multiply. Any number of ranks and any shapes will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from hidl_workloads.ml import blocks, program, streams
from hidl_workloads.ml.blocks import owner, panels, share
from hidl_workloads.ml.devices import Device
from hidl_workloads.ml.program import ProgramReport, main, one, timed, verify
from hidl_workloads.ml.streams import Array, Stream
from hidl_workloads.parameters import Matmul as Parameters

_PROBES = 2  # one wrong element changes the product with any vector of ones and minus ones, but two may cancel out

Item = TypeVar("Item")


@dataclass(frozen=True)
class Tiles:
    """This rank's tiles of ``left`` (rows, inner), ``right`` (inner, columns), and where they lie.

    ``along`` are the ranks of its row of the grid, ``down`` those of its column.
    """

    along: MPI.Comm
    down: MPI.Comm
    rows: range
    columns: range
    left_inner: range
    right_inner: range
    left: Array
    right: Array


def run(communicator: MPI.Comm, device: Device, parameters: Parameters) -> ProgramReport:
    """Multiply as often as there are steps, and check the product; ``per_rank``: so many rows for each rank."""
    height = parameters.rows * (communicator.size if parameters.per_rank else 1)
    shape = blocks.grid(communicator.size, height, parameters.columns)
    tiles = _tiles(communicator, device, parameters, height, shape)
    product, seconds = timed(communicator, device, parameters, lambda: multiply(device, tiles, parameters))
    image, residual = freivalds(communicator, device, tiles, product, parameters=parameters, height=height)
    gathered = communicator.gather((tiles.rows, tiles.columns, device.host(product))) if parameters.result else None
    tiles.along.Free()
    tiles.down.Free()
    work = 2e-9 * height * parameters.inner * parameters.columns
    return ProgramReport(
        metrics=[
            *program.time_and_rate("product_time", seconds, work, "compute_rate", "GFLOP/s"),
            one("residual", residual, "rounding errors"),
        ],
        summary=f"({height} x {parameters.inner}) x ({parameters.inner} x {parameters.columns}) on a grid of "
        f"{shape[0]} x {shape[1]} ranks: {work / np.median(seconds):.4g} GFLOP/s, {np.median(seconds):.4g} s",
        checksum=program.checksum(device, image),
        arrays={"product": _whole(gathered, height, parameters.columns)} if gathered else {},
    )


def _tiles(
    communicator: MPI.Comm, device: Device, parameters: Parameters, height: int, shape: tuple[int, int]
) -> Tiles:
    row, column = divmod(communicator.rank, shape[1])
    rows, columns = share(height, shape[0], row), share(parameters.columns, shape[1], column)
    left_inner, right_inner = share(parameters.inner, shape[1], column), share(parameters.inner, shape[0], row)
    return Tiles(
        communicator.Split(row),
        communicator.Split(column),
        rows,
        columns,
        left_inner,
        right_inner,
        device.array(streams.normal(parameters.seed, Stream.LEFT, rows, left_inner)),
        device.array(streams.normal(parameters.seed, Stream.RIGHT, right_inner, columns)),
    )


def multiply(device: Device, tiles: Tiles, parameters: Parameters) -> Array:
    """Multiply panel by panel: this rank's tile of the product, (rows, columns). Collective.

    ``parameters.overlap``: while a panel is multiplied, the next one is on its way.
    """
    product = device.xp.zeros((len(tiles.rows), len(tiles.columns)))
    cut = panels(parameters.inner, parameters.panel, (tiles.along.size, tiles.down.size))
    underway = (_send(device, tiles, parameters.inner, panel) for panel in cut)
    for receive in _one_ahead(underway) if parameters.overlap else underway:
        left, right = receive()
        product += left @ right
    return product


def _one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield each item once the one after it has been made."""
    before = next(items)
    for item in items:
        yield before
        before = item
    yield before


def _send(device: Device, tiles: Tiles, inner: int, panel: range) -> Callable[[], tuple[Array, Array]]:
    """Begin to send a panel from its owners along their rows and columns; call the result to receive it."""
    xp, width = device.xp, len(panel)
    from_left, from_right = (owner(inner, ranks.size, panel.start) for ranks in (tiles.along, tiles.down))
    if tiles.along.rank == from_left:
        first = panel.start - tiles.left_inner.start
        left = xp.ascontiguousarray(tiles.left[:, first : first + width])
    else:
        left = xp.empty((len(tiles.rows), width))
    if tiles.down.rank == from_right:
        first = panel.start - tiles.right_inner.start
        right = tiles.right[first : first + width]
    else:
        right = xp.empty((width, len(tiles.columns)))
    sent = device.ibcast(tiles.along, left, from_left), device.ibcast(tiles.down, right, from_right)

    def receive() -> tuple[Array, Array]:
        for finish in sent:
            finish()
        return left, right

    return receive


def freivalds(
    communicator: MPI.Comm, device: Device, tiles: Tiles, product: Array, *, parameters: Parameters, height: int
) -> tuple[Array, float]:
    """Check the product C of A and B by ``C x = A (B x)`` for random vectors x (Freivalds 1977, IFIP Congress).

    Returns ``C x``, (rows, vectors), and by how much the two differ at most, as a multiple of the rounding error of one
    operation, ``eps * |A| (|B| |x|)``. Raises ``Refused`` on all ranks where that is more than rounding explains: twice
    the number of operations behind an element of either side.
    """
    xp = device.xp
    random = streams.generator(parameters.seed, Stream.PROBE)
    probes = device.array(2.0 * random.integers(0, 2, (parameters.columns, _PROBES)) - 1)

    def times(matrix: Array, vectors: Array, rows: range, columns: range, length: int) -> Array:
        result = xp.zeros((length, vectors.shape[1]))
        result[rows.start : rows.stop] = matrix @ vectors[columns.start : columns.stop]
        device.allreduce(communicator, result)
        return result

    def through_both(left: Array, right: Array, vectors: Array) -> Array:
        between = times(right, vectors, tiles.right_inner, tiles.columns, parameters.inner)
        return times(left, between, tiles.rows, tiles.left_inner, height)

    image = times(product, probes, tiles.rows, tiles.columns, height)
    difference = xp.abs(image - through_both(tiles.left, tiles.right, probes))
    scale = through_both(xp.abs(tiles.left), xp.abs(tiles.right), xp.abs(probes)) * np.finfo(float).eps
    residual = float((difference / xp.maximum(scale, np.finfo(float).tiny)).max())
    operations = parameters.inner + parameters.columns
    verify(communicator, "the product's difference from A (B x), in rounding errors", residual, 2.0 * operations)
    return image, residual


def _whole(tiles: list[tuple[range, range, Array]], height: int, width: int) -> Array:
    result = np.empty((height, width))
    for rows, columns, values in tiles:
        result[rows.start : rows.stop, columns.start : columns.stop] = values
    return result


if __name__ == "__main__":
    main("matmul", Parameters, run)

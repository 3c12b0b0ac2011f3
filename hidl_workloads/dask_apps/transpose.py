"""The sum of a matrix and its transpose: every block but those of the diagonal meets one of another worker."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hidl_workloads.dask_apps.devices import Device, arrays, chosen
from hidl_workloads.dask_apps.job import Job, agree
from hidl_workloads.dask_apps.placement import persist
from hidl_workloads.parameters import DaskTranspose as Parameters

_MODULUS = 1021  # a prime, so the matrix is far from symmetric; its sum is exact in float64 below 2**53


def block(rows: slice, columns: slice, size: int, device: Device) -> Any:
    """One block of the matrix whose element (i, j) is ``(i*size + j) mod 1021``."""
    xp = arrays(device)
    i = xp.arange(rows.start, rows.stop, dtype=xp.int64)[:, None]
    j = xp.arange(columns.start, columns.stop, dtype=xp.int64)[None, :]
    return ((i * size + j) % _MODULUS).astype(xp.float64)


def known_sum(size: int) -> int:
    """The sum over the matrix and its transpose."""
    rounds, rest = divmod(size * size, _MODULUS)
    return 2 * (rounds * (_MODULUS * (_MODULUS - 1) // 2) + rest * (rest - 1) // 2)


def make(client: Any, parameters: Parameters, workers: int) -> Job:
    """The matrix on the workers; the work is ``(x + x.T).sum()``."""
    import dask.array as da

    size, chunk, device = parameters.size, parameters.chunk_size, chosen()
    xp = arrays(device)
    edges = (*range(0, size, chunk), size)
    chunks = tuple(high - low for low, high in pairwise(edges))

    def of(block_info: Any = None) -> Any:
        (low, high), (left, right) = block_info[None]["array-location"]
        return block(slice(low, high), slice(left, right), size, device)

    meta = xp.empty((0, 0), dtype=xp.float64)
    x = da.map_blocks(of, chunks=(chunks, chunks), dtype=xp.float64, meta=meta)
    (x,) = persist(client, x)
    y = x + x.T
    corner = slice(0, min(chunk, 8)), slice(max(0, size - 8), size)

    def check(total: Any) -> None:
        agree("the sum", float(total), known_sum(size))
        # The sum does not show whether the right blocks were added, but these elements do.
        expected = block(*corner, size, device) + block(*corner[::-1], size, device).T
        agree("the largest error in a corner", float(abs(y[corner].compute() - expected).max()), 0.0)

    return Job(x.nbytes, lambda: y.sum().compute(), check)


if __name__ == "__main__":
    from hidl_workloads.dask_apps.program import main

    main("dask-transpose", Parameters, make)

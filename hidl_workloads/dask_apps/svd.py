"""The singular value decomposition of a tall and narrow matrix: a tree of QR decompositions over its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hidl_workloads.dask_apps.devices import Device, arrays, chosen
from hidl_workloads.dask_apps.job import Job, agree
from hidl_workloads.dask_apps.placement import persist
from hidl_workloads.parameters import DaskSvd

_TOLERANCE = 1e-9  # as a fraction of the largest singular value


@dataclass(frozen=True)
class Parameters(DaskSvd):
    """The recipe's parameters."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for blocks that are not taller than wide."""
        if not self.columns <= min(self.rows, self.chunk_size):
            raise ValueError(f"columns must be {min(self.rows, self.chunk_size)} or fewer, not {self.columns}")


def block(low: int, high: int, rows: int, columns: int, device: Device) -> Any:
    """Rows ``low`` to ``high`` of the matrix, whose singular values are ``columns``, ..., 2, 1.

    It is the first columns of the orthogonal DCT-IV matrix of n rows, whose element (i, j) is
    ``sqrt(2/n) cos(pi/n (i+1/2)(j+1/2))``, each times its singular value.
    """
    xp = arrays(device)
    i = xp.arange(low, high, dtype=xp.float64)[:, None] + 0.5
    j = xp.arange(columns, dtype=xp.float64)[None, :]
    return xp.sqrt(2.0 / rows) * xp.cos(xp.pi / rows * i * (j + 0.5)) * (columns - j)


def make(client: Any, parameters: Parameters, workers: int) -> Job:
    """The matrix on the workers; the work is all its singular values and vectors, left in the workers' memory."""
    import dask
    import dask.array as da
    from distributed import wait

    rows, columns, chunk, device = parameters.rows, parameters.columns, parameters.chunk_size, chosen()
    xp = arrays(device)
    full, rest = divmod(rows, chunk)
    # If the last block is wider than tall, the tree cannot use its QR, so it is merged with the previous block.
    chunks = (chunk,) * full + ((rest,) if rest else ())
    if 0 < rest < columns:
        chunks = (*chunks[:-2], chunk + rest)

    def of(block_info: Any = None) -> Any:
        low, high = block_info[None]["array-location"][0]
        return block(low, high, rows, columns, device)

    meta = xp.empty((0, 0), dtype=xp.float64)
    x = da.map_blocks(of, chunks=(chunks, (columns,)), dtype=xp.float64, meta=meta)
    (x,) = persist(client, x)
    parts = da.linalg.svd(x)

    def work() -> Any:
        found = dask.persist(*parts)
        wait(found)
        return found

    def check(found: Any) -> None:
        u, s, v = found
        known = xp.arange(columns, 0, -1, dtype=xp.float64)
        limit = _TOLERANCE * columns
        agree("the largest error of a singular value", float(abs(s.compute() - known).max()), 0.0, limit)
        residual = abs((u * s) @ v - x).max().compute()
        agree("the largest error of U S V", float(residual), 0.0, limit)

    return Job(x.nbytes, work, check)


if __name__ == "__main__":
    from hidl_workloads.dask_apps.program import main

    main("dask-svd", Parameters, make)

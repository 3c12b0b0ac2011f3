"""The sum of a data frame's columns: each worker adds up what it has, and next to nothing travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hidl_workloads.dask_apps.devices import arrays, chosen, frames
from hidl_workloads.dask_apps.job import Job, agree
from hidl_workloads.dask_apps.placement import persist
from hidl_workloads.parameters import DaskDataframeSum

_ROW_BYTES = 16
_MODULI = {"a": 1021, "b": 997}


@dataclass(frozen=True)
class Parameters(DaskDataframeSum):
    """The recipe's parameters, and the rows of a partition."""

    @property
    def rows(self) -> int:
        """Rows of one partition, one at least."""
        return max(1, self.chunk_size // self.partitions)


def partition(number_: int, parameters: Parameters) -> Any:
    """The rows from ``number_ * rows`` on: in row ``k``, column ``a`` holds ``k mod 1021`` and ``b`` ``k mod 997``."""
    xp = arrays(chosen())
    k = xp.arange(number_ * parameters.rows, (number_ + 1) * parameters.rows)
    return frames(chosen()).DataFrame({name: k % modulus for name, modulus in _MODULI.items()})


def make(client: Any, parameters: Parameters, workers: int) -> Job:
    """The frame on the workers; the work is the sum of each column."""
    import dask.dataframe as dd

    partitions = parameters.partitions * workers
    frame = dd.from_map(
        partition, list(range(partitions)), parameters=parameters, meta=partition(0, parameters).head(0)
    )
    (frame,) = persist(client, frame)
    rows = partitions * parameters.rows

    def check(sums: Any) -> None:
        for name, modulus in _MODULI.items():
            rounds, rest = divmod(rows, modulus)
            agree(
                f"the sum of column {name}",
                int(sums[name]),
                rounds * modulus * (modulus - 1) // 2 + rest * (rest - 1) // 2,
            )

    return Job(rows * _ROW_BYTES, lambda: frame.sum().compute(), check)


if __name__ == "__main__":
    from hidl_workloads.dask_apps.program import main

    main("dask-dataframe-sum", Parameters, make)

"""The sum of a data frame's columns: each worker adds up what it has, and next to nothing travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hidl_workloads.arguments import number
from hidl_workloads.dask_apps.devices import arrays, frames
from hidl_workloads.dask_apps.job import Job, agree
from hidl_workloads.dask_apps.parameters import Common
from hidl_workloads.dask_apps.placing import persist

_ROW_BYTES = 16
_MODULI = {"a": 1021, "b": 997}


@dataclass(frozen=True)
class Parameters(Common):
    """``chunk_size``: rows for each worker; ``partitions``: those of each worker."""

    chunk_size: int = number(8_000_000, least=1)
    partitions: int = number(4, least=1)

    @property
    def rows(self) -> int:
        """Rows of one partition, one at least."""
        return max(1, self.chunk_size // self.partitions)


def partition(number_: int, parameters: Parameters) -> Any:
    """The rows from ``number_ * rows`` on: in row ``k``, column ``a`` holds ``k mod 1021`` and ``b`` ``k mod 997``."""
    xp = arrays(parameters.device)
    k = xp.arange(number_ * parameters.rows, (number_ + 1) * parameters.rows)
    return frames(parameters.device).DataFrame({name: k % modulus for name, modulus in _MODULI.items()})


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

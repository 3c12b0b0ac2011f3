"""The merge of two data frames: all workers send rows to all others, so that equal keys meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hidl_workloads.dask_apps.devices import Device, chosen, frames
from hidl_workloads.dask_apps.job import Job, agree
from hidl_workloads.dask_apps.placement import persist
from hidl_workloads.parameters import DaskMerge

_ROW_BYTES = 16  # a key and a payload, 64-bit integers
_WRAP = 2**64  # sums of these integers are known modulo this number


@dataclass(frozen=True)
class Parameters(DaskMerge):
    """The recipe's parameters, and the rows of a partition."""

    @property
    def rows(self) -> int:
        """Rows of one partition, one at least."""
        return max(1, self.chunk_size // self.partitions)

    @property
    def matches(self) -> int:
        """Rows of one partition that find a partner."""
        return round(self.rows * self.frac_match)


def left_keys(partition: int, parameters: Parameters) -> Any:
    """Keys of a partition of the left frame: in all they are 0, 1, 2, ..."""
    return np.arange(partition * parameters.rows, (partition + 1) * parameters.rows)


def right_keys(partition: int, partitions: int, parameters: Parameters) -> Any:
    """Keys of a partition of the right frame: every ``partitions``-th of the left one's first, and others."""
    matching = partition + partitions * np.arange(parameters.matches)
    first = (partitions + partition) * parameters.rows
    return np.concatenate([matching, np.arange(first, first + parameters.rows - parameters.matches)])


def left(partition: int, parameters: Parameters) -> Any:
    """A partition of the left frame, in disorder."""
    keys = left_keys(partition, parameters)
    return _frame(keys, "left", 2 * keys + 1, partition, chosen())


def right(partition: int, partitions: int, parameters: Parameters) -> Any:
    """A partition of the right frame, in disorder."""
    keys = right_keys(partition, partitions, parameters)
    return _frame(keys, "right", 3 * keys + 2, partitions + partition, chosen())


def _frame(keys: Any, name: str, payload: Any, seed: int, device: Device) -> Any:
    order = np.random.default_rng(seed).permutation(len(keys))
    return frames(device).DataFrame({"key": keys[order], name: payload[order]})


def make(client: Any, parameters: Parameters, workers: int) -> Job:
    """Both frames on the workers; the work is their inner merge, left in the workers' memory."""
    import dask.dataframe as dd
    from distributed import wait

    partitions = parameters.partitions * workers
    numbers = list(range(partitions))
    one = dd.from_map(left, numbers, parameters=parameters, meta=left(0, parameters).head(0))
    other = dd.from_map(
        right, numbers, partitions=partitions, parameters=parameters, meta=right(0, partitions, parameters).head(0)
    )
    one, other = persist(client, one, other)
    # Both sides have partitions of equal size. Otherwise, the library might send one whole frame to every worker.
    merged = one.merge(other, on="key", how="inner", shuffle_method=parameters.shuffle, broadcast=False)

    def work() -> Any:
        found = merged.persist()
        wait(found)
        return found

    def check(found: Any) -> None:
        known = partitions * parameters.matches
        keys = known * (known - 1) // 2  # the keys are 0, 1, 2, ...
        agree("the number of matches", len(found), known)
        sums = found.sum().compute()
        for name, total in {"key": keys, "left": 2 * keys + known, "right": 3 * keys + 2 * known}.items():
            agree(f"the sum of column {name}", int(sums[name]) % _WRAP, total % _WRAP)

    return Job(2 * partitions * parameters.rows * _ROW_BYTES, work, check)


if __name__ == "__main__":
    from hidl_workloads.dask_apps.program import main

    main("dask-merge", Parameters, make)

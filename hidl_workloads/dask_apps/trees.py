"""Gradient boosting with XGBoost: workers sum histograms of their rows for each level of a tree.

Dask moves the data and the tasks over its protocol; XGBoost's workers sum the histograms over sockets of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidl_workloads.dask_apps.job import Job, WrongResult, agree
from hidl_workloads.dask_apps.placement import persist
from hidl_workloads.parameters import DaskXgboost

_VALUES = 64  # of a feature: fewer than bins, thus the bins of all workers are the same and exact
_BINS = 256
_TOLERANCE = 1e-3  # of a probability: histograms are summed in another order
_COMPARED = 20_000  # rows of the first partition
_CHECKED = 2**24  # values on which one process trains for the check: 64 MiB


@dataclass(frozen=True)
class BoostingParameters(DaskXgboost):
    """The recipe's parameters, and the rows of a partition."""

    @property
    def chunk(self) -> int:
        """Rows of a partition."""
        return max(1, self.rows // self.partitions)

    @property
    def options(self) -> dict[str, Any]:
        """Options of XGBoost."""
        return {"objective": "binary:logistic", "tree_method": "hist", "max_bin": _BINS, "max_depth": self.depth}


def features(partition: int, rows: int, columns: int) -> NDArray[np.float32]:
    """Return the features of a partition: small integers."""
    return np.random.default_rng(partition).integers(_VALUES, size=(rows, columns)).astype(np.float32)


def labels(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the class of each row, which depends on three of its features and differs from partition to partition."""
    half = (_VALUES - 1) / 2
    return ((x[:, 0] - half) * (x[:, 1] - half) > (x[:, 2] - half) * half / 2).astype(np.float32)


def make(client: Any, parameters: BoostingParameters, workers: int) -> Job:
    """Rows on the workers; the work is the training of one model and the predictions for all rows."""
    import dask.array as da
    import xgboost
    from distributed import wait
    from xgboost import dask as on_dask

    count, chunk, columns = workers * parameters.partitions, parameters.chunk, parameters.columns

    def block(block_info: Any = None) -> NDArray[np.float32]:
        return features(block_info[None]["chunk-location"][0], chunk, columns)

    meta = np.empty((0, 0), np.float32)
    x = da.map_blocks(block, chunks=((chunk,) * count, (columns,)), dtype=np.float32, meta=meta)
    (x,) = persist(client, x)
    y = x.map_blocks(labels, drop_axis=1, dtype=np.float32, meta=np.empty(0, np.float32))
    (y,) = persist(client, y)

    def train(rows: Any, classes: Any) -> Any:
        """Train on all workers, and return the predictions for the same rows."""
        data = on_dask.DaskQuantileDMatrix(client, rows, classes, max_bin=_BINS)
        trained = on_dask.train(client, parameters.options, data, num_boost_round=parameters.rounds)
        predicted = on_dask.predict(client, trained["booster"], rows).persist()
        wait(predicted)
        return predicted

    def work() -> Any:
        return train(x, y)

    def check(predicted: Any) -> None:
        part, training = max(1, min(chunk, _CHECKED // (columns * count))), "a training in one process"
        if part < chunk:  # the rows of all workers may not fit into this process
            training += f" on the first {part} rows of each partition"
            first = x.map_blocks(lambda rows: rows[:part], chunks=((part,) * count, (columns,)), meta=meta)
            classes = first.map_blocks(labels, drop_axis=1, dtype=np.float32, meta=np.empty(0, np.float32))
            predicted = train(first, classes)
        found = predicted[: min(part, _COMPARED)].compute()

        def error(partitions: range) -> float:
            """Return the largest difference from a model that one process trains on these partitions."""
            rows = np.concatenate([features(each, chunk, columns)[:part] for each in partitions])
            data = xgboost.QuantileDMatrix(rows, labels(rows), max_bin=_BINS)
            model = xgboost.train(parameters.options, data, num_boost_round=parameters.rounds)
            return float(np.abs(found - model.inplace_predict(rows[: len(found)])).max())

        of_all = error(range(count))
        if of_all > _TOLERANCE and workers > 1 and error(range(0, count, workers)) <= _TOLERANCE:
            raise WrongResult(f"each of the {workers} workers has trained alone, on its own rows")
        agree(f"the largest difference from {training}", of_all, 0.0, _TOLERANCE)

    return Job(x.nbytes, work, check)


if __name__ == "__main__":
    from hidl_workloads.dask_apps.program import main

    main("dask-xgboost", BoostingParameters, make)

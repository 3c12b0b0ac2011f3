"""Run ``dask-xgboost`` with workers that do not find each other: the model is that of the first one's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost
from xgboost import dask as on_dask

from hidl_workloads.dask_apps import program, trees

WORKERS, PARTITIONS, ROWS, COLUMNS = 2, 2, 4000, 5


def train_alone(client: Any, options: Any, data: Any, num_boost_round: int) -> dict[str, Any]:
    chunk = ROWS // PARTITIONS
    partitions = range(0, WORKERS * PARTITIONS, WORKERS)
    rows = np.concatenate([trees.features(each, chunk, COLUMNS) for each in partitions])
    matrix = xgboost.QuantileDMatrix(rows, trees.labels(rows))
    return {"booster": xgboost.train(options, matrix, num_boost_round=num_boost_round)}


on_dask.train = train_alone
program.main("dask-xgboost", trees.BoostingParameters, trees.make)

"""Search parameters with scikit-learn through Joblib's backend for Dask: RESULT PROTOCOL.

Written as JSON to RESULT: the scores of all parameters on Dask and in this process, and the number of workers that took
part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import joblib
from distributed import Client, get_worker
from mpi4py import MPI
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.tree import DecisionTreeClassifier

from hidl_workloads.dask_apps import cluster
from hidl_workloads.parameters import Dask


def main(result: Path, protocol: Any) -> None:
    if not cluster.start(MPI.COMM_WORLD, Dask(protocol=protocol), 1):
        return
    x, y = make_classification(2000, random_state=0)
    search = {"max_depth": [2, 4, 6, 8], "min_samples_leaf": [1, 10]}
    scores = []
    with Client() as client:
        client.wait_for_workers(2)
        for backend in ("dask", "sequential"):
            with joblib.parallel_config(backend=backend):
                found = GridSearchCV(DecisionTreeClassifier(random_state=0), search, cv=3).fit(x, y)
            scores.append(found.cv_results_["mean_test_score"].tolist())
        with joblib.parallel_config(backend="dask"):
            workers = joblib.Parallel()(joblib.delayed(_where)(number) for number in range(40))
    result.write_text(json.dumps({"scores": scores, "workers": len(set(workers))}))
    cluster.close(protocol)


def _where(number: int) -> str:
    """Compute a little, and return the worker."""
    sum(range(100_000 + number))
    return str(get_worker().address)


main(Path(sys.argv[1]), sys.argv[2])

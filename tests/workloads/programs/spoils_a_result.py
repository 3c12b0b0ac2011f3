"""Run a program of hidl_workloads.ml with its last rank's result spoilt: ``spoils_a_result MODULE [ARG...]``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from hidl_workloads.ml import lloyd
from hidl_workloads.ml.program import main


def last(spoil: Callable[[Any], Any], compute: Callable[..., Any]) -> Callable[..., Any]:
    """``compute``, whose result the last rank spoils."""

    def computed(*arguments: Any, **options: Any) -> Any:
        result = compute(*arguments, **options)
        return spoil(result) if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1 else result

    return computed


def one_element(array: Any) -> Any:
    """An array with its last element a little larger."""
    array = array.copy()
    array.flat[-1] += 1e-3
    return array


def one_neighbour(found: Any) -> Any:
    """The first query's farthest neighbour is said to be farther."""
    rows, distances, neighbours = found
    distances = distances.copy()
    distances[:, -1] *= 1.5
    return rows, distances, neighbours


def one_label(fit: Any) -> Any:
    """A point is told into another cluster."""
    return replace(fit, labels=(fit.labels + (fit.labels == fit.labels[0])) % len(fit.centers))


SPOILT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "matmul": ("multiply", one_element),
    "linear_regression": ("normal_equations", one_element),
    "tsvd": ("by_covariance", lambda found: replace(found, values=one_element(found.values))),
    "knn": ("search", one_neighbour),
}

_, module_name, *words = sys.argv
sys.argv = [module_name, *words]
module = importlib.import_module(module_name)
short = module_name.rpartition(".")[2]
if short.startswith("kmeans"):
    lloyd.fit = last(one_label, lloyd.fit)
else:
    function, spoil = SPOILT[short]
    setattr(module, function, last(spoil, getattr(module, function)))
main(short.replace("_", "-"), module.Parameters, module.run)

"""Run ``dask-xgboost`` with a check of half of the rows, and write the number of these rows to OUT: OUT WORDS..."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import xgboost

from hidl_workloads.dask_apps import program, trees

OUT = Path(sys.argv.pop(1))
WORKERS, PARTITIONS, COLUMNS, ROWS = 2, 2, 5, 1000
MATRIX = xgboost.QuantileDMatrix


def counted(rows: Any, *arguments: Any, **options: Any) -> Any:
    OUT.write_text(str(len(rows)))
    return MATRIX(rows, *arguments, **options)


trees._CHECKED = ROWS * COLUMNS * WORKERS * PARTITIONS
xgboost.QuantileDMatrix = counted
program.main("dask-xgboost", trees.BoostingParameters, trees.make)

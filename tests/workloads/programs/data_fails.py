"""Open a data set, read the samples 0 and 1, and write when and why that fails to OUT: OUT images|tokens DATA."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mpi4py import MPI

from hidl_workloads.training.data import ImageData, TokenData

OUT, KIND, DATA = sys.argv[1:]
WORLD = MPI.COMM_WORLD


def open_data() -> ImageData | TokenData:
    if KIND == "images":
        return ImageData(WORLD, Path(DATA), side=8, classes=10, seed=0)
    return TokenData(WORLD, Path(DATA), context=4, vocabulary=100)


when, message = "opened", ""
try:
    data = open_data()
    when = "read"
    data.read([(0, 0), (0, 1)])
except Exception as error:
    message = str(error)
Path(OUT).write_text(json.dumps(f"{when}: {message}"))

"""The program that ``hidl doctor`` starts with each launcher: every rank tells of itself in a file of its own.

It lies in ``ranks/`` beside ``$HIDL_METRICS``. A rank tells before MPI is initialised, and again afterwards: of one
that does not come back it is known that it began. No rank speaks with another: the world may be no world.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hidl_workloads.doctor.ranks import Rank, this_rank


def main() -> int:
    """Tell of this rank; returns the exit status."""
    place = Path(os.environ["HIDL_METRICS"]).with_name("ranks")
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{os.uname().nodename}-{os.getpid()}.json"
    _write(file, this_rank(0, 0))
    from mpi4py import MPI

    from hidl_workloads import mpi_library

    _write(file, this_rank(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, version=mpi_library.version()))
    return 0


def _write(file: Path, rank: Rank) -> None:
    """Write beside the file and rename: no reader sees half of it."""
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(rank.to_json()), encoding="ascii")
    beside.replace(file)


if __name__ == "__main__":
    sys.exit(main())

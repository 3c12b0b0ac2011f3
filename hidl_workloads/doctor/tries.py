"""The program that ``hidl doctor`` starts with each launcher. Each rank writes its facts to a separate file.

The files are in the directory ``ranks`` next to ``$HIDL_METRICS``. Each rank writes its file before and after MPI is
initialized, which identifies ranks that did not return from MPI_Init. Ranks do not communicate with each other, because
they may be singletons.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hidl_workloads.doctor.ranks import Rank, this_rank


def main() -> int:
    """Write the facts of this rank, and return the exit status."""
    directory = Path(os.environ["HIDL_METRICS"]).with_name("ranks")
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{os.uname().nodename}-{os.getpid()}.json"
    _write(file, this_rank(0, 0))
    from mpi4py import MPI

    from hidl_workloads import mpi_library

    _write(file, this_rank(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, version=mpi_library.version()))
    return 0


def _write(file: Path, rank: Rank) -> None:
    """Write the file atomically."""
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(rank.to_json()), encoding="ascii")
    temporary.replace(file)


if __name__ == "__main__":
    sys.exit(main())

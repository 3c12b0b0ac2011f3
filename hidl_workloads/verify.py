"""``mpiexec -n 2 python -m hidl_workloads.verify --imports=torch --report=FILE``: does the stack work over MPI?

Every rank checks; rank 0 writes the report ``{"schema": "hidl.verification/1", "checks": [{"name", "ok", "detail"}]}``.
The exit status is 0 only where every check holds on every rank.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class Check(NamedTuple):
    """One thing that must hold, and what was seen."""

    name: str
    ok: bool
    detail: str


def world_size(world: Any) -> Check:
    """The ranks form one world of ``$HIDL_WORLD_SIZE``."""
    expected = os.environ.get("HIDL_WORLD_SIZE", "")
    return Check("world_size", str(world.size) == expected, f"{world.size} of {expected or '?'} ranks")


def allreduce(world: Any) -> Check:
    """Sums of whole numbers and of floating-point numbers, short and long, are what they must be."""
    import numpy as np

    wrong = []
    for dtype in (np.int64, np.float64):
        for count in (1, 1000, 300_000):
            data = np.arange(count, dtype=dtype) + world.rank
            total = np.empty_like(data)
            world.Allreduce(data, total)
            expected = np.arange(count, dtype=dtype) * world.size + sum(range(world.size))
            if not np.array_equal(total, expected):
                wrong.append(f"{count} x {dtype.__name__}")
    return Check("allreduce", not wrong, f"wrong sums of {', '.join(wrong)}" if wrong else "6 sums are right")


def imports(modules: list[str]) -> Iterator[Check]:
    """Every module can be imported."""
    for name in modules:
        try:
            module = import_module(name)
        except Exception as error:  # whatever an import raises is what must be told
            yield Check(f"import {name}", False, f"{type(error).__name__}: {error}")
        else:
            yield Check(f"import {name}", True, str(getattr(module, "__version__", "imported")))


def one_libmpi() -> Check:
    """Exactly one MPI library is in the process, and it is the stack's own."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Check("one_libmpi", True, f"not checked: {error}")
    mapped = {line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/") and ".so" in line}
    libraries = sorted({str(Path(f).resolve()) for f in mapped if Path(f).name.startswith(("libmpi.", "libmpich."))})
    inside = all(Path(library).is_relative_to(Path(sys.prefix).resolve()) for library in libraries)
    return Check("one_libmpi", len(libraries) == 1 and inside, ", ".join(libraries) or "none is mapped")


def main() -> None:
    """Check on every rank, gather, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--imports", default="", help="modules, separated by commas")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    mine = [world_size(world), allreduce(world), *imports([name for name in arguments.imports.split(",") if name])]
    mine.append(one_libmpi())  # last: an import may have brought a second one
    everybody = world.gather(mine)
    failed = False
    if world.rank == 0:
        checks = [_merged(column) for column in zip(*everybody, strict=True)]
        failed = not all(check.ok for check in checks)
        report = {"schema": "hidl.verification/1", "checks": [check._asdict() for check in checks]}
        arguments.report.write_text(json.dumps(report, indent=2), encoding="utf-8")
    if world.bcast(failed):
        sys.exit(1)


def _merged(column: tuple[Check, ...]) -> Check:
    """One check of all ranks: what rank 0 saw, or what the ranks saw on which it fails."""
    failures = [f"rank {rank}: {check.detail}" for rank, check in enumerate(column) if not check.ok]
    return Check(column[0].name, not failures, "; ".join(failures) or column[0].detail)


if __name__ == "__main__":
    main()

"""Prove that an installed stack works: ``mpiexec -n 2 python -m hidl_workloads.verify --imports torch --report FILE``.

Every rank makes every check; rank 0 writes the report, ``hidl.verification/1``. The exit status is 0 only if
everything holds on all ranks, 1 otherwise.

``--modules`` names further modules, each with ``checks(communicator) -> Iterable[Check]``. All ranks call it, after
the checks that every stack passes, and it yields the same names in the same order on each. It may raise: that ends
all ranks, and the installation fails with the exception's text.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mpi4py import MPI

from hidl_workloads import kernels, mpi_library
from hidl_workloads.findings import Check
from hidl_workloads.metrics import write_json
from hidl_workloads.world import EXPECTED_SIZE, failure_ends_all_ranks

SCHEMA = "hidl.verification/1"

# From one element to half a MiB, so that every MPI library uses its protocols for short and for long messages.
_ALLREDUCE_LENGTHS = (1, 1000, 65537)
_ALLREDUCE_TYPES = {"d": "float64", "q": "int64"}


def main(arguments: Sequence[str]) -> int:
    """Check this rank, put all ranks' findings together and write the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hidl_workloads.verify", allow_abbrev=False)
    parser.add_argument(
        "--imports", default="", metavar="MODULE,...", help="modules that every rank must be able to import"
    )
    parser.add_argument("--modules", default="", metavar="MODULE,...", help="modules with additional checks")
    parser.add_argument(
        "--mpi",
        default=Path(sys.prefix),
        type=Path,
        metavar="DIR",
        help="directory with MPI (default: Python's prefix)",
    )
    parser.add_argument("--outside", type=Path, metavar="DIR", help="directory that must not contain the MPI library")
    parser.add_argument(
        "--gpus", default="", metavar="ARCH,...", help="GPUs for which the frameworks must have kernels"
    )
    parser.add_argument(
        "--kernels",
        default="",
        metavar="FRAMEWORK:ARCH:...,...",
        help="expected architectures of the frameworks' kernels",
    )
    parser.add_argument(
        "--report", required=True, type=Path, metavar="FILE", help="file to which rank 0 writes the report"
    )
    options = parser.parse_args(arguments)
    world = MPI.COMM_WORLD
    # Imports come first, because what they load into the process must not break MPI.
    imports = [check_import(module) for module in options.imports.split(",") if module]
    libraries = mpi_library.mapped()
    own = [
        check_world_size(world),
        *imports,
        check_allreduce(world),
        check_one_library(libraries),
        check_library_outside(libraries, options.outside)
        if options.outside
        else check_library_in_prefix(libraries, options.mpi),
        *([kernels.check(options.gpus.split(","), _listed(options.kernels))] if options.gpus else []),
    ]
    if world.allreduce(all(check.ok for check in own), MPI.LAND):  # further checks would not find more, and may hang
        for module in options.modules.split(","):
            own += importlib.import_module(module).checks(world) if module else ()
    everyone = world.gather(own)
    ok = all(check.ok for check in own)
    if everyone is not None:
        checks = [merge(of_ranks) for of_ranks in zip(*everyone, strict=True)]
        write_json(options.report, {"schema": SCHEMA, "checks": [asdict(check) for check in checks]})
        ok = all(check.ok for check in checks)
    return 0 if world.bcast(ok) else 1


def _listed(words: str) -> dict[str, list[str]]:
    """``torch:sm_80:sm_90,...`` -> the architectures of each framework."""
    parts = [word.split(":") for word in words.split(",") if word]
    return {name: architectures for name, *architectures in parts}


def check_world_size(world: MPI.Comm) -> Check:
    """Compare the world's size with ``$HIDL_WORLD_SIZE``."""
    expected = os.environ.get(EXPECTED_SIZE)
    detail = f"{world.size} ranks"
    if expected != str(world.size):
        detail = f"COMM_WORLD has {world.size} ranks, but ${EXPECTED_SIZE} is {expected}"
    return Check("world size", expected == str(world.size), detail)


def check_import(module: str) -> Check:
    """Import ``module`` and tell its version."""
    name = f"import {module}"
    try:
        version = getattr(importlib.import_module(module), "__version__", "no version")
    except Exception as error:  # any error that a broken module raises is the result
        return Check(name, False, f"{type(error).__name__}: {error}")
    return Check(name, True, str(version))


def check_allreduce(world: MPI.Comm) -> Check:
    """Sum vectors whose sum over the ranks is known exactly: element ``i`` of rank ``r`` is ``(r + 1) * (i + 1)``."""
    wrong = []
    ours, total = world.rank + 1, world.size * (world.size + 1) // 2
    for code, name in _ALLREDUCE_TYPES.items():
        for length in _ALLREDUCE_LENGTHS:
            values = array(code, range(ours, ours * length + 1, ours))
            world.Allreduce(MPI.IN_PLACE, values, MPI.SUM)
            if values != array(code, range(total, total * length + 1, total)):
                wrong.append(f"{length} x {name}")
    detail = (
        f"wrong sums: {', '.join(wrong)}" if wrong else f"float64 and int64, up to {_ALLREDUCE_LENGTHS[-1]} elements"
    )
    return Check("allreduce", not wrong, detail)


def check_one_library(libraries: Sequence[Path | str] | None) -> Check:
    """Exactly one MPI library may be mapped: two have two sets of global state, and one of them is not initialised."""
    name = "one MPI library"
    if libraries is None:
        return Check(name, True, "not checked: this system has no /proc/self/maps")
    listed = ", ".join(str(path) for path in libraries) or "none"
    return Check(name, len(libraries) == 1, listed if len(libraries) == 1 else f"{len(libraries)} are mapped: {listed}")


def check_library_in_prefix(libraries: Sequence[Path] | None, place: Path) -> Check:
    """Every mapped MPI library must lie inside ``place``, the one that the stack was made for: no other is meant."""
    name = "MPI library inside the prefix"
    if libraries is None:
        return Check(name, True, "not checked: this system has no /proc/self/maps")
    prefix = place.resolve()
    outside = [str(path) for path in libraries if not path.resolve().is_relative_to(prefix)]
    if outside:
        return Check(name, False, f"outside {prefix}: {', '.join(outside)}")
    return Check(name, bool(libraries), str(prefix) if libraries else "no MPI library is loaded")


def check_library_outside(libraries: Sequence[Path] | None, stack: Path) -> Check:
    """No mapped MPI library may lie inside ``stack``: the site's is to take the place of the stack's own."""
    name = "MPI library of the site"
    if libraries is None:
        return Check(name, True, "not checked: this system has no /proc/self/maps")
    inside = [str(path) for path in libraries if path.resolve().is_relative_to(stack.resolve())]
    if inside:
        return Check(name, False, f"the stack's own is loaded: {', '.join(inside)}")
    return Check(name, bool(libraries), ", ".join(map(str, libraries)) or "no MPI library is loaded")


def merge(of_ranks: Sequence[Check]) -> Check:
    """Put one check's findings of all ranks together: it holds where it holds everywhere."""
    failed = [f"rank {rank}: {check.detail}" for rank, check in enumerate(of_ranks) if not check.ok]
    return Check(of_ranks[0].name, not failed, "; ".join(failed) or of_ranks[0].detail)


if __name__ == "__main__":
    with failure_ends_all_ranks():
        status = main(sys.argv[1:])
    sys.exit(status)

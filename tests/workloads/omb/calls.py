"""An independent count of a program's MPI calls and bytes, made below it by a library that is preloaded into each rank.

The extension module of mpi4py takes its MPI functions from ``libmpi`` by the dynamic linker. A library in
``LD_PRELOAD`` comes before all others, also for modules that Python opens later, so that its ``MPI_Send`` is the one
found; it goes on to ``PMPI_Send`` in the library of the stack. ``counting/count_calls.c`` says what is counted.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from hidl_cli import process
from hidl_cli.process import Completed
from hidl_cli.stack.verify import OPEN_MPI_AS_ROOT
from tests.waiting import patience
from tests.workloads import ranks

SOURCES = Path(__file__).parent / "counting"


@dataclass(frozen=True)
class Call:
    """A call as it is counted: the function, and the bytes of this rank's buffers."""

    function: str
    sent: int = 0
    received: int = 0


Section = Counter[Call]
"""How often each call was made between two of the program's ``MPI.Pcontrol``."""


@dataclass(frozen=True)
class Counted:
    """What a program said, and what each rank of it called."""

    completed: Completed
    ranks: tuple[dict[int, Section], ...]
    """By rank, then by section: all starts in section 0, and each ``MPI.Pcontrol`` begins the next."""


def library(prefix: Path, directory: Path) -> Path:
    """The counting library, compiled into ``directory`` with the ``mpicc`` of the stack in ``prefix``.

    Skips the test that asks for it where the machine has no C compiler.
    """
    if not shutil.which("cc"):
        pytest.skip("NO C COMPILER (cc): the library that counts MPI calls cannot be compiled, so nothing was counted")
    target = directory / "libcount_calls.so"
    words = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-pthread")
    process.run(
        [prefix / "bin" / "mpicc", *words, "-o", target, SOURCES / "count_calls.c"], env=ranks.python_environment()
    )
    return target


def count(counter: Path, prefix: Path, number: int, *words: str | Path, directory: Path) -> Counted:
    """Run ``python WORDS`` on ``number`` ranks of the stack in ``prefix``, and count its calls into ``directory``."""
    directory.mkdir()
    preload = ["/usr/bin/env", f"LD_PRELOAD={counter}", f"CALL_COUNTS={directory}"]
    command = [prefix / "bin" / "mpiexec", "-n", str(number), *preload, prefix / "bin" / "python", *words]
    environment = ranks.python_environment() | OPEN_MPI_AS_ROOT | {"HIDL_WORLD_SIZE": str(number)}
    completed = process.run(command, env=environment, timeout=patience(240), check=False)
    assert completed.status == 0, completed.stdout + completed.stderr
    return Counted(completed, tuple(_read(directory / f"{rank}.json") for rank in range(number)))


def _read(path: Path) -> dict[int, Section]:
    sections: dict[int, Section] = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        call = Call(row["function"], row["sent"], row["received"])
        sections.setdefault(row["section"], Counter())[call] = row["calls"]
    return sections

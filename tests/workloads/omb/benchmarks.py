"""Runs many command lines of the micro-benchmarks in one launch, on the ranks of a stack."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.stack.verify import OPEN_MPI_AS_ROOT
from tests.workloads import ranks

# The UCX part of Open MPI's wheel complains of each window that is made on a machine without such a network.
_QUIET_WINDOWS = {"OMPI_MCA_osc": "^ucx"}


@dataclass(frozen=True)
class Told:
    """What one command line ended with and said, as rank 0 saw it."""

    status: int
    stdout: str
    stderr: str

    @property
    def verdicts(self) -> list[str]:
        """The column ``Validation`` of every row of every table."""
        rows = [line.split() for line in self.stdout.splitlines() if line[:1].isdigit()]
        return [word for row in rows for word in row if word in ("Pass", "Fail", "passed", "failed")]


def run(prefix: Path, number: int, *lines: str, program: str = "runs_benchmarks.py") -> list[Told]:
    """Run each of ``lines``, such as ``latency -m 8 -c``, one after the other on ``number`` ranks."""
    words = json.dumps([line.split() for line in lines])
    completed = ranks.run(prefix, number, ranks.PROGRAMS / program, words, **OPEN_MPI_AS_ROOT, **_QUIET_WINDOWS)
    assert completed.status == 0, completed.stdout + completed.stderr
    return [Told(*told) for told in json.loads(completed.stdout)]

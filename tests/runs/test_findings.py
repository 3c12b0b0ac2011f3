"""What a run's job finds before its program starts is kept in the run's directory, ``findings.json``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from hidl_workloads.doctor import record
from tests.conftest import Hidl
from tests.waiting import patience

RUN = ("run", "mpi-sanity", "--ranks-per-node", "2", "--threads", "1")


def findings(hidl: Hidl) -> list[tuple[str, str]]:
    (file,) = hidl.runs.glob("*/findings.json")
    return [(finding.rule, finding.severity) for finding in record.read(file)]


def test_a_run_that_is_well_ends_well_despite_notes(hidl_with: Callable[..., Hidl]) -> None:
    hidl = hidl_with("mpi")
    limited = ["sh", "-c", 'ulimit -l 64; exec "$@"', "sh", *hidl.command(*RUN)]
    completed = subprocess.run(
        limited, env=hidl.environment, capture_output=True, text=True, timeout=patience(120), check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert ("HD043", "info") in findings(hidl)


def test_a_run_that_cannot_be_right_is_stopped_with_its_cause(
    hidl_with: Callable[..., Hidl], stack_prefix: Callable[[str], Path]
) -> None:
    hidl = hidl_with("mpi")
    other = stack_prefix("openmpi") / "lib" / "libmpi.so.40"
    completed = hidl(*RUN, "--no-check", LD_PRELOAD=str(other))
    assert completed.returncode == 8, completed.stderr
    assert findings(hidl) == [("HD001", "error"), ("HD003", "error")]

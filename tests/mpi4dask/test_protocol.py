"""What is read from a peer: random and mutated bytes, thousands of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.mpi4dask.conftest import PROGRAMS, STACKS
from tests.waiting import patience


def test_no_bytes_of_a_peer_do_more_than_be_refused(stack_python: Callable[[str], Path]) -> None:
    command = [str(stack_python(STACKS["mpich"])), str(PROGRAMS / "garbage.py"), "3000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(300), check=False)
    assert done.returncode == 0, done.stderr

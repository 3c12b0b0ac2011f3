"""Which `mpiexec` a notebook's cluster is started with: that of the library that mpi4py is linked with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli import process
from tests.workloads import ranks

FIND = "from mpi4dask import mpiexec; found = mpiexec.find(); print(found.program, *found.argv(3)[1:], sep='\\n')"


@pytest.mark.parametrize(("stack", "bind"), [("mpi4dask", "-bind-to"), ("mpi4dask-openmpi", "--bind-to")])
def test_the_launcher_lies_beside_the_library_whatever_is_on_path(
    stack_prefix: Callable[[str], Path], stack: str, bind: str
) -> None:
    prefix = stack_prefix(stack)
    other = stack_prefix({"mpi4dask": "mpi4dask-openmpi", "mpi4dask-openmpi": "mpi4dask"}[stack])
    environment = ranks.python_environment() | {"PATH": f"{other / 'bin'}:/usr/bin:/bin"}
    found = process.run([prefix / "bin" / "python", "-c", FIND], env=environment).stdout.splitlines()
    assert Path(found[0]).resolve().is_relative_to(prefix.resolve())
    assert found[1:] == ["-n", "3", bind, "none"]

"""mpi4dask as hidl installs it, on MPICH and on Open MPI, and programs of several ranks that run on it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.mpi import MPICH_ON_ONE_HOST
from tests.waiting import patience

PROGRAMS = Path(__file__).parent / "programs"
STACKS = {"mpich": "mpi4dask", "openmpi": "mpi4dask-openmpi"}
#: Ways to wait and to send: polling where cores are free, or never; reading from the sender's memory, or all by MPI.
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "mpich": ("mpich", {}),
    "mpich, never polling": ("mpich", {"SPIN": "0s"}),
    "openmpi, never polling, all by MPI": ("openmpi", {"SPIN": "0s", "DIRECT": "off"}),
}
#: Open MPI refuses root and more ranks than cores unless told otherwise.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@pytest.fixture(scope="session")
def mpi4dask_python(stack_prefix: Callable[[str], Path]) -> Callable[[str], Path]:
    """``mpi4dask_python("mpich")``: a Python with mpi4dask, distributed and that MPI."""

    def python(library: str) -> Path:
        given = os.environ.get(f"MPI4DASK_TEST_PYTHON_{library.upper()}")
        return Path(given) if given else stack_prefix(STACKS[library]) / "bin" / "python"

    return python


@pytest.fixture(scope="session")
def run_ranks(mpi4dask_python: Callable[[str], Path]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_ranks("mpich", 2, "program.py", ...)``: run a program of tests/mpi4dask/programs under mpiexec."""

    def run(
        library: str,
        ranks: int,
        program: str,
        *arguments: str,
        options: tuple[str, ...] = (),
        timeout: float = 300,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        python = mpi4dask_python(library)
        launch = [str(python.parent / "mpiexec"), *options, "-n", str(ranks), str(python)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "DASK_"))}
        return subprocess.run(
            [*launch, str(PROGRAMS / program), *arguments],
            env=clean | _OPEN_MPI | MPICH_ON_ONE_HOST | variables,
            capture_output=True,
            text=True,
            timeout=patience(timeout),
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a self-signed cert.pem and its key.pem."""
    directory = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=dask", "-days", "2"]  # noqa: RUF005
        + ["-addext", "subjectAltName=DNS:dask", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=directory,
        capture_output=True,
        check=True,
    )
    return directory


@pytest.fixture(scope="session")
def outcomes(
    run_ranks: Callable[..., subprocess.CompletedProcess[str]],
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Any]:
    """``outcomes("mpich")``: what became of each scenario in that way, from one launch."""
    known: dict[str, Any] = {}

    def of(way: str) -> Any:
        if way not in known:
            library, settings = WAYS[way]
            results = tmp_path_factory.mktemp("scenarios") / "results.json"
            variables = {f"DASK_DISTRIBUTED__COMM__MPI__{name}": value for name, value in settings.items()}
            done = run_ranks(library, 2, "scenarios.py", str(results), str(certificate), **variables)
            assert results.exists(), done.stdout + done.stderr
            known[way] = json.loads(results.read_text())
        return known[way]

    return of

"""mpi4dask as hidl installs it, on MPICH and on Open MPI, and programs of several ranks that run on it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
STACKS = {"mpich": "mpi4dask", "openmpi": "mpi4dask-openmpi"}
#: Ways to wait and to send: polling where cores are free, or never; reading from the sender's memory, or all by MPI.
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "mpich": ("mpich", {}),
    "mpich, never polling": ("mpich", {"SPIN": "0s"}),
    "openmpi, never polling, all by MPI": ("openmpi", {"SPIN": "0s", "DIRECT": "off"}),
}


@pytest.fixture(scope="session")
def run_ranks(
    run_on_stack: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_ranks("mpich", 2, "program.py", ...)``: run a program of tests/mpi4dask/programs under mpiexec."""

    def run(
        library: str, ranks: int, program: str, *arguments: str, options: tuple[str, ...] = (), **others: Any
    ) -> subprocess.CompletedProcess[str]:
        launch = "mpiexec", *options, "-n", str(ranks)
        return run_on_stack(STACKS[library], PROGRAMS / program, *arguments, launch=launch, **others)

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

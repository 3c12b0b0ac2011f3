"""The twin of a site of TACC's, whose GPU nodes run mpirun_rsh and ibrun."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hidl_twin import packages

from tests.cluster.cluster import LivingCluster, living
from tests.conftest import Hidl

SITE = "frontera-rtx"


@dataclass(frozen=True)
class Twin:
    """The twin of ``SITE``, with four nodes."""

    cluster: LivingCluster

    def __call__(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command on its login host."""
        login = ["cluster", "login", "--like", SITE, "--directory", str(self.cluster.directory), "--"]
        return self.cluster(sys.executable, "-m", "hidl_cli", *login, *command, timeout=300, **variables)

    def hidl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run hidl on its login host, as one of its users."""
        return self(*Hidl.command(*arguments))

    def json(self, *arguments: str, status: int = 0) -> Any:
        """Run it with ``--json``; the exit code must be ``status``."""
        done = self.hidl(*arguments, "--json")
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def twin(common_directory: Path) -> Iterator[Twin]:
    """It; a test that needs it is skipped by its name where none can be had."""
    if (obstacle := packages.obstacle(accounting=True, twin=True)) is not None:
        pytest.skip(f"THE TWIN OF {SITE} NEEDS A CLUSTER: {obstacle.message}")
    with living(common_directory / "twin", common_directory, nodes=4, accounting=True, like=SITE) as found:
        ready = Twin(found)
        installed = ready.hidl("install", "mpi", "--site", SITE)
        assert installed.returncode == 0, installed.stdout + installed.stderr
        yield ready

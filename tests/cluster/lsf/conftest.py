"""A stand-in LSF of this machine, and the twin of Summit."""

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
from tests.schedulers.lsf.conftest import lsf  # noqa: F401  # a fixture

SITE = "summit"


@dataclass(frozen=True)
class Twin:
    """The twin of Summit, with two nodes of each kind."""

    cluster: LivingCluster

    def __call__(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command on its login host."""
        login = ["cluster", "login", "--like", SITE, "--directory", str(self.cluster.directory), "--"]
        return self.cluster(sys.executable, "-m", "hidl_cli", *login, *command, timeout=300, **variables)

    def job(self, script: str, *options: str, **variables: str) -> tuple[int, str]:
        """The status of a job on two nodes, and what it printed."""
        done = self("bsub", "-P", "ABC", "-W", "5", "-nnodes", "2", "-K", *options, script, **variables)
        number = done.stdout.partition("<")[2].partition(">")[0]
        return done.returncode, (self.directory / "jobs" / number / "out").read_text()

    def hidl(self, hidl: Hidl, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run hidl on its login host, with that hidl's directories in the place of the twin's users'."""
        own = [f"{name}={value}" for name, value in hidl.environment.items() if name.startswith("XDG_")]
        return self("env", *own, *hidl.command(*arguments), **hidl.environment)

    @property
    def directory(self) -> Path:
        """That of its LSF."""
        return self.cluster.directory / "lsf"

    def set(self, **settings: Any) -> None:
        """Change settings of its LSF."""
        file = self.directory / "settings.json"
        file.with_suffix(".new").write_text(json.dumps(json.loads(file.read_text()) | settings))
        file.with_suffix(".new").replace(file)


@pytest.fixture(scope="session")
def summit(common_directory: Path) -> Iterator[Twin]:
    """The twin of Summit; a test that needs it is skipped by its name where none can be had."""
    if (obstacle := packages.obstacle(accounting=False, twin=True)) is not None:
        pytest.skip(f"THE TWIN OF SUMMIT NEEDS A CLUSTER: {obstacle.message}")
    directory = common_directory / "hidl" / SITE
    with living(directory, common_directory, nodes=2, accounting=False, like=SITE) as cluster:
        yield Twin(cluster)


@pytest.fixture
def on_summit(summit: Twin, hidl: Hidl, common_directory: Path) -> Hidl:
    """hidl with a site ``mine``: Summit with an MVAPICH2-GDR; stack mpi is installed for it."""
    ready = Hidl(hidl.environment | {"XDG_DATA_HOME": str(common_directory / "summit-data")})
    file = ready.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    prefix = summit.cluster.directory / "site" / "mpi" / "mvapich2-gdr"
    file.write_text(
        f"""\
name: mine
title: Summit, with an MVAPICH2-GDR
extends: {SITE}
status: in-service
install: {{verify: here}}
mpi:
  mvapich2-gdr: {{family: mvapich2-gdr, version: 2.3.7, launchers: [jsrun], prefix: {prefix}}}
"""
    )
    installed = summit.hidl(ready, "install", "mpi", "--site", "mine")
    assert installed.returncode == 0, installed.stderr
    return ready

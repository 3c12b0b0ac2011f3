"""Recorded machines, sites and installations to examine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hidl_cli.doctor.context import Context
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation
from tests.site.recording import DIRECTORY, RecordedHost


def local(**keys: Any) -> Site:
    """A site of this machine alone."""
    document: dict[str, Any] = {
        "name": "here",
        "title": "a machine",
        "scheduler": "local",
        "launchers": ["mpiexec", "mpirun"],
        "node_types": {"node": {"cores": 4, "gpus": 0}},
        "partitions": {"default": {"node_type": "node"}},
        "default_partition": "default",
    }
    return Site.model_validate(document | keys)


def slurm(**keys: Any) -> Site:
    """A cluster with Slurm."""
    return local(**{"scheduler": "slurm", "launchers": ["srun", "mpirun_rsh", "mpiexec"]} | keys)


def host(
    directory: Path | None = None, *programs: str, answers: dict[str, str] | None = None, **environment: str
) -> RecordedHost:
    """A host of these programs and answers, with this environment; its files lie below ``directory``/root."""
    places = {program: f"/usr/bin/{program}" for program in programs}
    return RecordedHost(directory or DIRECTORY / "none", "node1", environment, places, answers=answers or {})


def installed(prefix: Path, family: str = "mpich", version: str = "5.0.2") -> Installation:
    """An installation of that MPI library at ``prefix``."""
    return Installation(prefix, {"mpi": {"family": family, "version": version}, "lock": {"digest": "0"}})


def context(machine: Host, site: Site | None = None, installation: Installation | None = None, **more: Any) -> Context:
    """What is examined."""
    return Context(machine, site or local(), installation, "mpi" if installation else None, **more)

"""Cores and GPUs of a job that running steps hold exclusively."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hidl_cli.documents import read_json, write_json
from hidl_twin.jsrun.options import Options
from hidl_twin.jsrun.placement import DoesNotFit, Host, ResourceSet, resource_sets

_PAUSE = 0.1


def claim(options: Options, hosts: Sequence[Host], job_directory: Path) -> tuple[list[ResourceSet], Path]:
    """Allocate the step's resource sets and directory; wait for other steps if necessary.

    What is claimed stays so while this process, or the one that it starts, lives. Raises ``DoesNotFit`` where the
    job's hosts would not do even if they were idle.
    """
    resource_sets(options, hosts)
    while True:
        with (job_directory / "steps.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            taken = list(_taken(job_directory))
            free = [_without(host, taken) for host in hosts]
            try:
                sets = resource_sets(options, free)
            except DoesNotFit:
                pass
            else:
                return sets, _new_step(job_directory, sets)
        time.sleep(_PAUSE)


def _new_step(job_directory: Path, sets: Sequence[ResourceSet]) -> Path:
    number = 1 + sum(1 for _ in job_directory.glob("step-*"))
    directory = job_directory / f"step-{number}"
    directory.mkdir()
    write_json(directory / "claim.json", [[each.host, each.cores, each.gpus] for each in sets])
    descriptor = os.open(directory / "claim.json", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.set_inheritable(descriptor, True)  # it is open until the last process of the step here has ended
    return directory


def _taken(job_directory: Path) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    for file in job_directory.glob("step-*/claim.json"):
        with file.open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                for host, cores, gpus in read_json(file):
                    yield host, tuple(cores), tuple(gpus)


def _without(host: Host, taken: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]]) -> Host:
    cores = {core for name, cores, _ in taken for core in cores if name == host.name}
    gpus = {gpu for name, _, gpus in taken for gpu in gpus if name == host.name}
    return replace(
        host,
        cores=tuple(core for core in host.cores if core not in cores),
        gpus=tuple(gpu for gpu in host.gpus if gpu not in gpus),
    )

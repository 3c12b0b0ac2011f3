"""Start, timing, checks and report, which all programs of this package share."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from hidl_workloads import arguments, metrics, phases
from hidl_workloads.metrics import Metric
from hidl_workloads.ml.devices import Device, choose
from hidl_workloads.ml.streams import Array
from hidl_workloads.parameters import MachineLearning
from hidl_workloads.refusal import Refused, agree, exit_if_refused
from hidl_workloads.world import failure_ends_all_ranks

AnyParameters = TypeVar("AnyParameters", bound=MachineLearning)
Result = TypeVar("Result")


@dataclass(frozen=True)
class ProgramReport:
    """Results of a program: its metrics, one line for people, and arrays for the file that ``result`` names.

    ``checksum`` is this rank's of what all ranks must agree on. ``arrays`` are those of rank 0.
    """

    metrics: Sequence[Metric]
    summary: str
    checksum: str
    arrays: Mapping[str, Array]


Program = Callable[[MPI.Comm, Device, AnyParameters], ProgramReport]


def main(name: str, kind: type[AnyParameters], program: Program[AnyParameters]) -> None:
    """Run ``program`` with the parameters in ``sys.argv`` on all ranks, print its summary and report its metrics.

    Where it is refused, rank 0 says why, and all ranks end.
    """
    world = MPI.COMM_WORLD
    with failure_ends_all_ranks(), exit_if_refused(world, name):
        _run(world, name, kind, program)


def _run(world: MPI.Comm, name: str, kind: type[AnyParameters], program: Program[AnyParameters]) -> None:
    try:
        parameters = arguments.parse(kind, sys.argv[1:])
    except ValueError as error:
        raise Refused(str(error)) from error
    device = choose(world, parameters.gpu_buffers)
    if world.rank == 0:
        print(f"{name} on {world.size} rank(s), {device.title}", flush=True)
    outcome = program(world, device, parameters)
    agree(world, _write(world, parameters.result, outcome.arrays))
    checksums = world.allgather(outcome.checksum)
    checksum = Metric("result_checksum", checksums[0], "sha256", checksums)
    report(world, device, name, parameters, [*outcome.metrics, checksum])
    if world.rank == 0:
        print(outcome.summary, flush=True)


def report(
    communicator: MPI.Comm, device: Device, name: str, parameters: MachineLearning, found: Sequence[Metric]
) -> None:
    """Write the metrics document of program ``name`` from rank 0."""
    metrics.report(
        communicator, program=name, parameters=asdict(parameters), versions=device.versions, metrics=list(found)
    )


def _write(world: MPI.Comm, path: str, arrays: Mapping[str, Array]) -> str | None:
    """Write the file of results from rank 0, if requested; return the error, or None."""
    if world.rank != 0 or not path:
        return None
    try:
        with Path(path).open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        return f"the result cannot be written: {error}"
    return None


def timed(
    communicator: MPI.Comm, device: Device, parameters: MachineLearning, work: Callable[[], Result]
) -> tuple[Result, list[float]]:
    """Do ``work`` for the warm-up and the timed steps, all ranks from the same moment on.

    Returns the last step's result, and for each timed step the seconds that the slowest rank took.
    """
    seconds = np.zeros(parameters.warmup + parameters.steps)
    for number_ in range(len(seconds)):
        communicator.Barrier()
        with phases.warmup() if number_ < parameters.warmup else phases.phase(phases.STEP):
            start = time.perf_counter()
            result = work()
            device.synchronize()
            seconds[number_] = time.perf_counter() - start
    communicator.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return result, seconds[parameters.warmup :].tolist()


def time_and_rate(name: str, seconds: Sequence[float], amount: float, rate: str, unit: str) -> list[Metric]:
    """Two metrics: the median time of a step as ``name``, and ``amount`` per that time as ``rate`` in ``unit``."""
    median = float(np.median(seconds))
    return [
        Metric(name, median, "s", list(seconds)),
        Metric(rate, amount / median, unit, [amount / each for each in seconds]),
    ]


def one(name: str, value: float, unit: str) -> Metric:
    """A metric of one value, which is its only sample."""
    return Metric(name, value, unit, [value])


def verify(communicator: MPI.Comm, what: str, value: float, limit: float) -> None:
    """Raise ``Refused`` on all ranks where ``value`` is not at most ``limit`` on each: the result is wrong."""
    wrong = not value <= limit  # NaN is wrong too
    agree(communicator, f"the result is wrong: {what} is {value:.3g}, more than {limit:.3g}" if wrong else None)


def checksum(device: Device, *arrays: Array) -> str:
    """The SHA-256 of arrays, bit for bit."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(device.host(array)).tobytes())
    return digest.hexdigest()

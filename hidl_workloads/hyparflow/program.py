"""The run of a program: plan, warm up, train and time, and report."""

from __future__ import annotations

import hashlib
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from hidl_workloads import arguments, intervals, metrics
from hidl_workloads.energy import Meter
from hidl_workloads.hyparflow.figures import Predicted, RankMeasurements, combined, figures
from hidl_workloads.hyparflow.layout import divide_ranks
from hidl_workloads.parameters import Hyparflow
from hidl_workloads.refusal import Refused, exit_if_refused
from hidl_workloads.training.data_parallel.weights import checksum
from hidl_workloads.training.loop import run_steps
from hidl_workloads.world import failure_ends_all_ranks

if TYPE_CHECKING:
    from hidl_workloads.hyparflow.trainer import PartitionedTrainer, Step

AnyParameters = TypeVar("AnyParameters", bound=Hyparflow)


def main(name: str, kind: type[AnyParameters], make: Callable[[AnyParameters], Any]) -> None:
    """Train the model that ``make`` gives for the parameters in ``sys.argv``; every rank calls this.

    A failure ends all ranks; where the request cannot be fulfilled, rank 0 says why.
    """
    world = MPI.COMM_WORLD
    with failure_ends_all_ranks(), exit_if_refused(world, name):
        try:
            parameters = arguments.parse(kind, sys.argv[1:])
            divide_ranks(parameters, world.size)
        except ValueError as error:
            raise Refused(str(error)) from error
        if world.rank == 0:
            print(f"{name} on {world.size} rank(s): building and planning the model", flush=True)
        from hidl_workloads.hyparflow.trainer import PartitionedTrainer  # imports Keras and TensorFlow

        trainer = PartitionedTrainer(world, parameters, lambda: make(parameters))
        if world.rank == 0:
            print(header(trainer, parameters), flush=True)
        meter = Meter(world)
        measured = _train(world, trainer, parameters, meter)
        prediction = trainer.plan.prediction
        predicted = Predicted(prediction.step_seconds, prediction.bubble, trainer.plan.micro_batches)
        metrics.report(
            world,
            program=name,
            parameters=asdict(parameters),
            versions=trainer.versions,
            metrics=[*figures(measured, predicted), *trainer.metrics()],
            energy=meter.collect(measured.images * len(measured.seconds), "image"),
        )
        trainer.close()
        if world.rank == 0:
            print(summary(measured), flush=True)


def _train(world: MPI.Comm, trainer: PartitionedTrainer, parameters: Hyparflow, meter: Meter) -> RankMeasurements:
    """Train the warm-up steps and the timed ones; collective."""
    replicas = trainer.plan.replicas
    seconds: list[float] = []
    steps: list[Step] = []

    def step() -> float:
        steps.append(trainer.step())
        return steps[-1].loss

    for took, _ in run_steps(step, parameters.warmup + parameters.steps, warmup=parameters.warmup, meter=meter):
        seconds.append(took)
        if len(seconds) == 1 and world.rank == 0:
            print(f"First step: {took:.1f} s", flush=True)
    slowest = [max(each) for each in zip(*world.allgather(seconds), strict=True)]
    bubble = 1 - sum(step.busy for step in steps[parameters.warmup :]) / sum(seconds[parameters.warmup :])
    return RankMeasurements(
        images=parameters.batch * replicas,
        seconds=slowest[parameters.warmup :],
        first_step=slowest[0],
        bubbles=world.allgather(bubble),
        peaks=world.allgather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),  # KiB on Linux
        checksums=world.allgather(_checksum(world, trainer)),
        loss=world.allreduce(steps[-1].loss) / replicas,
    )


def _checksum(world: MPI.Comm, trainer: PartitionedTrainer) -> str:
    """The SHA-256 of all weights of this rank's replica, from a checksum of each variable; collective."""
    replica = world.Split(trainer.replica, world.rank)
    own = {name: checksum([(name, array)]) for name, array in trainer.weights()}
    seen = combined(replica.allgather(own), replica.rank)
    replica.Free()
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def header(trainer: PartitionedTrainer, parameters: Hyparflow) -> str:
    """Say what will be trained, and what the first step takes that the others do not."""
    path = f", path: {trainer.path.name} ({trainer.path.reason})" if trainer.path else ""
    nodes = sum(len(stage.nodes) for stage in trainer.plan.stages)
    return "\n".join(
        (
            f"{trainer.parameter_count:,} parameters, {parameters.precision}, on {trainer.device}{path}",
            str(trainer.plan),
            f"Compiling {nodes:,} nodes in {trainer.plan.partitions} partition(s): the first step takes longest",
        )
    )


def summary(measured: RankMeasurements) -> str:
    """The result in a line: the mean over the steps, +- its 95 % interval."""
    rates = [measured.images / each for each in measured.seconds]
    return (
        f"{intervals.mean(rates):.1f} +-{intervals.half_width(rates):.1f} images/s on {len(measured.peaks)} rank(s), "
        f"at most {max(measured.peaks):.0f} MiB per rank"
    )

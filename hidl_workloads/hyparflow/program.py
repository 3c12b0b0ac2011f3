"""The run of a program: plan, warm up, train and time, and report."""

from __future__ import annotations

import hashlib
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mpi4py import MPI

from hidl_workloads import arguments, intervals, metrics, stop
from hidl_workloads.checkpoint import Snapshot, directory_of_checkpoints
from hidl_workloads.energy import Meter
from hidl_workloads.hyparflow.figures import Predicted, RankMeasurements, combined, figures
from hidl_workloads.hyparflow.layout import divide_ranks
from hidl_workloads.metrics import Metric
from hidl_workloads.parameters import Hyparflow
from hidl_workloads.refusal import Refused, exit_if_refused
from hidl_workloads.training.data_parallel.weights import checksum
from hidl_workloads.training.loop import StepTimes, run_steps
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
        if directory_of_checkpoints() is not None:
            stop.listen()  # the signal may come while the framework is imported
        from hidl_workloads.hyparflow.trainer import PartitionedTrainer  # imports Keras and TensorFlow

        trainer = PartitionedTrainer(world, parameters, lambda: make(parameters), name)
        if world.rank == 0:
            print(header(trainer, parameters), flush=True)
        meter = Meter(world)
        course = PartitionedCourse(world, trainer, parameters, meter)
        measured = course.train(name)
        prediction = trainer.plan.prediction
        predicted = Predicted(prediction.step_seconds, trainer.plan.bubble, trainer.plan.micro_batches)
        metrics.report(
            world,
            program=name,
            parameters=asdict(parameters),
            versions=trainer.versions,
            metrics=[*figures(measured, predicted), *trainer.metrics()],
            energy=meter.collect(measured.images * course.timed_steps, "image"),
        )
        trainer.close()
        if trainer.checkpoints is not None:
            trainer.checkpoints.finish()
        if world.rank == 0:
            print(summary(measured), flush=True)


class PartitionedCourse:
    """A training from its first step, or from the newest checkpoint, to its last step; collective."""

    def __init__(self, world: MPI.Comm, trainer: PartitionedTrainer, parameters: Hyparflow, meter: Meter) -> None:
        begun = trainer.begun
        document = {} if begun is None else begun.document
        self._world, self._trainer, self._parameters = world, trainer, parameters
        self._step, self._total = 0 if begun is None else begun.step, parameters.warmup + parameters.steps
        self._meter = meter
        self.timed_steps = max(0, self._total - self._step - parameters.warmup)  # of this job
        self._times = StepTimes(world, parameters.warmup, parameters.batch * trainer.plan.replicas, begun)
        self._first_step: float = document.get("first_step", 0.0)
        self._loss: float = document.get("loss", 0.0)  # this rank's part; of all ranks in the document
        of_ranks: Sequence[tuple[float, float]] = document.get("busy", ())
        # Seconds of computation and of steps that count, on this rank.
        self._busy, self._whole = 0.0, 0.0
        if len(of_ranks) == world.size:
            self._busy, self._whole = of_ranks[world.rank]
        self._loss_is_own = begun is None

    def train(self, name: str) -> RankMeasurements:
        """Train the program ``name`` until the last step; end all ranks if a stop was requested before."""
        world, trainer, warmup = self._world, self._trainer, self._parameters.warmup
        begun = self._step
        if begun and world.rank == 0:
            print(f"Continuing after step {begun} of {self._total}", flush=True)
        for seconds, step in self._steps(begun):
            self._step += 1
            self._times.add(seconds)
            self._loss, self._loss_is_own = step.loss, True
            if self._step - begun > warmup or self._total - begun <= warmup:
                self._busy += step.busy
                self._whole += seconds
            if self._step == 1:
                self._first_step = float(world.allreduce(seconds, MPI.MAX))
                if world.rank == 0:
                    print(f"First step: {seconds:.1f} s", flush=True)
            last = self._step == self._total
            if trainer.checkpoints is not None and trainer.checkpoints.after_step(
                self._step, self._snapshot, last=last
            ):
                self._stop(name)
        self._times.collect()
        return RankMeasurements(
            images=self._times.items,
            seconds=self._times.timed,
            first_step=self._first_step,
            bubbles=world.allgather(1 - self._busy / self._whole if self._whole else 0.0),
            peaks=world.allgather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),  # KiB on Linux
            checksums=world.allgather(_checksum(world, trainer)),
            loss=self._mean_loss(),
        )

    def _steps(self, done: int) -> Iterator[tuple[float, Step]]:
        steps: list[Step] = []

        def step() -> float:
            steps.append(self._trainer.step())
            return steps[-1].loss

        for seconds, _ in run_steps(step, self._total, done=done, warmup=self._parameters.warmup, meter=self._meter):
            yield seconds, steps.pop()

    def _stop(self, name: str) -> NoReturn:
        metrics.report(
            self._world,
            program=name,
            parameters=asdict(self._parameters),
            versions=self._trainer.versions,
            metrics=[Metric("progress", self._step, "steps", [float(self._step)])],
        )
        stop.exit_stopped(self._world, f"stopped after step {self._step} of {self._total}, to be continued")

    def _snapshot(self) -> Snapshot:
        self._times.collect()
        return self._trainer.snapshot(
            {
                **self._times.state,
                "first_step": self._first_step,
                "loss": self._mean_loss(),
                "busy": self._world.allgather((self._busy, self._whole)),
            }
        )

    def _mean_loss(self) -> float:
        """Return the loss of the last step, the mean over the replicas; collective."""
        if not self._loss_is_own:
            return self._loss
        loss: float = self._world.allreduce(self._loss) / self._trainer.plan.replicas
        return loss


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

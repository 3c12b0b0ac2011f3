"""What one rank of ``benchmarks.pipeline`` does: train a ResNet on images of 32 x 32, in blocks of steps, when told to.

::

    mpiexec -n RANKS python -m benchmarks.pipeline_ranks CONTENDER DEPTH SETTINGS

Rank 0 reads from its standard input how many steps the next block has, a line each, and answers with one line of JSON;
its first line says that it is ready. Each line has the ranks' process numbers too, and, where the contender has a plan,
what a step of the next block is predicted to take. The end of the input is the end. Between its blocks a contender
computes nothing, but its MPI, and Horovod's own thread, may take whole cores: measurements of others stop it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 256
MICRO_BATCHES = 8

Step = Callable[[], Any]
Foresee = Callable[[], dict[str, float]]  # collective; what is known of the next steps, on rank 0


def model(depth: int) -> keras.Model:
    """ResNet of version 1, compiled."""
    from hidl_workloads.hyparflow.models.resnet import resnet

    keras.utils.set_random_seed(1)
    made: keras.Model = resnet(1, depth)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=False)
    return made


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    random = np.random.default_rng(1)
    return random.normal(size=(rows, 32, 32, 3)).astype(np.float32), random.integers(0, 10, rows)


def sequential(depth: int, settings: dict[str, Any]) -> tuple[Step, Foresee]:
    """One process: gradients accumulated over the micro-batches, in one program; then one update."""
    made = model(depth)
    images, labels = (tf.constant(each) for each in data(BATCH))
    weights = made.trainable_variables
    sums = [tf.Variable(tf.zeros_like(weight.value)) for weight in weights]
    size = BATCH // MICRO_BATCHES

    @tf.function
    def accumulate(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = made.compute_loss(x, y, made(x, training=True)) / MICRO_BATCHES
        for total, gradient in zip(sums, tape.gradient(loss, [weight.value for weight in weights]), strict=True):
            total.assign_add(gradient)

    @tf.function
    def update() -> None:
        made.optimizer.apply([total.read_value() for total in sums], weights)
        for total in sums:
            total.assign(tf.zeros_like(total))

    def step() -> None:
        for first in range(0, BATCH, size):
            accumulate(images[first : first + size], labels[first : first + size])
        update()

    return step, dict


def keras_itself(depth: int, settings: dict[str, Any]) -> tuple[Step, Foresee]:
    """One process: Keras' own training on the whole batch."""
    made = model(depth)
    images, labels = (tf.constant(each) for each in data(BATCH))
    return lambda: made.train_on_batch(images, labels), dict


def hyparflow(depth: int, settings: dict[str, Any]) -> tuple[Step, Foresee]:
    """This library; ``settings``: partitions, replicas, micro_batches (of a replica), schedule."""
    from hyparflow.engine.engine import Batch, Engine, Options, Span
    from hyparflow.planning.planner import refine
    from hyparflow.training.sessions import plan_together
    from mpi4py import MPI

    made = model(depth)
    world = MPI.COMM_WORLD
    parallel = plan_together(
        world, made, batch_size=BATCH, costs="measured", recompute=False, refinements=1, **settings
    )
    engine = Engine(made, parallel, world, Options(trace=True))
    rows = BATCH // parallel.replicas
    images, labels = data(BATCH)
    own = slice(engine.world.seat.replica * rows, (engine.world.seat.replica + 1) * rows)
    batch = Batch((images[own],), (labels[own],))
    spans: tuple[Span, ...] = ()

    def step() -> None:
        nonlocal spans
        spans = engine.train_step(batch).spans

    def foresee() -> dict[str, float]:
        seen: list[dict[int, tuple[float, float]]] | None = world.gather(
            {stage: (_median(spans, stage, "forward"), _median(spans, stage, "backward")) for stage in engine.programs}
        )
        if seen is None:
            return {}
        stages = dict(item for rank in seen for item in rank.items())  # of replicas, the last one's
        measured = [stages[stage.index] for stage in parallel.stages]
        again = refine(parallel, engine.graph, measured, keep=True)
        return {"planned": parallel.prediction.step_seconds, "predicted": again.prediction.step_seconds}

    return step, foresee


def _median(spans: Any, stage: int, kind: str) -> float:
    """Seconds of a stage's passes of that kind."""
    return statistics.median(span.end - span.begin for span in spans if (span.stage, span.kind) == (stage, kind))


def horovod(depth: int, settings: dict[str, Any]) -> tuple[Step, Foresee]:
    """Two replicas whose gradients Horovod averages."""
    import horovod.tensorflow as hvd
    from mpi4py import MPI

    from hidl_workloads.training import horovod_world

    made = model(depth)
    horovod_world.init(hvd, MPI.COMM_WORLD, "mpi")
    images, labels = (tf.constant(each) for each in data(BATCH // MPI.COMM_WORLD.size))
    weights = made.trainable_variables

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = made.compute_loss(images, labels, made(images, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, [weight.value for weight in weights])
        made.optimizer.apply(gradients, weights)

    return step, dict


CONTENDERS = {"sequential": sequential, "keras": keras_itself, "hyparflow": hyparflow, "horovod": horovod}


def main(contender: str, depth: int, settings: dict[str, Any]) -> None:
    """Warm up, then run the blocks that rank 0 is told of."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    step, foresee = CONTENDERS[contender](depth, settings)
    for _ in range(2):
        step()
    _answer(world, {"ready": True, **foresee()})
    while steps := _told(world):
        step()  # what ran in between filled the caches
        world.Barrier()
        before = time.perf_counter()
        for _ in range(steps):
            step()
        world.Barrier()
        seconds = (time.perf_counter() - before) / steps
        _answer(world, {"seconds": seconds, **foresee()})


def _told(world: Any) -> int:
    """Rank 0's next line, on every rank; 0 at the end."""
    line = sys.stdin.readline() if world.rank == 0 else ""
    told: int = world.bcast(int(line) if line.strip() else 0)
    return told


def _answer(world: Any, found: dict[str, Any]) -> None:
    """Print what rank 0 found, with every rank's peak memory in bytes, and its process."""
    peaks = world.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    processes = world.gather(os.getpid())
    if world.rank == 0:
        print(json.dumps({**found, "peaks": peaks, "processes": processes}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))

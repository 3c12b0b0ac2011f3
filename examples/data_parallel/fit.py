# fit.py
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
from mpi4py import MPI

import keras
import numpy as np

from hidl_workloads.training.data_parallel.keras_optimizer import (
    AverageMetrics,
    AverageStatistics,
    BroadcastInitialState,
    DistributedOptimizer,
)
from hidl_workloads.world import failure_ends_all_ranks

world = MPI.COMM_WORLD
with failure_ends_all_ranks():
    random = np.random.default_rng(world.rank)  # every rank has data of its own, and equally much of it
    x = random.standard_normal((1024, 20)).astype(np.float32)
    model = keras.Sequential([keras.layers.Dense(50, activation="relu"), keras.layers.Dense(2)])
    model.compile(
        optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [BroadcastInitialState(), AverageStatistics(), AverageMetrics()]  # before those that decide or save
    model.fit(x, (x.sum(1) > 0).astype(int), epochs=3, callbacks=callbacks, verbose=2 if world.rank == 0 else 0)
    if world.rank == 0:
        model.save("model.keras")

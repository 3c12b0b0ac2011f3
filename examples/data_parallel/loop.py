# loop.py
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
from mpi4py import MPI

import keras
import numpy as np
import tensorflow as tf

from hidl_workloads.training.data_parallel.keras_optimizer import DistributedOptimizer
from hidl_workloads.training.data_parallel.tensorflow_gradients import broadcast
from hidl_workloads.world import failure_ends_all_ranks

world = MPI.COMM_WORLD
batch = 8
with failure_ends_all_ranks():
    x = np.random.default_rng(0).standard_normal((192, 20)).astype(np.float32)[world.rank :: world.size]
    data = tf.data.Dataset.from_tensor_slices((x, (x.sum(1) > 0).astype(int))).batch(batch)
    keras.utils.set_random_seed(world.rank)
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(50, activation="relu"), keras.layers.Dense(2)])
    optimizer = DistributedOptimizer(keras.optimizers.Adam(0.01))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    broadcast(world, model)

    @tf.function
    def train_step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))

    for epoch in range(2):
        for inputs, labels in data:
            train_step(inputs, labels)
    if world.rank == 0:
        np.savez("weights.npz", *model.get_weights())

"""Costs: estimated from the work, and as functions of the samples."""

from __future__ import annotations

import numpy as np
import pytest
from hyparflow.planning.costs import Costs, Machine, estimated, flops_per_sample
from hyparflow.simulate.models import model

from tests.hyparflow.graphs import graph


def test_a_pass_takes_a_fixed_time_and_one_per_sample() -> None:
    costs = Costs(np.array([1.0]), np.array([0.5]), np.array([2.0]), np.array([1.0]))
    assert (costs.forward(4)[0], costs.backward(4)[0]) == (3.0, 6.0)


def test_the_arithmetic_of_resnet_20_is_that_of_its_convolutions() -> None:
    made = model("resnet20v1")
    assert made is not None
    first = 32 * 32 * 9 * 3 * 16
    full = 32 * 32 * 9 * 16 * 16  # the same in every group: half the sides, twice the channels
    products = first + (6 + 5.5 + 5.5) * full + 64 * 10
    # The shortcuts' 1x1 convolutions, biases, normalisations and additions come on top.
    assert flops_per_sample(made) / 2 == pytest.approx(products, rel=0.04)


def test_a_convolution_costs_its_products_and_its_bytes() -> None:
    made = graph([[0]], parameters=1000, shape=(8, 8, 2))
    machine = Machine(flops_per_second=1e9, bytes_per_second=1e9, node_seconds=0.0)
    assert estimated(made, machine).forward(1)[0] == pytest.approx((2 * 1000 * 64 + 2 * 512) / 1e9)


def test_layers_without_weights_cost_what_they_move() -> None:
    made = graph([[0]], kind="ReLU", shape=(8, 8, 2))
    machine = Machine(flops_per_second=float("inf"), bytes_per_second=1e9, node_seconds=0.0)
    assert estimated(made, machine).forward(1)[0] == pytest.approx(2 * 512 / 1e9)

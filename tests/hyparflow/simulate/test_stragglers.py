"""The slowest of many nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hyparflow.simulate import Stragglers


@pytest.mark.parametrize(("nodes", "expected"), [(1, 1.0), (2, 1 + 0.01 / np.sqrt(np.pi)), (100, 1.02508)])
def test_normal_jitter_gives_the_known_maxima(nodes: int, expected: float) -> None:
    # Expected maxima of n normal variables: 0, 0.56419, 2.50759 (Teichroew, 1956).
    assert Stragglers(jitter=0.01).expected_maximum(nodes) == pytest.approx(expected, abs=2e-5)


def test_rare_delays_come_with_their_probability() -> None:
    assert Stragglers(probability=0.01, delay=0.5).expected_maximum(100) == pytest.approx(1 + 0.5 * (1 - 0.99**100))


def test_both_together_are_what_draws_of_random_numbers_give() -> None:
    model, random = Stragglers(jitter=0.02, probability=0.01, delay=0.3), np.random.default_rng(3)
    drawn = 1 + 0.02 * random.standard_normal((20_000, 50)) + 0.3 * (random.random((20_000, 50)) < 0.01)
    assert model.expected_maximum(50) == pytest.approx(drawn.max(axis=1).mean(), abs=3e-3)


def test_nodes_without_variation_wait_for_nobody() -> None:
    assert Stragglers().expected_maximum(1000) == 1.0

"""What the training programs take, and how the ranks of a world are laid out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads import arguments
from hidl_workloads.hyparflow import amoebanet, resnet, vgg
from hidl_workloads.hyparflow.layout import divide_ranks
from hidl_workloads.parameters import Hyparflow

PROGRAMS = {"hyparflow-resnet": resnet, "hyparflow-vgg": vgg, "hyparflow-amoebanet": amoebanet}


@pytest.mark.parametrize(
    ("mode", "ranks", "partitions", "replicas"), [("data", 6, 1, 6), ("model", 6, 6, 1), ("hybrid", 6, 2, 3)]
)
def test_the_mode_shares_the_ranks_out(mode: Any, ranks: int, partitions: int, replicas: int) -> None:
    assert divide_ranks(Hyparflow(mode=mode), ranks) == (partitions, replicas)


@pytest.mark.parametrize(("mode", "partitions", "replicas"), [("data", 1, 6), ("model", 6, 1), ("hybrid", 2, 3)])
def test_parts_of_the_images_share_the_ranks_of_a_replica(mode: Any, partitions: int, replicas: int) -> None:
    assert divide_ranks(Hyparflow(mode=mode, spatial=2), 12) == (partitions, replicas)


@pytest.mark.parametrize("mode", ["data", "model"])
def test_parts_that_do_not_fit_the_ranks_are_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match=r"x 4 parts of the images: use a multiple of 4"):
        divide_ranks(Hyparflow(mode=mode, spatial=4), 3)


def test_replicas_that_do_not_fit_the_ranks_are_refused() -> None:
    with pytest.raises(
        ValueError, match="6 ranks cannot be divided into replicas of 4 partitions: use a multiple of 4"
    ):
        divide_ranks(Hyparflow(mode="hybrid", partitions=4), 6)


@given(st.sampled_from([1, 2]), st.integers(8, 2000))
def test_a_resnet_has_6n_or_9n_layers_and_two_more(version: Any, depth: int) -> None:
    each = {1: 6, 2: 9}[version]
    try:
        resnet.Parameters(depth=depth, version=str(version))  # type: ignore[arg-type]
        taken = True
    except ValueError:
        taken = False
    assert taken == (depth > each and depth % each == 2)


@pytest.mark.parametrize(
    ("program", "word", "says"),
    [
        (resnet, "--depth=51", "invalid depth 51: .* 6n\\+2 layers; the nearest valid depth is 50"),
        (vgg, "--depth=12", "depth must be one of 11, 13, 16, 19"),
        (amoebanet, "--depth=7", "a multiple of 3, not 7"),
    ],
)
def test_a_depth_that_there_is_not_is_refused(program: Any, word: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        arguments.parse(program.Parameters, [word])

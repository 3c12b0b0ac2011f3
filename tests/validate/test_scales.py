"""Scales by name, on sites as they are described."""

from __future__ import annotations

import pytest

from hidl_cli.errors import UsageError
from hidl_cli.inputs.load import load
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import Site
from hidl_cli.validate.reframe import NAMES, allowed_scales, scale


def four_nodes() -> Site:
    """The site test-cluster as it is with four nodes."""
    site = load(RULES, "test-cluster")
    sizes = {"debug": 4, "small": 2}
    found = {name: each.model_copy(update={"max_nodes": sizes[name]}) for name, each in site.partitions.items()}
    return site.model_copy(update={"partitions": found})


def test_a_partition_offers_every_power_of_two_up_to_its_limit_and_the_whole() -> None:
    scales = allowed_scales(four_nodes(), "debug")
    assert list(scales) == ["1-rank", "1-node", "2-nodes", "4-nodes", "full"]
    assert scales["full"].nodes == 4


def test_one_machine_has_no_scale_of_several_nodes() -> None:
    assert list(allowed_scales(load(RULES, "local"))) == ["1-rank", "1-node"]


@pytest.mark.parametrize(("name", "partition", "ranks"), [("frontera-rtx", "rtx", 4), ("frontera", "normal", 2)])
def test_a_node_is_filled_by_a_rank_for_each_gpu_else_for_each_socket(name: str, partition: str, ranks: int) -> None:
    assert allowed_scales(load(RULES, name), partition)["4-nodes"].fullest == ranks


def test_if_a_partition_allows_no_small_jobs_studies_start_at_its_least() -> None:
    scales = allowed_scales(load(RULES, "frontera"), "normal")
    assert "1-node" not in scales
    assert scales["4-nodes"].study == "nodes=3,4"


@pytest.mark.parametrize(
    ("name", "study"), [("1-rank", None), ("1-node", "ranks=1,2"), ("2-nodes", "nodes=1,2"), ("full", "nodes=1,4")]
)
def test_a_study_goes_from_one_to_the_scale(name: str, study: str | None) -> None:
    assert scale(four_nodes(), "debug", name).study == study


@pytest.mark.parametrize(
    ("site", "name", "ranks", "study"),
    [("local", "1-rank", 3, None), ("local", "1-node", 4, "ranks=3,4"), ("frontera-rtx", "1-node", 4, "ranks=3,4")],
)
def test_scheduler_and_client_come_on_top_where_a_node_would_not_hold_two_workers(
    site: str, name: str, ranks: int, study: str | None
) -> None:
    found = scale(load(RULES, site), None, name).with_overhead(2)
    assert (found.ranks_per_node, found.study) == (ranks, study)


def test_a_scale_that_a_partition_does_not_admit_is_reported_with_those_that_it_does() -> None:
    with pytest.raises(UsageError, match="has no scale '4-nodes'") as error:
        scale(four_nodes(), "small", "4-nodes")
    assert "2-nodes" in str(error.value.hint)


def test_the_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)

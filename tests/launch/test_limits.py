"""A request is checked against the site's limits before it is submitted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hidl_cli.errors import SubmitRefused, UsageError
from hidl_cli.launch.options import clock, seconds
from hidl_cli.launch.placement import check_nodes, longest, time_limit
from hidl_cli.site.schema import Partition
from tests.launch.sites import site

BINS = {"node_type": "n", "max_wall": "01:00:00"} | {
    "max_wall_by_nodes": [{"max_nodes": 91, "max_wall": "02:00:00"}, {"max_nodes": 183, "max_wall": "06:00:00"}]
}


def test_too_many_nodes_are_refused_with_the_partitions_that_allow_them() -> None:
    with pytest.raises(SubmitRefused, match=r"5 nodes requested; partition p .* allows 1 to 4 nodes") as caught:
        check_nodes(site(), None, 5)
    assert caught.value.hint == "choose a partition that allows it: large (--partition)"


@pytest.mark.parametrize(("nodes", "expected"), [(1, 7200), (91, 7200), (92, 21600), (184, 3600)])
def test_the_longest_run_time_is_that_of_the_jobs_size(nodes: int, expected: float) -> None:
    assert longest(Partition.model_validate(BINS), nodes) == expected


def test_time_over_the_limit_is_refused_with_the_limit() -> None:
    with pytest.raises(SubmitRefused, match=r"00:40:00 requested; .* allows 00:30:00") as caught:
        time_limit(site(), None, 1, 2400)
    assert "--time 00:30:00 or less" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("keys", "partition", "expected"),
    [
        ({}, "large", 3600),
        ({}, "p", 1800),
        ({"policies": {"default_time": "00:10:00"}}, "large", 600),
        ({"scheduler": "local"}, "large", None),
    ],
    ids=["an hour", "what the partition allows", "the site's default", "none on the machine itself"],
)
def test_default_time_limit(keys: dict[str, object], partition: str, expected: float | None) -> None:
    assert time_limit(site(**keys), partition, 1, None) == expected


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("10", 10),
        ("4:00", 4),
        ("30:00", 30),
        ("90:30", 90.5),
        ("1:30", 1.5),
        ("1:30:00", 90),
        ("2-12", 60 * 60),
        ("1-0", 24 * 60),
        ("2-12:30", 60 * 60 + 30),
        ("1-00:00:00", 24 * 60),
        ("0-0:0:30", 0.5),
        ("100:00:00", 6000),
    ],
)
def test_times_mean_what_they_mean_to_slurm(text: str, minutes: float) -> None:
    assert seconds(text) == 60 * minutes
    assert Partition.model_validate({"node_type": "n", "max_wall": text}).max_wall == text


@pytest.mark.parametrize(
    "text",
    ["", "UNLIMITED", "10m", "1-", "-1", "1:", "1:60", "0:0:60", "1-0:0:0:0", "\u0661\u0660", " 10", "10\n", "1e3"],
)
def test_what_is_no_time_of_slurms_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid time"):
        seconds(text)
    with pytest.raises(ValidationError):
        Partition.model_validate({"node_type": "n", "max_wall": text})


@given(st.integers(0, 10**6))
def test_clock_and_seconds_round_trip(total: int) -> None:
    assert seconds(clock(total)) == total

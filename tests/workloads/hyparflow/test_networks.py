"""Networks by the words of the sites' files."""

from __future__ import annotations

import pytest

from hidl_workloads.hyparflow.networks import network_of


@pytest.mark.parametrize(
    ("words", "gigabits"),
    [
        ("Omni-Path, 100 Gb/s; fat tree", 100),
        ("InfiniBand FDR, 56 Gb/s; full bisection within a rack", 56),
        ("InfiniBand HDR", 200),
        ("InfiniBand HDR100", 100),
        ("InfiniBand EDR (ConnectX-4)", 100),
        ("Slingshot 11 (four links per GPU node, one per CPU node)", 200),
    ],
)
def test_the_first_rate_that_is_named_counts(words: str, gigabits: float) -> None:
    network, said = network_of(words)
    assert network.bandwidth == pytest.approx(gigabits * 1e9 / 8 * 0.97)
    assert words in said


@pytest.mark.parametrize("words", [None, "virtual Ethernet", "somebody's own"])
def test_where_none_is_named_it_says_what_it_takes(words: str | None) -> None:
    assert "InfiniBand HDR100, because the site file" in network_of(words)[1]

"""What is said of a run that measured every two nodes, and which nodes it says to leave out."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

from hidl_cli.analysis.nodes import fields_of, judge_fields, relative_rates, slow_host_list
from hidl_cli.plan.workload import Metric
from hidl_cli.report.plots import draw_pairs

PROMISED = {"latency": Metric(unit="us", better="lower"), "bandwidth": Metric(unit="MB/s", better="higher")}


def steps(nodes: int, *slow: str, name: str = "node{:02d}", link: tuple[str, str] = ("", "")) -> list[dict[str, Any]]:
    """One step whose pairs differ by a few per mille, and by a half where a slow node or link is part."""
    pairs = list(combinations([name.format(number) for number in range(1, nodes + 1)], 2))
    factors = [
        (1 + place % 7 / 1000) * 2.0 ** sum(each in slow for each in pair) * (4.0 if pair == link else 1)
        for place, pair in enumerate(pairs)
    ]
    found = {"value": 2.0, "unit": "us", "samples": [2.0 * f for f in factors], "pairs": [list(pair) for pair in pairs]}
    rates = {"value": 1e4, "unit": "MB/s", "samples": [1e4 / f for f in factors], "pairs": found["pairs"]}
    return [{"metrics": {"latency": found, "bandwidth": rates}}]


def test_a_slow_node_fails_and_is_to_be_left_out() -> None:
    said = judge_fields(fields_of(PROMISED, steps(12, "node07")))
    assert said.verdict == "fail"
    assert (
        said.reason
        == "slow in latency: node07 (0.50 of the median rate); slow in bandwidth: node07 (0.50 of the median rate)"
    )
    assert said.hint == "exclude the slow nodes until they are fixed: --exclude=node07"


def test_nodes_to_leave_out_are_folded() -> None:
    assert slow_host_list(fields_of(PROMISED, steps(16, "node07", "node12"))) == "node[07,12]"


def test_a_slow_link_is_reported_and_no_node_is_left_out() -> None:
    said = judge_fields(fields_of(PROMISED, steps(12, link=("node02", "node05"))))
    assert "slow link in bandwidth: node02 - node05 (0.25 of the expected rate)" in said.reason
    assert "--exclude" not in (said.hint or "")


def test_equal_nodes_pass() -> None:
    assert judge_fields(fields_of(PROMISED, steps(12))).verdict == "pass"


def test_two_nodes_have_nothing_to_compare_with() -> None:
    said = judge_fields(fields_of(PROMISED, steps(2)))
    assert (said.verdict, said.reason) == (None, "not judged: comparing nodes requires at least 4 nodes, not 2")


def test_ranks_of_one_node_are_not_for_a_scheduler_to_leave_out() -> None:
    assert slow_host_list(fields_of(PROMISED, steps(12, "vm:3", name="vm:{}"))) == ""


def test_a_pair_is_reported_in_terms_of_the_median_pair_whatever_the_direction() -> None:
    for each in fields_of(PROMISED, steps(12, "node07")):
        rates = relative_rates(each)
        assert round(rates["node07", "node01"], 2) == round(rates["node01", "node07"], 2) == 0.5


def test_the_picture_is_written(tmp_path: Path) -> None:
    draw_pairs(fields_of(PROMISED, steps(12, "node07")), tmp_path / "pairs.png")
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")

"""Patterns: which metrics they find, and what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from hidl_cli.errors import Problem
from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import at_path
from hidl_cli.plan.checks import RULES
from hidl_cli.plan.workload import Capture, Mistake, captures_of

FILE = """\
name: x
title: X
program:
  command: [./a.out]
  patterns:
    - {entry}
stacks: [{{stack: mpi}}]
metrics:
  ns_per_day: {{unit: ns/day, better: higher}}
  wall: {{unit: s, better: lower}}
"""


def problems(tmp_path: Path, entry: str) -> list[Problem]:
    file = tmp_path / "x.yaml"
    file.write_text(FILE.format(entry=dedent(entry)), encoding="utf-8")
    return list(examine(RULES, at_path("workload", file)).problems)


@pytest.fixture(autouse=True)
def no_configuration(config: Path) -> None:
    """Shipped files alone."""


def test_one_group_is_the_named_metric() -> None:
    assert captures_of(r"Img/sec: ([0-9.]+)", "rate") == (Capture("rate", 1),)


def test_named_groups_are_the_metrics_of_their_names() -> None:
    found = captures_of(r"(?:Performance): +(?P<ns_per_day>\S+) +(?P<hours_per_ns>\S+)", None)
    assert {capture.metric: capture.group for capture in found} == {"ns_per_day": 1, "hours_per_ns": 2}


def test_a_group_named_unit_holds_the_unit() -> None:
    assert captures_of(r"took (\d+) (?P<unit>m?s)", "wall") == (Capture("wall", 1, 2),)
    assert captures_of(r"(?P<a>\d)(?P<a_unit>s)(?P<b>\d)", None)[0].unit in (2, None)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("Img/sec", "no group"),
        ("(a)(b)", "2 groups"),
        ("(a", r"missing \)"),
        (r"(?<=a)(b)", "look-behind are unsupported.*linear time"),
        (r"(?!a)(b)", "look-behind are unsupported"),
        (r"(a)\1", "back-reference is unsupported"),
        (r"(?>a)(b)", "atomic group is unsupported"),
        (r"(a)\Z", "lines are matched one by one"),
        ("(?P<Rate>a)", "invalid metric name"),
        ("(?P<other>a)", "`metric` is rate, but the groups are named other"),
    ],
)
def test_an_invalid_pattern_is_explained(pattern: str, message: str) -> None:
    with pytest.raises(Mistake) as caught:
        captures_of(pattern, "rate")
    assert re.search(message, caught.value.message)


@pytest.mark.parametrize(
    ("entry", "message", "path"),
    [
        ("{pattern: 'x (?=a)(b)', metric: wall}", "look-behind are unsupported", "pattern"),
        ("{pattern: 'x (b)', metric: wal}", "unknown metric `wal`", "metric"),
        ("{pattern: 'x (?P<wal>b)'}", "unknown metric `wal`", "pattern"),
        ("{pattern: 'x (b)'}", "no metric for the group", "pattern"),
        ("{pattern: 'x (b)', metric: wall, printed: MB}", "cannot be converted", "printed"),
        (
            "{pattern: '(b)(?P<unit>s)', metric: wall, printed: ms}",
            "`printed` cannot be combined with a group",
            "printed",
        ),
        ("{pattern: 'x (b)', metric: wall, reduce: sum}", "`reduce` requires `ranks: each`", "reduce"),
        ("{pattern: 'x (b)', metric: wall, ranks: each, per: rank}", "`per: rank` cannot be combined with", "per"),
        ("{pattern: 'x (b)', metric: wall, take: median}", "median", "take"),
        ("{pattern: 'x (b)', metric: wall, rank: 0}", "rank", "rank"),
    ],
)
def test_a_mistake_in_a_workload_file_has_its_line(tmp_path: Path, entry: str, message: str, path: str) -> None:
    (problem,) = problems(tmp_path, entry)
    assert message in problem.message
    assert problem.path[:4] == ("program", "patterns", 0, path)
    assert problem.mark is not None
    assert problem.mark.line == 6


def test_two_patterns_for_one_metric_are_an_error(tmp_path: Path) -> None:
    two = "{pattern: 'a (b)', metric: wall}\n    - {pattern: 'c (?P<wall>d) (?P<ns_per_day>e)'}"
    (problem,) = problems(tmp_path, two)
    assert problem.message == "patterns[0] also finds `wall`"
    assert problem.mark is not None
    assert problem.mark.line == 7


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "{pattern: '(a', metric: wall}\n    - {pattern: b, metric: ns_per_day}")) == 2


def test_a_mistake_beside_an_unknown_key_is_reported_too(tmp_path: Path) -> None:
    found = problems(tmp_path, "{pattern: 'a (b)', metric: wall, tak: last, printed: MB}")
    assert [problem.path[-1] for problem in found] == ["tak", "printed"]


def test_valid_patterns_are_no_mistake(tmp_path: Path) -> None:
    assert not problems(tmp_path, "{pattern: 'took (\\d+) (?P<unit>m?s)', metric: wall, take: last, skip: 1, ranks: 0}")

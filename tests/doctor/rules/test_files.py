"""Rules about file systems, on recorded facts."""

from __future__ import annotations

import pytest

from hidl_cli.doctor.probes.files import Files, Mount, Place, Quota
from hidl_cli.doctor.rules.files import RULES
from tests.doctor.cases import Case, both_ways, named, severity


def quota(kib: int, files: int = 10, limit: int | None = 1000) -> Files:
    return Files(home="/home/a", quota=Quota(kib, limit, files, 100))


def runs(*options: str, free: int | None = 5000) -> Files:
    return Files(runs=Place("run directories", "/home/a/runs", Mount("x", "/home", "nfs", options), free))


def stacks(*options: str, free: int | None = 5000) -> Files:
    return Files(installations=Place("the installations", "/home/a/s", Mount("x", "/home", "nfs", options), free))


CASES: list[Case] = [
    ("HD060", "nine tenths of the space", quota(900), "warning"),
    ("HD060", "all of the space", quota(1000), "error"),
    ("HD060", "nearly all files", quota(1, files=99), "warning"),
    ("HD060", "files alone are limited", quota(10**9, files=100, limit=None), "error"),
    ("HD060", "half", quota(500), None),
    ("HD060", "no quota is known", Files(), None),
    ("HD061", "noexec", stacks("rw", "noexec"), "error"),
    ("HD061", "executable", stacks("rw", "nosuid"), None),
    ("HD061", "the runs alone", runs("noexec"), None),
    ("HD065", "little is left", runs(free=1000), "warning"),
    ("HD065", "next to nothing", runs(free=10), "error"),
    ("HD065", "nothing for installations", stacks(free=0), "warning"),
    ("HD065", "enough", runs(), None),
    ("HD065", "df does not answer", runs(free=None), None),
    ("HD066", "read-only", runs("ro", "relatime"), "error"),
    ("HD066", "written to", runs("rw"), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_rule_finds_what_it_is_for(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_is_tried_both_ways() -> None:
    assert both_ways(RULES, CASES)


def test_two_places_on_one_file_system_are_one_finding() -> None:
    both = Files(installations=stacks(free=10).installations, runs=runs(free=10).runs)
    assert [one.rule for one in RULES.findings(both)] == ["HD065"]

"""Rules about what leaks into a stack's Python, on recorded facts."""

from __future__ import annotations

import pytest

from hidl_cli.doctor.probes.python import Place, Python
from hidl_cli.doctor.rules.python import RULES
from tests.doctor.cases import Case, both_ways, named, severity

USER = "/home/a/.local/lib/python3.11/site-packages"
OTHER = "/opt/anaconda/lib/python3.9/site-packages"

CASES: list[Case] = [
    ("HD063", "it has what the stack has", Python("mpi", "3.11", user_site=Place(USER, ("numpy",), "3.11")), "error"),
    ("HD063", "it has other things", Python("mpi", "3.11", user_site=Place(USER, (), "3.11")), "info"),
    ("HD063", "it is not seen", Python("mpi", "3.11"), None),
    ("HD064", "another NumPy", Python("mpi", "3.11", shell=(Place("/home/a/lib", ("numpy",)),)), "error"),
    ("HD064", "of the site's file", Python("mpi", "3.11", given=(Place("/opt/lib", ("mpi4py",)),)), "error"),
    ("HD064", "of another Python", Python("mpi", "3.11", shell=(Place(OTHER, (), "3.9"),)), "error"),
    ("HD064", "the user's own modules", Python("mpi", "3.11", shell=(Place("/home/a/code"),)), "info"),
    ("HD064", "none", Python("mpi", "3.11"), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_rule_finds_what_it_is_for(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_is_tried_both_ways() -> None:
    assert both_ways(RULES, CASES)


def test_of_many_modules_some_are_named_and_the_others_counted() -> None:
    shadows = tuple(f"module{number}" for number in range(40))
    (finding,) = RULES.findings(Python("mpi", "3.11", shell=(Place("/home/a/lib", shadows),)))
    assert "module5 and 34 more" in finding.seen

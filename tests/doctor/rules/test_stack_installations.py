"""Rules about the links of installations, on recorded facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.doctor.rules.stack import INSTALLATION_RULES, InUse
from tests.doctor.cases import Case, has_both_ways, named, severity

ONE = InUse("mpi", Path("/stacks/local/mpi"), ("0" * 12,), "0" * 12, has_modulefile=True, has_modules=True)
NONE_OF_TWO = replace(ONE, complete=("0" * 12, "1" * 12), current=None)

CASES: list[Case] = [
    ("HD083", "no link", replace(ONE, current=None), "warning"),
    ("HD083", "a link", ONE, None),
    ("HD083", "nothing is installed", replace(ONE, complete=(), current=None), None),
    ("HD084", "no modulefile", replace(ONE, has_modulefile=False), "warning"),
    ("HD084", "no modulefile, and no modules", replace(ONE, has_modulefile=False, has_modules=False), "info"),
    ("HD084", "a modulefile", ONE, None),
    ("HD084", "none is in use", replace(ONE, current=None, has_modulefile=False), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(INSTALLATION_RULES, id, (facts,)) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(INSTALLATION_RULES, CASES)


def test_of_two_installations_none_is_chosen_for_the_user() -> None:
    (finding,) = INSTALLATION_RULES.findings((NONE_OF_TWO,))
    assert "--fix" not in finding.fix

"""All rules that hidl knows."""

from __future__ import annotations

from inspect import getdoc

import pytest

from hidl_cli.doctor.catalogue import HERE, find, rules
from hidl_cli.doctor.fix import FIXES
from hidl_cli.errors import UsageError

ALL = list(rules())


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_a_rule_says_what_it_finds_when_and_why(rule: object) -> None:
    assert all((getattr(rule, "title", ""), getattr(rule, "why", ""), getdoc(rule.check)))  # type: ignore[attr-defined]


def test_rules_are_in_the_order_of_their_ids_and_each_is_there_once() -> None:
    ids = [rule.id for rule in ALL]
    assert ids == sorted(set(ids))


def test_no_two_modules_of_this_machine_have_a_rule_of_one_id() -> None:
    ids = [rule.id for subject in HERE for rule in subject.load().RULES]
    assert len(ids) == len(set(ids))


def test_every_fix_is_of_a_rule() -> None:
    assert set(FIXES) <= {rule.id for rule in ALL}


def test_small_letters_do() -> None:
    assert find("hd002").id == "HD002"


def test_no_rule_of_that_id() -> None:
    with pytest.raises(UsageError, match="there is no rule 'HD'"):
        find("HD")

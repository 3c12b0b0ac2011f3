"""Diagnoses: each matches its own examples only, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from hidl_cli.diagnoses.causes import find_causes
from hidl_cli.diagnoses.diagnosis import Diagnosis, Example, load_diagnoses
from hidl_cli.doctor.registry import list_rules

try:
    from re import _constants as kinds  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as kinds
    import sre_parse as parser

EXAMPLES = [
    pytest.param(diagnosis, example, id=f"{diagnosis.id}-{number}")
    for diagnosis in load_diagnoses()
    for number, example in enumerate(diagnosis.examples)
]
PATTERNS = [
    pytest.param(diagnosis, pattern, id=f"{diagnosis.id}-{number}")
    for diagnosis in load_diagnoses()
    for number, pattern in enumerate(diagnosis.patterns)
]
WIDEST, MOST_WAYS = 300, 5000


@pytest.mark.parametrize(("diagnosis", "example"), EXAMPLES)
def test_each_example_matches_its_own_diagnosis_only(diagnosis: Diagnosis, example: Example) -> None:
    assert [cause.rule for cause in find_causes(f"epoch 1\n{example.text}\nepoch 2\n")] == [diagnosis.id]


@pytest.mark.parametrize("diagnosis", load_diagnoses(), ids=lambda diagnosis: diagnosis.id)
def test_each_pattern_matches_an_example(diagnosis: Diagnosis) -> None:
    texts = [example.text for example in diagnosis.examples]
    unseen = [pattern for pattern in diagnosis.patterns if not any(re.search(pattern, t, re.MULTILINE) for t in texts)]
    assert unseen == []


@pytest.mark.parametrize(("diagnosis", "example"), EXAMPLES)
def test_each_example_has_a_source(diagnosis: Diagnosis, example: Example) -> None:
    """A public report, or a program with its version."""
    assert re.match(r"https://", example.source) or re.search(r"\d|hidl_workloads|TensorFlow's|glibc's", example.source)


@pytest.mark.parametrize(("diagnosis", "pattern"), PATTERNS)
def test_patterns_match_in_linear_time(diagnosis: Diagnosis, pattern: str) -> None:
    """Every repeat is bounded, and so is the product of their widths."""
    widths = list(repeats(parser.parse(pattern)))
    ways = 1
    for width in widths:
        ways *= width
    assert max(widths, default=0) <= WIDEST
    assert ways <= MOST_WAYS


def repeats(tree: Any) -> Iterator[int]:
    """The number of lengths that each repeat of a pattern can have, nested ones included."""
    for kind, value in tree:
        if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            least, most, inner = value
            yield most - least + 1
            yield from repeats(inner)
        elif kind is kinds.SUBPATTERN:
            yield from repeats(value[3])
        elif kind is kinds.BRANCH:
            yield max([1, *(width for branch in value[1] for width in repeats(branch))])
        elif kind in (kinds.ASSERT, kinds.ASSERT_NOT):
            yield from repeats(value[1])


@pytest.mark.parametrize(("diagnosis", "pattern"), PATTERNS)
def test_every_pattern_has_the_groups_that_the_fix_uses(diagnosis: Diagnosis, pattern: str) -> None:
    assert set(re.findall(r"\{([a-z]+)\}", diagnosis.fix)) <= re.compile(pattern).groupindex.keys()


def test_ids_are_unique() -> None:
    ids = [diagnosis.id for diagnosis in load_diagnoses()]
    assert len(ids) == len(set(ids))


def test_a_diagnosis_with_the_id_of_a_rule_has_its_title() -> None:
    titles = {rule.id: rule.title for rule in list_rules()}
    assert {each.id: each.title for each in load_diagnoses() if titles[each.id] != each.title} == {}


def test_unless_refers_to_known_ids() -> None:
    ids = {diagnosis.id for diagnosis in load_diagnoses()}
    assert {other for diagnosis in load_diagnoses() for other in diagnosis.unless} <= ids

"""Diagnoses: each comes first for its own examples, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from hidl_cli.diagnoses import Diagnosis, Example, Harmless, find_causes, fixed_word, load_diagnoses, load_harmless
from hidl_cli.doctor.context import list_rules

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
SHORTEST_WORD = 5
NOISE = "\n".join(example.text for harmless in load_harmless() for example in harmless.examples)


@pytest.mark.parametrize(("diagnosis", "example"), EXAMPLES)
def test_each_example_is_told_by_its_own_diagnosis_first(diagnosis: Diagnosis, example: Example) -> None:
    assert find_causes(f"epoch 1\n{example.text}\nepoch 2\n")[0].rule == diagnosis.id


@pytest.mark.parametrize(("diagnosis", "example"), EXAMPLES)
def test_harmless_lines_before_an_example_change_nothing(diagnosis: Diagnosis, example: Example) -> None:
    assert [cause.rule for cause in find_causes(f"{NOISE}\n{example.text}")] == [
        cause.rule for cause in find_causes(example.text)
    ]


@pytest.mark.parametrize("harmless", load_harmless(), ids=lambda harmless: harmless.title)
def test_harmless_lines_are_no_cause_and_each_pattern_matches_one(harmless: Harmless) -> None:
    texts = [example.text for example in harmless.examples]
    assert find_causes("\n".join(texts)) == []
    assert [each for each in harmless.patterns if not any(re.search(each, text) for text in texts)] == []


@pytest.mark.parametrize(("diagnosis", "pattern"), PATTERNS)
def test_every_pattern_has_a_word_that_its_matches_contain(diagnosis: Diagnosis, pattern: str) -> None:
    """Long logs are searched for these words first."""
    word = fixed_word(pattern)
    assert len(word) >= SHORTEST_WORD
    matches = (re.search(pattern, example.text, re.MULTILINE) for example in diagnosis.examples)
    assert [match[0] for match in matches if match and word not in match[0]] == []


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("abc", "abc"),
        (r"ab\.c\d{1,3}de", "ab.c"),
        ("abc?def", "def"),
        ("(?:ab|cd) of (?P<x>[^)]+)", " of "),
        (r"^a{2,3}bcd\b", "bcd"),
        ("[ab]+", ""),
    ],
)
def test_the_word_of_a_pattern(pattern: str, word: str) -> None:
    assert fixed_word(pattern) == word


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

"""The known error texts: each is known by its own cause alone, and no text makes the search slow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.doctor import catalogue
from hidl_cli.doctor.seen.diagnosis import Diagnosis, Example, diagnoses
from hidl_cli.doctor.seen.matching import MOST, causes

try:
    from re import _constants as kinds  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as kinds
    import sre_parse as parser

HEALTHY = sorted((Path(__file__).parent / "healthy").glob("*.txt"))
EXAMPLES = [
    pytest.param(diagnosis, example, id=f"{diagnosis.id}-{number}")
    for diagnosis in diagnoses()
    for number, example in enumerate(diagnosis.examples)
]
PATTERNS = [
    pytest.param(diagnosis, pattern, id=f"{diagnosis.id}-{number}")
    for diagnosis in diagnoses()
    for number, pattern in enumerate(diagnosis.patterns)
]
WIDEST, MOST_WAYS = 300, 5000


@pytest.mark.parametrize(("diagnosis", "example"), EXAMPLES)
def test_an_example_shows_its_own_cause_and_no_other(diagnosis: Diagnosis, example: Example) -> None:
    assert [cause.rule for cause in causes(f"epoch 1\n{example.text}\nepoch 2\n")] == [diagnosis.id]


@pytest.mark.parametrize("diagnosis", diagnoses(), ids=lambda diagnosis: diagnosis.id)
def test_each_pattern_fits_an_example(diagnosis: Diagnosis) -> None:
    texts = [example.text for example in diagnosis.examples]
    unseen = [pattern for pattern in diagnosis.patterns if not any(re.search(pattern, t, re.MULTILINE) for t in texts)]
    assert unseen == []


@pytest.mark.parametrize(("diagnosis", "example"), EXAMPLES)
def test_each_example_says_where_it_was_seen(diagnosis: Diagnosis, example: Example) -> None:
    """In a public report, or by a program of a known version."""
    assert re.match(r"https://", example.source) or re.search(r"\d|hidl_workloads|TensorFlow's|glibc's", example.source)


@pytest.mark.parametrize(("diagnosis", "pattern"), PATTERNS)
def test_a_pattern_takes_time_in_proportion_to_the_text(diagnosis: Diagnosis, pattern: str) -> None:
    """Every repeat is bounded, and so is the number of ways in which they can share a line among them."""
    widths = list(repeats(parser.parse(pattern)))
    ways = 1
    for width in widths:
        ways *= width
    assert max(widths, default=0) <= WIDEST
    assert ways <= MOST_WAYS


def repeats(tree: Any) -> Iterator[int]:
    """How many lengths each repeat of a pattern can have; of nested ones, all of them."""
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
def test_what_a_cure_names_is_in_every_pattern(diagnosis: Diagnosis, pattern: str) -> None:
    assert set(re.findall(r"\{([a-z]+)\}", diagnosis.mend)) <= re.compile(pattern).groupindex.keys()


def test_each_cause_has_one_entry() -> None:
    ids = [diagnosis.id for diagnosis in diagnoses()]
    assert len(ids) == len(set(ids))


def test_what_has_the_id_of_a_rule_has_its_title() -> None:
    titles = {rule.id: rule.title for rule in catalogue.rules()}
    assert {each.id: each.title for each in diagnoses() if titles[each.id] != each.title} == {}


def test_a_cause_yields_to_known_causes_only() -> None:
    ids = {diagnosis.id for diagnosis in diagnoses()}
    assert {other for diagnosis in diagnoses() for other in diagnosis.unless} <= ids


@pytest.mark.parametrize("file", HEALTHY, ids=lambda file: file.stem)
def test_a_healthy_run_shows_no_cause(file: Path) -> None:
    assert causes(file.read_text(encoding="utf-8")) == []


def test_a_consequence_is_not_told_beside_its_cause() -> None:
    text = "srun: error: node1: task 3: Killed\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup."
    assert [cause.rule for cause in causes(text)] == ["HD105"]


def test_errors_come_before_warnings_and_the_first_before_the_rest() -> None:
    text = "\n".join(
        (
            "distributed.worker.memory - WARNING - Worker is at 89% memory usage. Pausing worker.",
            "OSError: [Errno 122] Disk quota exceeded: '/home/a/x'",
            "ModuleNotFoundError: No module named 'zarr'",
        )
    )
    assert [cause.rule for cause in causes(text)] == ["HD171", "HD150", "HD223"]


def test_a_cause_is_told_once_with_the_line_and_the_cure_for_it() -> None:
    (cause,) = causes("ModuleNotFoundError: No module named 'zarr'\n" * 8)
    assert cause.seen == "ModuleNotFoundError: No module named 'zarr'"
    assert "add zarr to a stack" in cause.mend


def test_what_a_program_printed_cannot_become_part_of_a_command() -> None:
    (cause,) = causes("execvp error on file /tmp/x; rm -rf ~ $(id) (No such file or directory)")
    assert "is '/tmp/x; rm -rf ~ $(id)' spelled well" in cause.mend


def test_escape_codes_are_shown_and_not_sent_to_the_terminal() -> None:
    (cause,) = causes("\x1b]0;owned\x07execvp error on file \x1b[2J\u202e/bin/x (No such file or directory)")
    assert (cause.seen + cause.mend).isprintable()
    assert "\\x1b[2J" in cause.seen


def test_the_host_is_told_where_the_text_names_it() -> None:
    (cause,) = causes("ssh: connect to host node2 port 22: Connection refused")
    assert cause.where == "node2"


def test_a_line_of_megabytes_is_shortened_around_what_it_shows() -> None:
    (cause,) = causes("x" * 10**6 + " No space left on device " + "y" * 10**5)
    assert "No space left on device" in cause.seen
    assert len(cause.seen) <= 300


def test_only_the_end_of_a_long_text_is_looked_at() -> None:
    assert causes("No space left on device\n" + "all is well\n" * (MOST // 12)) == []

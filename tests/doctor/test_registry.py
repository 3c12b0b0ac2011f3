"""All rules of the doctor."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from inspect import getdoc
from pathlib import Path

import pytest

from hidl_cli.doctor import rules
from hidl_cli.doctor.context import all_rules, find_rule, fixes, list_rules, load_subjects
from hidl_cli.errors import UsageError
from hidl_workloads.doctor.finding import Rules
from tests.conftest import REPOSITORY
from tools.reference.rules import pages

ALL = list_rules()
RULE_FILES = tuple(Path(rules.__path__[0]).glob("[a-z]*.py"))
HOW_TO = REPOSITORY / "docs" / "how-to" / "find-what-is-wrong.md"


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_a_rule_has_a_title_a_reason_and_a_description(rule: object) -> None:
    assert all((getattr(rule, "title", ""), getattr(rule, "why", ""), getdoc(rule.check)))  # type: ignore[attr-defined]


def test_rules_are_sorted_by_id_and_unique() -> None:
    ids = [rule.id for rule in ALL]
    assert ids == sorted(set(ids))


def test_an_id_is_shared_only_with_a_diagnosis_of_output() -> None:
    ids = [rule.id for rule in all_rules() if rule.check.__module__ != "hidl_cli.diagnoses"]
    taken = [id for id, times in Counter(ids).items() if times > 1]
    assert taken == [], "take another id: hidl doctor rules lists those of all subjects"


def test_rules_with_one_id_have_one_title() -> None:
    assert len({(rule.id, rule.title) for rule in all_rules()}) == len(ALL)


def test_every_fix_belongs_to_a_rule_of_its_subject() -> None:
    for subject in load_subjects():
        assert set(subject.fixes) <= {rule.id for rule in subject.rules}
    assert sorted(fixes()) == ["HD083", "HD084"]


def test_the_reference_lists_every_rule() -> None:
    (page,) = pages().values()
    assert [rule.id for rule in ALL if f"## {rule.id}: " not in page] == []


def test_a_new_rule_is_one_file(tmp_path: Path) -> None:
    """The example of the how-to, beside the shipped modules, is listed without any other edit."""
    (example,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "processes.py").write_text(example)
    lines = (
        f"import hidl_cli.doctor.rules as rules; rules.__path__.append({str(tmp_path)!r})",
        "from hidl_cli.commands.app import command_line",
        "command_line()(['doctor', 'explain', 'HD299'])",
    )
    shown = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("HD299 (warning): The limit of processes is low")


@pytest.mark.parametrize("name", sorted(path.stem for path in RULE_FILES))
def test_no_rules_of_a_module_are_forgotten(name: str) -> None:
    module = import_module(f"{rules.__name__}.{name}")
    written = [each for each in vars(module).values() if isinstance(each, Rules)]
    assert written
    assert all(any(each is subject.rules for subject in module.SUBJECTS) for each in written)


def test_only_the_modules_without_quick_checks_are_skipped_before_runs() -> None:
    modules = {path.stem: import_module(f"{rules.__name__}.{path.stem}") for path in RULE_FILES}
    without = {name for name, module in modules.items() if not any(each.before_runs for each in module.SUBJECTS)}
    assert without == rules.NOT_BEFORE_RUNS


def test_find_rule_ignores_case() -> None:
    assert find_rule("hd002").id == "HD002"


def test_an_unknown_rule_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown rule 'HD'"):
        find_rule("HD")

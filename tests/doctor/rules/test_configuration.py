"""The rule about who may change hidl's configuration, on recorded facts and on real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hidl_cli.doctor.rules.configuration import RULES, Configuration, find_exposed
from tests.doctor.cases import Case, has_both_ways, named, severity

PLACE = Path("/etc/hidl")
CASES: list[Case] = [
    ("HD015", "a file of another user", Configuration(PLACE, {PLACE / "sites" / "a.yaml": "mallory"}), "warning"),
    ("HD015", "all of root's", Configuration(PLACE, {}), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, (facts,)) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(RULES, CASES)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a site's file, which its owner alone may write to."""
    directory = tmp_path / "hidl"
    (directory / "sites").mkdir(parents=True, mode=0o755)
    (directory / "sites" / "a.yaml").touch(mode=0o644)
    return directory


def test_files_of_ones_own_are_left_alone(place: Path) -> None:
    assert find_exposed(place).exposed == {}
    assert find_exposed(place / "missing").exposed == {}


@pytest.mark.parametrize("part", [".", "sites", "sites/a.yaml"])
def test_what_anyone_may_write_is_found(place: Path, part: str) -> None:
    (place / part).chmod(0o777)
    assert find_exposed(place).exposed == {place / part: "anyone"}


def test_the_target_of_a_link_counts_and_a_link_to_nowhere_does_not(place: Path, tmp_path: Path) -> None:
    (tmp_path / "open.yaml").touch()
    (tmp_path / "open.yaml").chmod(0o666)
    (place / "sites" / "b.yaml").symlink_to(tmp_path / "open.yaml")
    (place / "sites" / "c.yaml").symlink_to(tmp_path / "missing.yaml")
    assert find_exposed(place).exposed == {place / "sites" / "b.yaml": "anyone"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_owner_is_found_unless_the_directory_that_is_named_is_his(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (place, place / "sites", place / "sites" / "a.yaml"):
        os.chown(each, 54321, 54321)
    assert set(find_exposed(place).exposed.values()) == {"user id 54321"}
    monkeypatch.setenv("HIDL_SYSTEM_CONFIG", str(place))
    assert find_exposed(place).exposed == {}
    os.chown(place / "sites" / "a.yaml", 54322, 54322)
    assert find_exposed(place).exposed == {place / "sites" / "a.yaml": "user id 54322"}

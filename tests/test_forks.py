"""A forked hidl is what a new one would be, to the test that waits for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import forks
from tests.conftest import Hidl
from tests.waiting import patience

LINES = [
    ("site", "show", "frontera", "--json"),
    ("site", "show", "no-such-site"),
    ("run", "mpi-sanity", "--site", "frontera", "--account", "A", "--dry-run"),
    ("run", "--", "./not-here"),
    ("no-such-command",),
    ("--version",),
    (),
]


def forked(hidl: Hidl, *words: str, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
    return forks.run(hidl.command(*words), words, hidl.environment | variables, patience(timeout))


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_status_and_both_streams_are_those_of_a_new_process(
    hidl: Hidl, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    anew = subprocess.run(hidl.command(*words), env=hidl.environment, capture_output=True, text=True, check=False)
    found = forked(hidl, *words)
    assert (found.args, found.returncode) == (anew.args, anew.returncode)
    assert [_plain(text) for text in (found.stdout, found.stderr)] == [_plain(anew.stdout), _plain(anew.stderr)]


def _plain(text: str) -> list[str]:
    """Its lines but for those with the time of the plan, and the run's name from it."""
    return [line for line in text.splitlines() if "20" not in line]


def test_variables_are_its_own(hidl: Hidl, tmp_path: Path) -> None:
    lists = {state: forked(hidl, "status", "--json", XDG_STATE_HOME=str(tmp_path / state)).stdout for state in "ab"}
    assert lists["a"] == lists["b"] != ""
    wide = [max(map(len, forked(hidl, "site", "list", COLUMNS=str(width)).stdout.splitlines())) for width in (60, 200)]
    assert wide[0] <= 60 < wide[1]


def test_one_that_is_late_is_ended(hidl: Hidl) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        forked(hidl, "site", "check", timeout=0.001)
    assert raised.value.cmd == hidl.command("site", "check")
    assert forked(hidl, "--version").returncode == 0  # the next one starts as ever


@pytest.mark.parametrize("name", ["PYTHONPATH", "LANG", "NO_COLOR"])
def test_what_a_process_reads_once_makes_a_new_one(hidl: Hidl, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_commands", iter(range(10, 100)))
    monkeypatch.delenv(forks.ANEW, raising=False)
    assert forks.possible(hidl.environment)
    assert not forks.possible(hidl.environment | {name: "other"})
    monkeypatch.setenv(forks.ANEW, "1")
    assert not forks.possible(hidl.environment)

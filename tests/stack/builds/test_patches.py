"""Patches are applied as ``patch`` and ``git apply`` would, or not at all."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hidl_cli.errors import BuildFailed
from hidl_cli.stack.builds import fetch
from tests.conftest import REPOSITORY

LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "--- c\n", "@@ d\n", "\té\r\n"]), max_size=30)
END = st.sampled_from(["", "last", "last\n"])
CHANGE = """a header

diff --git a/x/f.txt b/x/f.txt
--- a/x/f.txt
+++ b/x/f.txt
@@ -1,2 +1,2 @@
 one
-two
+2
"""


def unified(before: str, after: str) -> str:
    """The diff that ``diff -u`` writes, with its notes on missing line ends."""
    lines = []
    sides = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    for line in difflib.unified_diff(*(list(_by_line_feed("".join(side))) for side in sides), "a/f", "b/f"):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _by_line_feed(text: str) -> list[str]:
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "x").mkdir(parents=True)
    (tmp_path / "tree" / "x" / "f.txt").write_text("one\ntwo\n")
    return tmp_path / "tree"


def write(tree: Path, text: str) -> Path:
    patch = tree.parent / "change.patch"
    patch.write_text(text)
    return patch


@given(before=st.tuples(LINES, END), after=st.tuples(LINES, END))
@settings(max_examples=100, deadline=None)
def test_what_diff_writes_turns_the_one_into_the_other(
    before: tuple[list[str], str], after: tuple[list[str], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    old, new = ("".join(lines) + end for lines, end in (before, after))
    if old == new or not old or not new:
        return
    place = tmp_path_factory.mktemp("tree")
    (place / "f").write_bytes(old.encode())
    patch = place / "change.patch"
    patch.write_bytes(unified(old, new).encode())
    fetch.apply(patch, place)
    assert (place / "f").read_bytes().decode() == new


def test_a_file_is_made_and_removed(tree: Path) -> None:
    made = "--- /dev/null\n+++ b/y/new.txt\n@@ -0,0 +1 @@\n+new\n"
    gone = "--- a/x/f.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"
    fetch.apply(write(tree, made + gone), tree)
    assert [(path.name, path.read_text()) for path in tree.rglob("*.txt")] == [("new.txt", "new\n")]


def test_one_that_does_not_fit_is_reported_with_its_file_and_line(tree: Path) -> None:
    (tree / "x" / "f.txt").write_text("one\nTWO\n")
    with pytest.raises(BuildFailed, match=r"change.patch does not apply to x/f.txt at line 1"):
        fetch.apply(write(tree, CHANGE), tree)


def test_nothing_is_guessed_where_the_lines_stand_elsewhere(tree: Path) -> None:
    (tree / "x" / "f.txt").write_text("zero\none\ntwo\n")
    with pytest.raises(BuildFailed, match="does not apply"):
        fetch.apply(write(tree, CHANGE), tree)


@pytest.mark.parametrize(
    "text",
    [
        "no diff at all\n",
        CHANGE.replace("-1,2 +1,2", "-1,3 +1,2"),
        CHANGE.replace("a/x/f.txt\n+++", "a/../../etc/passwd\n+++"),
        CHANGE.replace("b/x/f.txt\n@@", "/etc/passwd\n@@"),
        CHANGE.partition("@@")[0],
    ],
)
def test_a_damaged_one_is_refused(tree: Path, text: str) -> None:
    with pytest.raises(BuildFailed):
        fetch.apply(write(tree, text), tree)
    assert (tree / "x" / "f.txt").read_text() == "one\ntwo\n"


SHIPPED = sorted((REPOSITORY / "recipes" / "patches").glob("*/*"))


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_every_shipped_patch_says_its_symptom_and_reason(folder: Path) -> None:
    for patch in folder.glob("*.patch"):
        header = patch.read_text().partition("\ndiff --git ")[0]
        assert {"Symptom", "Reason"} <= {line.partition(":")[0] for line in header.splitlines()}, patch
        assert fetch.read(patch)


def test_patch_and_git_accept_what_is_accepted_here(tree: Path) -> None:
    patch = write(tree, CHANGE)
    others = [shutil.copytree(tree, tree.parent / name) for name in ("patch", "git")]
    fetch.apply(patch, tree)
    with patch.open() as text:
        subprocess.run(["patch", "-s", "-p1"], cwd=others[0], stdin=text, check=True)
    subprocess.run(["git", "apply", "-p1", str(patch)], cwd=others[1], check=True)
    assert {(place / "x" / "f.txt").read_text() for place in (tree, *others)} == {"one\n2\n"}

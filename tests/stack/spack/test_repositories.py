"""The state of package repositories, read without git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hidl_cli.stack.providers.spack.environment import COMMIT, commit, configuration_files, digest, local_changes


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of git with one commit."""
    place = tmp_path / "clone"
    (place / "repos" / "builtin").mkdir(parents=True)
    (place / "repos" / "builtin" / "repo.yaml").write_text("repo: {}\n")
    options = ("-c", "user.name=a", "-c", "user.email=a@b", "-C", str(place))
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run(["git", *options, *words], check=True)
    return place


def head(place: Path) -> str:
    """What git says."""
    return subprocess.run(
        ["git", "-C", place, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("words", [(), ("checkout", "-q", "--detach"), ("pack-refs", "--all")])
def test_the_commit_is_the_one_that_git_names(clone: Path, words: tuple[str, ...]) -> None:
    if words:
        subprocess.run(["git", "-C", clone, *words], check=True)
    assert commit(clone / "repos" / "builtin") == head(clone)


def test_a_work_tree_of_another_clone_has_its_own_commit(clone: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "-C", clone, "worktree", "add", "-q", tmp_path / "other"], check=True)
    assert commit(tmp_path / "other" / "repos") == head(tmp_path / "other")


def test_a_copy_without_history_says_its_commit_in_a_file(tmp_path: Path) -> None:
    (tmp_path / COMMIT).write_text("0123abc\n")
    assert commit(tmp_path / "repos") == "0123abc"


def test_another_content_or_name_gives_another_digest(tmp_path: Path) -> None:
    digests = set()
    for name, content in (("a", "1"), ("a", "2"), ("b", "2")):
        place = tmp_path / f"{name}{content}"
        place.mkdir()
        (place / name).write_text(content)
        digests.add(digest(place, place.rglob("*")))
    assert len(digests) == 3


def test_a_clone_with_local_changes_is_in_another_state(clone: Path) -> None:
    builtin = clone / "repos" / "builtin"
    assert local_changes(builtin) == ""
    (clone / "README").write_text("beside the repository\n")
    assert local_changes(builtin) == ""
    (builtin / "package.py").write_text("1\n")
    added = local_changes(builtin)
    (builtin / "package.py").write_text("2\n")
    changed = local_changes(builtin)
    (builtin / "package.py").unlink()
    (builtin / "repo.yaml").unlink()
    removed = local_changes(builtin)
    assert len({"", added, changed, removed}) == 4


def test_configuration_files_of_spack_itself_are_found_but_not_those_that_it_comes_with(tmp_path: Path) -> None:
    place = tmp_path / "etc" / "spack"
    (place / "defaults").mkdir(parents=True)
    (place / "site").mkdir()
    (place / "defaults" / "packages.yaml").write_text("packages: {}\n")
    (place / "include.yaml").write_text("include: [{name: user, path: ~/.spack}, {name: site, path: site}]\n")
    assert configuration_files(tmp_path) == []
    (place / "site" / "packages.yaml").write_text("packages: {zlib: {require: '@1.2'}}\n")
    (place / "include.yaml").write_text("include: [{name: centre, path: /centre}]\n")
    assert configuration_files(tmp_path) == [place / "include.yaml", place / "site" / "packages.yaml"]

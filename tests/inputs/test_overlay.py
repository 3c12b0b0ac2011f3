"""The overlay: the user's files before /etc/hidl's, those before the shipped ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli import paths
from hidl_cli.errors import UsageError
from hidl_cli.inputs.overlay import at_path, find, list_all


def put(directory: Path, name: str) -> Path:
    file = directory / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"name: {name}\n")
    return file


def test_the_users_file_wins_over_the_systems_and_that_over_the_shipped_one(config: Path) -> None:
    shipped = find("stack", "mpi")
    system = put(paths.system_config() / "stacks", "mpi")
    user = put(config / "stacks", "mpi")

    entry = find("stack", "mpi")

    assert (entry.origin, entry.path) == ("user", user)
    assert [(hidden.origin, hidden.path) for hidden in entry.shadows] == [
        ("system", system),
        ("shipped", shipped.path),
    ]
    assert [hidden.path for hidden in entry.shadows[0].shadows] == [shipped.path]


def test_all_entries_are_listed_by_name_once(config: Path) -> None:
    put(config / "sites", "zeta")
    put(config / "sites", "local")
    put(paths.system_config() / "sites", "alpha")

    listed = [(entry.name, entry.origin) for entry in list_all("site")]

    assert listed == sorted(listed)
    assert {("alpha", "system"), ("local", "user"), ("zeta", "user")} <= set(listed)


def test_hidden_files_and_other_files_are_not_entries(config: Path) -> None:
    put(config / "sites", ".#half-written")
    (config / "sites" / "README.md").write_text("notes")

    assert {entry.origin for entry in list_all("site")} == {"shipped"}


def test_a_base_is_for_others_to_extend_and_no_entry_itself(config: Path) -> None:
    put(config / "sites", "_centre")

    assert "_centre" in {entry.name for entry in list_all("site", bases=True)}
    assert "_centre" not in {entry.name for entry in list_all("site")}
    with pytest.raises(UsageError, match="unknown site '_centre'"):
        find("site", "_centre")


def test_an_unknown_name_is_answered_with_the_nearest_and_all_known_ones(config: Path) -> None:
    with pytest.raises(UsageError, match="unknown stack 'pytroch'") as caught:
        find("stack", "pytroch")

    assert caught.value.exit_code == 2
    assert caught.value.hint is not None
    assert "did you mean 'pytorch'?" in caught.value.hint
    assert "tensorflow" in caught.value.hint


def test_a_file_anywhere_stands_for_an_entry_and_hides_those_of_its_name(config: Path, tmp_path: Path) -> None:
    elsewhere = put(tmp_path / "elsewhere", "mpi")

    entry = at_path("stack", elsewhere)

    assert (entry.name, entry.origin) == ("mpi", "file")
    assert entry.shadows == (find("stack", "mpi"),)


def test_the_path_of_a_known_file_is_that_entry(config: Path) -> None:
    assert at_path("stack", find("stack", "mpi").path) == find("stack", "mpi")

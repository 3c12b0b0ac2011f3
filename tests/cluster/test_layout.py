"""The directory of a cluster: its name on the command line, and what is written and removed there."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hidl_twin.layout import Layout, default_directory, option_for
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.errors import UsageError
from tests.conftest import Hidl

NAMES = ("etc", "log", "site", "users", "state", "run", "ssh", "mysql", "dress.json", "cluster.json", "notes")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root brings a cluster up")


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("directory", "option"),
    [
        (None, ""),
        (Path("/tmp/a b"), "--directory '/tmp/a b'"),
        (Path("/tmp/twins/frontera"), "--directory /tmp/twins/frontera"),
    ],
)
def test_the_option_names_the_cluster(directory: Path | None, option: str) -> None:
    assert option_for(directory or default_directory()) == option


@pytest.mark.usefixtures("config")
def test_a_twin_is_named_by_its_site() -> None:
    assert option_for(default_directory("frontera")) == "--like frontera"


# --- what is written and removed --------------------------------------------------------------------------------------


def tree(directory: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Everything below a directory: mode and content."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in [directory, *directory.rglob("*")]:
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(directory))] = (path.lstat().st_mode, content)
    return found


@needs_root
@pytest.mark.parametrize("command", [["up", "--nodes", "1", "--no-accounting"], ["down", "--purge"]])
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_directory_that_is_not_a_clusters_is_refused_and_stays_as_it_was(
    hidl: Hidl, place: Path, command: list[str], mode: int
) -> None:
    for name in NAMES:
        (place / name).mkdir() if "." not in name else (place / name).write_text("{}")
    (place / "etc" / "hosts").write_text("mine")
    place.chmod(mode)
    before = tree(place)
    refused = hidl("cluster", *command, "--directory", str(place))
    assert (refused.returncode, "invalid directory" in refused.stderr, tree(place)) == (2, True, before)


@needs_root
@pytest.mark.parametrize("command", [["up", "--nodes", "1"], ["down", "--purge"]])
@pytest.mark.parametrize("directory", ["/", "~"])
def test_the_root_directory_and_the_home_are_refused(
    hidl: Hidl, place: Path, command: list[str], directory: str
) -> None:
    refused = hidl("cluster", *command, "--directory", directory, HOME=str(place))
    assert (refused.returncode, "invalid directory" in refused.stderr) == (2, True)


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["file", "directory", "link"])), st.booleans())
def test_no_file_that_was_there_before_the_cluster_is_ever_removed(content: dict[str, str], later: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        directory, outside = Path(temporary, "d"), Path(temporary, "outside")
        for each in (directory, outside):
            each.mkdir()
        (outside / "file").write_text("mine")
        layout = Layout(directory)
        if later:  # names appear in a cluster's directory that its record does not list
            layout.make()
            record = json.loads(layout.settings.read_text())
            names = [name for name in content if not os.path.lexists(directory / name)]
            layout.save({"files": [name for name in record["files"] if name not in names]})
        else:
            names = list(content)
        for name in names:
            if content[name] == "link":
                (directory / name).symlink_to(outside)
            elif content[name] == "directory":
                (directory / name).mkdir()
                (directory / name / "file").write_text("mine")
            else:
                (directory / name).write_text("mine")
        before = tree(directory)
        for step in (layout.check, layout.make, layout.remove):
            try:
                step()
            except (UsageError, OSError):
                break
        after = tree(directory)
        mine = {path: found for path, found in before.items() if path.split("/")[0] in names}
        assert {path: after.get(path) for path in mine} == mine
        assert (outside / "file").read_text() == "mine"


def test_a_link_in_the_place_of_a_clusters_directory_is_removed_and_not_followed(place: Path) -> None:
    layout = Layout(place / "cluster")
    layout.make()
    (place / "outside").mkdir()
    (place / "outside" / "file").touch()
    layout["etc"].rmdir()
    layout["etc"].symlink_to(place / "outside")
    assert layout.remove() == []
    assert (layout.directory.exists(), (place / "outside" / "file").exists()) == (False, True)


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o755])
def test_an_empty_directory_keeps_its_mode_and_stays_after_the_removal(place: Path, mode: int) -> None:
    place.chmod(mode)
    layout = Layout(place)
    layout.check()
    layout.make()
    assert layout.remove() == []
    assert (stat.S_IMODE(place.stat().st_mode), list(place.iterdir())) == (mode, [])


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_directory_that_others_may_write_to_is_refused(place: Path, mode: int) -> None:
    place.chmod(mode)
    with pytest.raises(UsageError, match="other users may write"):
        Layout(place).check()


@pytest.mark.parametrize(
    ("mode", "hint"), [(0o777, "chmod go-w"), (0o1777, "choose another"), (0o3775, "choose another")]
)
def test_no_hint_closes_a_directory_that_users_share(place: Path, mode: int, hint: str) -> None:
    place.chmod(mode)
    with pytest.raises(UsageError) as refused:
        Layout(place).check()
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_directory_that_others_could_replace_is_refused(place: Path, mode: int) -> None:
    layout = Layout(place / "below" / "cluster")
    layout.directory.parent.mkdir()
    layout.check()
    place.chmod(0o1777)  # as /tmp: others cannot rename what is not theirs
    layout.check()
    place.chmod(mode)
    with pytest.raises(UsageError, match=f"other users could replace it: they may write to {place}"):
        layout.check()


@needs_root
def test_a_directory_below_another_users_is_refused(place: Path) -> None:
    layout = Layout(place / "cluster")
    layout.directory.mkdir()
    os.chown(place, 65534, 65534)
    with pytest.raises(UsageError, match=f"{place} belongs to user 65534, who could replace it"):
        layout.check()


@needs_root
def test_a_directory_of_another_user_is_refused(place: Path) -> None:
    layout = Layout(place)
    layout.make()
    os.chown(place, 65534, 65534)
    for step in (layout.check, layout.check_removable, layout.remove):
        with pytest.raises(UsageError, match="belongs to user 65534"):
            step()


def test_a_record_that_lists_other_files_removes_none_of_them(place: Path) -> None:
    layout = Layout(place / "cluster")
    layout.make()
    (place / "file").touch()
    (layout.directory / "notes").touch()
    layout.save({"files": ["../file", "..", "notes", str(place / "file"), "etc/.."]})
    assert "notes" in layout.remove()
    assert (place / "file").exists()


def test_a_removal_that_was_interrupted_can_be_repeated(place: Path) -> None:
    layout = Layout(place / "cluster")
    layout.make()
    layout["etc"].rmdir()
    assert layout.remove() == []
    assert layout.remove() == ()
    assert not layout.directory.exists()

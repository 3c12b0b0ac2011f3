"""``hidl prune``: it removes what nobody needs any more, and says why the rest stays."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from hidl_cli import paths
from hidl_cli.site.load import load_site
from hidl_cli.stack import prune as pruning
from hidl_cli.stack.builds import build
from hidl_cli.stack.installation import has_no_manifest
from tests.conftest import Hidl
from tests.stack.conftest import can_pin, recipe

pytestmark = pytest.mark.real

DAY = 86400


@pytest.fixture
def temporary(hidl: Hidl, tmp_path: Path) -> Path:
    """The directory for temporary files of this hidl alone."""
    place = tmp_path / "temporary"
    place.mkdir()
    hidl.environment["TMPDIR"] = str(place)
    return place


@pytest.fixture
def four(hidl: Hidl, temporary: Path) -> list[Path]:
    """Four installations of the stack ``mine``: the last is in use, the third was so before; all are 100 days old."""
    found = []
    for packages in ([], ["attrs"], ["six"], ["attrs", "six"]):
        recipe(hidl, "mine", packages=dict.fromkeys(["mpich", "mpi4py", *packages], ""))
        found.append(Path(hidl.json("install", "mine")["installations"][0]["prefix"]))
    for prefix in found:
        make_old(prefix)
    return found


def make_old(prefix: Path, days: int = 100) -> None:
    then = time.time() - days * DAY
    for name in ("manifest.json", "pyvenv.cfg"):
        os.utime(prefix / name, (then, then))


def of_kind(document: Any, kind: str) -> dict[str, str | None]:
    """Why each item of that kind is kept, by name."""
    return {Path(item["path"]).name: item["kept"] for item in document["items"] if item["kind"] == kind}


def removed(document: Any) -> set[str]:
    return {Path(item["path"]).name for item in document["items"] if item["removed"]}


def test_a_dry_run_tells_all_and_removes_nothing(hidl: Hidl, four: list[Path]) -> None:
    document = hidl.json("prune", "--dry-run")
    assert of_kind(document, "installation") == {
        four[0].name: None,
        four[1].name: None,
        four[2].name: "previous installation, for hidl stack rollback",
        four[3].name: "in use",
    }
    assert document["bytes"] > 2**20
    assert removed(document) == set()
    assert all((prefix / "manifest.json").is_file() for prefix in four)
    assert "would be removed: 2" in hidl("prune", "--dry-run").stderr


def test_what_goes_goes_with_its_modulefile_and_the_others_work(hidl: Hidl, four: list[Path], root: Path) -> None:
    assert removed(hidl.json("prune")) == {four[0].name, four[1].name}
    left = {path.name for path in (root / "local" / "mine").iterdir() if path.is_dir() and not path.is_symlink()}
    shown = {path.name for path in (root / "modulefiles" / "local" / "mine").iterdir()}
    assert left == shown - {".version"} == {four[2].name, four[3].name}
    assert hidl("stack", "verify", "mine", "--all").returncode == 0
    assert hidl.json("stack", "rollback", "mine")["prefix"] == str(four[2])
    assert removed(hidl.json("prune")) == set()


@pytest.mark.deep
def test_what_was_used_lately_stays(hidl: Hidl, four: list[Path]) -> None:
    make_old(four[0], days=7)
    assert of_kind(hidl.json("prune", "--dry-run"), "installation")[four[0].name] == "used 7 day(s) ago"
    assert removed(hidl.json("prune", "--older-than", "6")) == {four[0].name, four[1].name}


def test_what_a_run_under_way_a_process_or_a_file_names_stays(hidl: Hidl, four: list[Path]) -> None:
    run = hidl.runs / "20260101-000000-mine-0000"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"prefix": str(four[0])}))
    with subprocess.Popen(
        [four[1] / "bin" / "python", "-c", "import mpi4py.MPI; input()"], stdin=subprocess.PIPE
    ) as rank:
        while str(four[1]) not in Path(f"/proc/{rank.pid}/maps").read_text():
            time.sleep(0.05)
        make_old(four[1])
        kept = of_kind(hidl.json("prune"), "installation")
        rank.communicate(b"\n")
    assert (kept[four[0].name], kept[four[1].name]) == (
        f"run {run.name} has not ended",
        f"process {rank.pid} uses it",
    )

    (run / "status.json").write_text(
        json.dumps({"state": "FAILED", "step": 1, "steps": 1, "started": 1, "ended": 2, "exit_status": 1, "hosts": []})
    )
    os.utime(run, (1, 1))
    note = hidl.config / "sites" / "ours.yaml"
    note.parent.mkdir()
    note.write_text(f"# module load mine/{four[1].name}\n")
    kept = of_kind(hidl.json("prune", "--dry-run"), "installation")
    assert (kept[four[0].name], kept[four[1].name]) == (None, f"named in {note} as mine/{four[1].name}")


def test_a_run_is_found_under_another_spelling_of_its_prefix(hidl: Hidl, four: list[Path], tmp_path: Path) -> None:
    run = hidl.runs / "20260101-000000-mine-0000"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"prefix": str(four[0])}))
    (tmp_path / "link").symlink_to(four[0].parents[2])
    kept = of_kind(hidl.json("prune", "--prefix", str(tmp_path / "link")), "installation")
    assert kept[four[0].name] == f"run {run.name} has not ended"
    refused = hidl("uninstall", "mine", "--all", "--prefix", str(tmp_path / "link"))
    assert (refused.returncode, f"run {run.name} has not ended" in refused.stderr) == (4, True), refused.stderr
    assert (four[0] / "manifest.json").is_file()


def test_an_installation_that_cannot_be_used_from_here_stays(hidl: Hidl, four: list[Path]) -> None:
    """Its Python may exist only on the compute nodes. One without a manifest stays if a run needs it."""
    for prefix in (four[1], four[3]):
        (prefix / "bin" / "python").unlink()
        (prefix / "bin" / "python").symlink_to("/nonexistent/python3")
    (four[2] / "manifest.json").write_text("{")
    (four[0] / "manifest.json").unlink()
    run = hidl.runs / "20260101-000000-mine-0000"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"prefix": str(four[0])}))
    for prefix in four:
        os.utime(prefix, (1, 1))
    document = hidl.json("prune")
    assert removed(document) == set()
    assert of_kind(document, "installation") == {
        four[1].name: "damaged, or its Python cannot be reached from here",
        four[2].name: "previous installation, for hidl stack rollback",
        four[3].name: "in use",
    }
    assert of_kind(document, "unfinished") == {four[0].name: f"run {run.name} has not ended"}
    assert (four[3].parent / "current").is_symlink()


def test_an_error_of_the_file_system_does_not_make_an_installation_unfinished(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    assert not has_no_manifest(tmp_path)
    assert not has_no_manifest(Path("/proc/self/status"))  # ENOTDIR, as an example of an error
    assert has_no_manifest(tmp_path / "other")


@pytest.mark.deep
def test_what_hidl_install_gives_stays(hidl: Hidl, four: list[Path]) -> None:
    recipe(hidl, "mine", packages=dict.fromkeys(["mpich", "mpi4py"], ""))
    assert hidl("stack", "lock", "mine").returncode == 0
    assert of_kind(hidl.json("prune", "--dry-run"), "installation")[four[0].name] == "current result of hidl install"


@pytest.mark.deep
def test_what_killed_work_has_left_goes_after_a_day(hidl: Hidl, four: list[Path], temporary: Path, root: Path) -> None:
    begun = four[0].with_name("0123456789ab")
    left = [temporary / f"hidl-{name}" for name in ("spack-abcdefgh", "lock-12345678", "twin-abcdefgh", "notes")]
    stranger = begun.with_name("cafecafecafe")
    for directory in (begun, stranger, *left):
        directory.mkdir()
    (begun / "lock.txt").write_bytes((four[0] / "lock.txt").read_bytes())
    log = next((root / "logs").glob("local-mine-*"))
    assert removed(hidl.json("prune", "--older-than", "1000")) == set()

    then = time.time() - 2 * DAY
    for path in (begun, stranger, *left, log):
        os.utime(path, (then, then))
    document = hidl.json("prune", "--older-than", "1000")
    assert removed(document) == {begun.name, left[0].name, left[1].name}
    assert of_kind(document, "unfinished")[stranger.name] == "not an installation of hidl"
    assert (stranger.is_dir(), left[2].is_dir(), left[3].is_dir(), log.is_file()) == (True, True, True, True)
    assert log.name in removed(hidl.json("prune", "--older-than", "1"))


@pytest.mark.deep
def test_a_bisect_keeps_the_installations_of_its_sides_as_long_as_it_stays(hidl: Hidl, four: list[Path]) -> None:
    bisect = hidl.runs.parent / "bisects" / "20260101-000000-000000-0123456789ab"
    job = bisect / "jobs" / "20260101-000000-bisect-0000"
    job.mkdir(parents=True)
    (job / "plan.json").write_text("{}")
    sides = {"good": {"prefix": str(four[0])}, "bad": {"prefix": str(four[1])}}
    (bisect / "question.json").write_text(json.dumps(sides))
    document = hidl.json("prune")
    assert of_kind(document, "bisect") == {bisect.name: f"its job {job.name} has not ended"}
    kept = of_kind(document, "installation")
    for prefix in four[:2]:
        assert kept[prefix.name] == f"named in {bisect / 'question.json'} as {prefix}"

    (job / "status.json").write_text(
        json.dumps({"state": "TIMEOUT", "step": 1, "steps": 1, "started": 1, "ended": 2, "exit_status": 1, "hosts": []})
    )
    assert of_kind(hidl.json("prune"), "bisect") == {bisect.name: "used today"}
    os.utime(bisect / "question.json", (1, 1))
    (bisect / "journal.json").write_text("{}")
    os.utime(bisect / "journal.json", (time.time() - 7 * DAY,) * 2)
    assert of_kind(hidl.json("prune"), "bisect") == {bisect.name: "used 7 day(s) ago"}
    assert removed(hidl.json("prune", "--older-than", "6")) == {bisect.name, four[0].name, four[1].name}
    assert not bisect.exists()


def test_what_was_built_goes_with_time(hidl: Hidl, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "hidl" / "builds"
    hidl.environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    old, new = cache / ("0" * 32), cache / ("1" * 32)
    for product in (old, new):
        product.mkdir(parents=True)
        (product / "inputs.json").write_text("{}")
    os.utime(old / "inputs.json", (1, 1))
    assert removed(hidl.json("prune")) == {old.name}
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.deep
@pytest.mark.skipif(not can_pin(), reason="NEEDS chattr: no file can be made immutable here")
def test_what_cannot_be_removed_is_named_and_the_rest_goes(hidl: Hidl, four: list[Path]) -> None:
    subprocess.run(["chattr", "+i", four[0] / "manifest.json"], check=True)
    try:
        pruned = hidl("prune", "--json")
    finally:
        for place in four[0].parent.rglob("manifest.json"):
            subprocess.run(["chattr", "-i", place], check=True)
    assert pruned.returncode == 4
    assert removed(json.loads(pruned.stdout)) == {four[1].name}
    assert f"cannot remove {four[0]}" in pruned.stderr
    (left,) = four[0].parent.glob(".removed-*")
    os.utime(left, (1, 1))
    assert removed(hidl.json("prune")) == {left.name}


@pytest.mark.parametrize("days", ["-1", "soon"])
def test_an_age_that_is_none_is_a_usage_error(hidl: Hidl, days: str) -> None:
    assert hidl("prune", "--older-than", days).returncode == 2


def test_what_another_process_removes_meanwhile_is_no_item(tmp_path: Path) -> None:
    (tmp_path / "there").touch()

    def item(path: Path) -> pruning.PruneItem:
        return pruning.PruneItem("log", path, path.stat().st_size, 0.0)

    assert [each.path.name for each in pruning._items([tmp_path / "gone", tmp_path / "there"], item)] == ["there"]


def test_builds_that_another_process_removes_meanwhile_are_no_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there, gone = (tmp_path / "hidl" / "builds" / (digit * 32) for digit in "ab")
    there.mkdir(parents=True)
    gone.mkdir()
    listed = build.products()
    assert listed == [there, gone]
    gone.rmdir()
    monkeypatch.setattr(build, "products", lambda: listed)
    search = pruning.Pruning.older_than(30, load_site("local"), (tmp_path,), 0.0)
    assert [item.path for item in search.items() if item.kind == "build"] == [there]


def test_a_directory_that_a_process_uses_stays(hidl: Hidl, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that waits for its job for days still needs the capsule that it has unpacked."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    left = temporary / "hidl-capsule-aaaaaaaa"
    left.mkdir()
    with paths.temporary_directory("capsule") as used:
        for place in (left, used):
            os.utime(place, (time.time() - 3 * DAY,) * 2)
        document = hidl.json("prune")
        assert of_kind(document, "temporary") == {left.name: None, used.name: "a process uses it"}
        assert (left.exists(), used.exists()) == (False, True)
    assert not used.exists()


def test_logs_of_a_site_whose_name_goes_on_stay(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "local-gpu").mkdir()
    for name in ("local-mpi-20260101-000000-1.log", "local-gpu-mpi-20260101-000000-1.log"):
        (logs / name).write_text("")
        os.utime(logs / name, (0, 0))
    search = pruning.Pruning.older_than(30, load_site("local"), (tmp_path,), 0.0)
    assert [item.path.name for item in search.items() if item.kind == "log"] == ["local-mpi-20260101-000000-1.log"]


def test_what_is_gone_by_now_is_removed(tmp_path: Path) -> None:
    search = pruning.Pruning.older_than(30, load_site("local"), (tmp_path,), 0.0)
    gone = pruning.PruneItem("temporary", tmp_path / "gone", 0, 0.0)
    assert search.remove(gone, print) is None

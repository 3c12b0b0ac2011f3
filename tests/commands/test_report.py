"""``hidl report`` as a user calls it, on runs that really ran."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.errors import ExitCode
from tests.conftest import Hidl, hidl_in

pytestmark = pytest.mark.real

METRICS = {"rate": {"unit": "items/s", "better": "higher"}, "checksum": {"unit": "sha256", "equal_on_all_ranks": True}}
PARAMETERS = {"efficiency": {"type": "float", "default": 1.0}}
SCALING = {"metric": "rate", "kind": "weak", "target": 0.8}


@pytest.fixture(scope="module")
def toy(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Hidl:
    """hidl with a workload that scales, after a study that passed."""
    hidl = hidl_in(tmp_path_factory.mktemp("toy"), stack_prefix("mpi"))
    hidl.add_workload("toy", "toy.py", metrics=METRICS, parameters=PARAMETERS, scaling=SCALING)
    assert hidl("run", "toy", "--scale", "1,2", "--repeat", "3").returncode == 0
    return hidl


def test_a_study_that_ran_is_on_the_page_with_its_verdict_and_provenance(toy: Hidl, tmp_path: Path) -> None:
    found = toy.json("report", "--output", str(tmp_path / "page.html"))
    page = Path(found["file"]).read_text(encoding="utf-8")
    assert (found["runs"], found["bytes"]) == (1, len(page.encode()))
    assert found["standings"] == {"pass": 1, "fail": 0, "inconclusive": 0, "broken": 0, "unjudged": 0, "active": 0}
    for shown in ("Weak scaling of rate: 2 ranks: efficiency", "HIDL_WORLD_SIZE=2", "mpi4py", "mpich"):
        assert shown in page


def test_the_page_can_go_to_stdout(toy: Hidl) -> None:
    ended = toy("report", "last", "-o", "-")
    assert ended.stdout.startswith("<!doctype html>")
    assert ended.stdout.rstrip().endswith("</html>")


def test_no_run_that_fits_is_an_error_and_leaves_no_page(hidl: Hidl, tmp_path: Path) -> None:
    ended = hidl("report", "--output", str(tmp_path / "page.html"))
    assert ended.returncode == ExitCode.USAGE
    assert "no matching runs" in ended.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("more", ["--json", "--open"])
def test_stdout_has_room_for_one_thing(hidl: Hidl, more: str) -> None:
    assert hidl("report", "-o", "-", more).returncode == ExitCode.USAGE


def test_open_hands_the_page_to_the_desktop(toy: Hidl, tmp_path: Path) -> None:
    opener = tmp_path / "bin" / "xdg-open"
    opener.parent.mkdir()
    opened = tmp_path / "opened"
    opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.part; mv {opened}.part {opened}\n')
    opener.chmod(0o755)
    page = tmp_path / "a page.html"
    ended = toy("report", "--open", "--output", str(page), PATH=f"{opener.parent}:{toy.environment['PATH']}")
    assert ended.returncode == 0, ended.stderr
    for _ in range(1000):
        if opened.exists():
            break
        time.sleep(0.01)
    assert opened.read_text() == str(page)


def test_a_desktop_without_an_opener_is_reported(toy: Hidl, tmp_path: Path) -> None:
    ended = toy("report", "--open", "--output", str(tmp_path / "page.html"), PATH=str(tmp_path))
    assert ended.returncode == ExitCode.MISSING_PRECONDITION
    assert "in a browser" in ended.stderr
    assert (tmp_path / "page.html").exists()


def test_a_place_that_cannot_be_written_is_reported(toy: Hidl) -> None:
    ended = toy("report", "--output", "/proc/page.html")
    assert ended.returncode == ExitCode.UNEXPECTED
    assert "cannot write the report" in ended.stderr

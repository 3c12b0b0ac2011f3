"""``hidl rehearse``: the three lines on the twins of the sites that differ most, and what is said of those without."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from hidl_twin import packages, rehearsal
from hidl_twin.cluster import Cluster
from hidl_twin.page import is_page, page
from hidl_twin.rehearsal import Rehearsal, Stage

from hidl_cli.documents import check_output
from tests.conftest import Hidl


def needs_a_twin(item: str) -> None:
    if (obstacle := packages.obstacle(accounting=True, twin=True)) is not None:
        pytest.skip(f"{item} NEEDS A CLUSTER: {obstacle.message}")


# Modules and ibrun; Slurm's own launcher, Cray's library, several threads a core; LSF and jsrun.
@pytest.mark.real
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "site", ["frontera", *(pytest.param(n, marks=pytest.mark.deep) for n in ("perlmutter", "lassen"))]
)
def test_the_three_lines_end_well_on_the_twin_and_nothing_of_it_is_left(
    hidl: Hidl, site: str, request: pytest.FixtureRequest
) -> None:
    needs_a_twin(request.node.nodeid)
    done = hidl("rehearse", site, "--check", "mpi_sanity", "--json", timeout=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    document = _document(done.stdout)
    (rehearsal,) = document["rehearsals"]
    assert [step["step"].split()[1] for step in rehearsal["steps"]] == ["cluster", "install", "run", "validate"]
    assert [step["verdict"] for step in rehearsal["steps"]] == ["pass"] * 4
    directory = Path(rehearsal["directory"])
    assert not (directory / "twin").exists()  # a link to nothing
    assert (directory / "logs" / "2-run.log").is_file()


def test_a_site_that_cannot_run_jobs_is_refused_with_its_reason(hidl: Hidl) -> None:
    done = hidl("rehearse", "oakforest-pacs")
    assert (done.returncode, "pjm" in done.stderr) == (2, True), done.stderr


def test_a_site_or_all_of_them_must_be_named(hidl: Hidl) -> None:
    assert [hidl("rehearse").returncode, hidl("rehearse", "frontera", "--all").returncode] == [2, 2]


def test_a_report_replaces_no_other_file(hidl: Hidl, tmp_path: Path) -> None:
    """The file is checked before a twin is started."""
    other = tmp_path / "results.md"
    other.write_text("# Results\n")
    for file, why in ((other, "the file exists and has other contents"), (tmp_path / "x" / "a.md", "No such file")):
        done = hidl("rehearse", "frontera", "--report", str(file))
        assert (done.returncode, f"cannot write {file}: {why}" in done.stderr) == (2, True), done.stderr
    assert other.read_text() == "# Results\n"
    assert not (tmp_path / "x").exists()
    other.write_text(page([], {}, ["hidl"]))
    check_output(other, is_page)


def test_the_page_reports_of_each_site_what_came_of_it() -> None:
    began = datetime(2026, 11, 23, tzinfo=timezone.utc)
    steps = [
        Stage("hidl cluster up --like a --nodes 4", 3.2, 0, "4 nodes are ready"),
        Stage("hidl install mpi --site a", 5.0, 0, "installed"),
        Stage("hidl run mpi-sanity --site a", 2.0, 8, "run x | failed"),
    ]
    found = page([Rehearsal("a", Path("/x"), began, steps)], {"b": "unknown scheduler"}, ["hidl", "rehearse", "--all"])
    rows = [line for line in found.splitlines() if line.startswith("| ")]
    assert "$ hidl rehearse --all" in found
    assert rows[-2] == "| a | 2026-11-23 | 3 s | 5 s | 2 s fail |  | hidl run mpi-sanity --site a: run x \\| failed |"
    assert rows[-1] == "| b | | | | | | left out: unknown scheduler |"


def test_rows_of_other_sites_stay() -> None:
    began = datetime(2026, 11, 23, tzinfo=timezone.utc)
    first = page([Rehearsal(name, Path("/x"), began, []) for name in ("a", "c")], {}, ["hidl"])
    again = page([Rehearsal("b", Path("/x"), began, [Stage("hidl run x", 1.0, 8, "no")])], {}, ["hidl"], first)
    rows = [line.split(" | ")[0].strip("| ") for line in again.splitlines() if line.startswith("| ")]
    assert rows == ["site", "a", "b", "c"]


def _document(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert found["schema"] == "hidl.rehearsal/1"
    return dict(found)


class Login:
    """A login host on this machine, where every line runs a shell command instead."""

    def __init__(self, command: str) -> None:
        self.command = command

    def at_login(self, argv: object, environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        return ["sh", "-c", self.command], environment


def test_a_line_that_does_not_end_is_ended_and_its_last_output_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rehearsal._SECONDS, "validate", 1.0)
    twin = cast(Cluster, Login("echo run mpi_sanity; sleep 600"))
    stage = rehearsal._typed(twin, ["validate"], dict(os.environ), tmp_path / "validate.log")
    assert (stage.verdict, stage.outcome) == ("fail", "did not end within 1 s; the last line: run mpi_sanity")

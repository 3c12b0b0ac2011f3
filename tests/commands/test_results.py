"""``hidl results`` as users call it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pyarrow import parquet

from hidl_cli.commands import results
from hidl_cli.store import sqlite as writers
from tests.conftest import Hidl
from tests.store.run_directories import judged, of_another_version

pytestmark = pytest.mark.real


@pytest.fixture
def hidl_with_runs(hidl: Hidl) -> Hidl:
    """hidl, and two runs that were judged: of 2026 on the site machine, and of 2025 on the site other."""
    judged(hidl.runs, [100.0, 190.0], sizes=(1, 2), run="20260101-toy-new", created="2026-01-01T00:00:00+00:00")
    old = {"run": "20250101-toy-old", "created": "2025-01-01T00:00:00+00:00", "site": "other", "workload": "old"}
    judged(hidl.runs, 50.0, verdict="fail", hosts=("n7",), **old)
    return hidl


def index_of(hidl: Hidl) -> Path:
    return hidl.runs.parent / "results.sqlite"


def test_the_list_shows_the_newest_run_first(hidl_with_runs: Hidl) -> None:
    lines = hidl_with_runs("results", "list").stdout.splitlines()
    assert lines[1].split() == ["20260101-toy-new", "machine", "2", "rate", "190", "items/s", "pass"]
    assert lines[2].split() == ["20250101-toy-old", "other", "1", "rate", "50", "items/s", "fail"]


def test_a_run_that_yielded_nothing_is_listed(hidl_with_runs: Hidl) -> None:
    run = judged(hidl_with_runs.runs, run="20270101-toy-none", created="2027-01-01T00:00:00+00:00", verdict="fail")
    run.write("metrics", {"schema": "hidl.run-metrics/1", "run": run.id, "steps": []})
    lines = hidl_with_runs("results", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["20270101-toy-none", "20260101-toy-new", "20250101-toy-old"]
    assert lines[1].split()[1:] == ["machine", "rate", "fail"]


@pytest.mark.parametrize(
    "asked",
    [
        ["--workload", "old"],
        ["--site", "other"],
        ["--host", "n7"],
        ["--site", "other", "--stack", "mpi", "--metric", "rate", "--since", "2024-06-01"],
    ],
)
def test_the_list_is_narrowed(hidl_with_runs: Hidl, asked: list[str]) -> None:
    (found,) = hidl_with_runs.json("results", "list", *asked)["results"]
    assert found["run"] == "20250101-toy-old"


@pytest.mark.parametrize("asked", [["--workload", "none"], ["--metric", "none"], ["--since", "1d"], ["--host", "n"]])
def test_a_list_of_nothing_is_empty(hidl_with_runs: Hidl, asked: list[str]) -> None:
    assert hidl_with_runs.json("results", "list", *asked)["results"] == []


def test_the_list_is_as_long_as_asked(hidl_with_runs: Hidl) -> None:
    assert [run["run"] for run in hidl_with_runs.json("results", "list", "-n", "1")["results"]] == ["20260101-toy-new"]


def test_a_time_that_is_none_is_reported(hidl_with_runs: Hidl) -> None:
    completed = hidl_with_runs("results", "list", "--since", "yesterday")
    assert (completed.returncode, "invalid time 'yesterday'" in completed.stderr) == (2, True)


def test_a_run_is_shown_though_its_directory_is_gone(hidl_with_runs: Hidl) -> None:
    hidl_with_runs("results", "reindex")
    shutil.rmtree(hidl_with_runs.runs)
    document = hidl_with_runs.json("results", "show", "old")
    assert (document["schema"], document["verdict"]) == ("hidl.result/1", {"verdict": "fail", "reason": "so it is"})
    assert document["steps"][0]["metrics"] == {"rate": {"value": 50.0, "unit": "items/s"}}
    assert "190" in hidl_with_runs("results", "show", "20260101").stdout


def test_published_figures_stand_beside_the_results_and_the_verdict_is_the_same(hidl: Hidl) -> None:
    judged(hidl.runs, 50.0, verdict="pass", run="20260101-r", created="2026-01-01T00:00:00+00:00", workload="resnet50")
    document = hidl.json("results", "show", "20260101-r")
    assert document["verdict"]["verdict"] == "pass"
    assert "260,000 images/s" in [each["figure"] for each in document["published"]]
    shown = " ".join(hidl("results", "show").stdout.split())
    assert "published values, for reference (other machines and programs; no verdict depends on them)" in shown
    assert "260,000 images/s (2,048 nodes; Frontera, Cascade Lake nodes; MVAPICH User Group meeting 2022" in shown


def test_a_run_of_another_workload_has_no_published_figures(hidl_with_runs: Hidl) -> None:
    assert hidl_with_runs.json("results", "show", "old")["published"] == []
    assert "published" not in hidl_with_runs("results", "show", "old").stdout


def test_a_run_that_is_not_there_is_reported(hidl_with_runs: Hidl) -> None:
    completed = hidl_with_runs("results", "show", "none")
    assert (completed.returncode, "no results for run 'none'" in completed.stderr) == (2, True)


def test_no_results_at_all_are_reported(hidl: Hidl) -> None:
    assert "no results yet" in hidl("results", "show").stderr
    assert hidl.json("results", "list")["results"] == []


def test_samples_are_exported_to_stdout_and_to_files(hidl_with_runs: Hidl, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(hidl_with_runs("results", "export", "--format", "csv").stdout)))
    assert [row["value"] for row in rows] == ["50.0", "100.0", "190.0"]
    completed = hidl_with_runs("results", "export", "--output", str(tmp_path / "out.json"), "--site", "other")
    assert (completed.stdout, "1 sample in" in completed.stderr) == ("", True)
    assert [row["value"] for row in json.loads((tmp_path / "out.json").read_text())["samples"]] == [50.0]


def test_a_file_of_no_known_format_is_reported(hidl_with_runs: Hidl, tmp_path: Path) -> None:
    completed = hidl_with_runs("results", "export", "--output", str(tmp_path / "out.xlsx"))
    assert (completed.returncode, "--format json, csv or parquet" in completed.stderr) == (2, True)


def test_parquet_without_pyarrow_is_reported_with_the_line_that_installs_it(
    hidl_with_runs: Hidl, tmp_path: Path
) -> None:
    words = ["results", "export", "-o", str(tmp_path / "out.parquet")]
    without = (
        f"import sys; sys.modules['pyarrow'] = None; sys.argv[1:] = {words}; from hidl_cli.__main__ import main; main()"
    )
    completed = subprocess.run(
        [sys.executable, "-c", without],
        capture_output=True,
        text=True,
        check=False,
        env=hidl_with_runs.environment,
    )
    assert completed.returncode == 4
    assert "-m pip install 'hidl[export]'" in completed.stderr
    assert not (tmp_path / "out.parquet").exists()


def test_parquet_is_written(hidl_with_runs: Hidl, tmp_path: Path) -> None:
    completed = hidl_with_runs("results", "export", "-o", str(tmp_path / "out.parquet"))
    assert completed.returncode == 0, completed.stderr
    assert parquet.read_table(tmp_path / "out.parquet")["value"].to_pylist() == [50.0, 100.0, 190.0]


def test_reindex_makes_the_index_again_and_says_what_it_found(hidl_with_runs: Hidl) -> None:
    of_another_version(hidl_with_runs.runs, "x")
    completed = hidl_with_runs("results", "reindex")
    assert completed.stdout.startswith("2 runs with 3 samples in ")
    assert "1 run directory is left out" in completed.stderr


def test_reindex_takes_further_directories(hidl_with_runs: Hidl, tmp_path: Path) -> None:
    judged(tmp_path / "of a friend", 7.0)
    assert hidl_with_runs.json("results", "reindex", "--directory", str(tmp_path / "of a friend"))["runs"] == 1
    assert hidl_with_runs.json("results", "reindex")["runs"] == 3


def test_a_file_that_is_not_an_index_is_reported_and_then_put_aside(hidl_with_runs: Hidl) -> None:
    index_of(hidl_with_runs).write_text("a diary")
    completed = hidl_with_runs("results", "list")
    assert (completed.returncode, "hidl results reindex" in completed.stderr) == (4, True)
    aside = Path(hidl_with_runs.json("results", "reindex")["aside"])
    assert aside.read_text() == "a diary"
    assert len(hidl_with_runs.json("results", "list")["results"]) == 2


def test_an_index_of_an_earlier_hidl_is_filled_again_by_any_command(hidl_with_runs: Hidl) -> None:
    hidl_with_runs("results", "reindex")
    with closing(sqlite3.connect(index_of(hidl_with_runs))) as connection:
        connection.execute("PRAGMA user_version = 0")
    assert len(hidl_with_runs.json("results", "list")["results"]) == 2


def test_an_index_that_may_only_be_read_is_shown_as_it_is(hidl_with_runs: Hidl, tmp_path: Path) -> None:
    hidl_with_runs("results", "reindex")
    judged(hidl_with_runs.runs, 1.0)
    index_of(hidl_with_runs).with_name("results.sqlite.lock").mkdir()
    completed = hidl_with_runs("results", "list")
    assert completed.stdout.count("items/s") == 2
    assert "new results are not shown" in completed.stderr


def test_a_lock_that_another_machine_left_is_reported_and_taken_over_by_reindex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(results, "_MAX_WAIT", 0.1)
    judged(tmp_path / "hidl" / "runs", 1.0)
    owner = {"token": "t", "pid": 1, "started": "1", "place": "elsewhere", "host": "node7", "user": "ada", "since": "x"}
    (tmp_path / "hidl" / "results.sqlite.lock").write_text(json.dumps(owner))
    assert results.open_store().runs() == []
    told = capsys.readouterr().err
    assert "hidl with pid 1 of ada on node7, since x is still writing to" in told
    assert "run hidl results reindex" in told
    monkeypatch.setattr(writers, "PATIENCE", 0.2)
    results.reindex()
    assert capsys.readouterr().out.startswith("1 run with 1 sample in ")


def test_the_index_can_be_shared(hidl_with_runs: Hidl, tmp_path: Path) -> None:
    hidl_with_runs("results", "list", HIDL_RESULTS=str(tmp_path / "shared.sqlite"))
    assert (tmp_path / "shared.sqlite").is_file()
    assert not index_of(hidl_with_runs).exists()

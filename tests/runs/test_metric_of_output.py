"""``hidl run --metric`` with real ranks: what is read, how it is judged, and how it ends where nothing is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROGRAMS, Hidl

RATE = "images_per_second=Img/sec: ([0-9.]+)"
PROGRAM = ("python", str(PROGRAMS / "prints_rates.py"))


def run(hidl: Hidl, *options: str, program: tuple[str, ...] = PROGRAM) -> Any:
    """The document of ``hidl run`` on a program of the user's own."""
    completed = hidl("run", *options, "--json", "--", *program)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return json.loads(completed.stdout)


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl with the mpi stack."""
    return hidl_with("mpi")


def test_a_metric_is_read_from_what_a_program_prints(hidl: Hidl) -> None:
    loss = "loss[take=last]=loss ([0-9.e-]+)"
    document = run(hidl, "--metric", RATE, "--metric", loss)
    metrics = document["steps"][0]["metrics"]
    assert metrics["images_per_second"] == {"value": 101, "unit": "images/s", "samples": [100, 101, 102]}
    assert metrics["loss"]["samples"] == [0.5, 0.25, 0.125]  # from a progress bar on stderr
    assert metrics["loss"]["value"] == 0.125
    (directory,) = hidl.runs.iterdir()
    assert "Img/sec: 100" in (directory / "stdout.log").read_text()
    assert "loss 0.125" in (directory / "stderr.log").read_text()


def test_what_a_program_prints_takes_the_place_of_the_clock(hidl: Hidl) -> None:
    document = run(hidl, "--metric", "wall_time[take=last]=loss ([0-9.e-]+)", "--metric", "throughput=sec: ([0-9]+)")
    metrics = document["steps"][0]["metrics"]
    assert metrics["wall_time"] == {"value": 0.125, "unit": "s", "samples": [0.5, 0.25, 0.125]}
    assert metrics["throughput"] == {"value": 101, "unit": "1/s", "samples": [100, 101, 102]}


@pytest.mark.parametrize(
    ("options", "metric"),
    [
        ("", {"value": 201, "samples": [200, 200, 201, 201, 202, 202]}),
        ("[ranks=0]", {"value": 201, "samples": [200, 201, 202]}),
        ("[ranks=each,reduce=sum]", {"value": 402, "samples": [201, 201], "ranks": [0, 1]}),
        ("[ranks=0,per=rank]", {"value": 402, "samples": [400, 402, 404]}),
    ],
)
def test_the_ranks_are_searched_together_or_one_by_one(hidl: Hidl, options: str, metric: dict[str, object]) -> None:
    word = RATE.replace("=", f"{options}=", 1)
    document = run(hidl, "--ranks-per-node", "2", "--metric", word)
    found = document["steps"][0]["metrics"]["images_per_second"]
    assert {**found, "samples": sorted(found["samples"])} == {"unit": "images/s", **metric}


def test_a_study_judges_the_metric(hidl: Hidl) -> None:
    words = ("--scale", "1,2", "--repeat", "4", "--target", "0.6", "--metric", RATE)
    document = run(hidl, *words, program=(*PROGRAM, "--noisy"))
    study = document["verdict"]["study"]
    assert document["verdict"]["verdict"] == "pass"
    assert (study["metric"], study["unit"]) == ("images_per_second", "images/s")
    assert study["steps"][1]["efficiency"] == pytest.approx(1, abs=0.02)


def test_a_workload_of_hidl_takes_further_metrics(hidl: Hidl) -> None:
    elements = "elements[unit=1]=allreduce: .* up to ([0-9]+) elements"
    document = hidl.json("run", "mpi-sanity", "--metric", elements)
    assert document["steps"][0]["metrics"]["elements"]["value"] == 65537


def test_a_pattern_that_matches_nothing_is_a_missing_metric(hidl: Hidl) -> None:
    failed = hidl("run", "--metric", "rate=imgs/sec: ([0-9.]+)", "--", *PROGRAM)
    assert failed.returncode == 9
    assert "metric rate: pattern `imgs/sec: ([0-9.]+)` matches nothing" in failed.stderr
    assert "Img/sec: 102" in failed.stderr
    (directory,) = hidl.runs.iterdir()
    assert json.loads((directory / "verdict.json").read_text())["verdict"] == "fail"


def test_output_of_any_kind_is_read_and_shown_in_bounded_pieces(hidl: Hidl) -> None:
    words = ("run", "--no-mpi", "--metric", RATE, "--", "python", str(PROGRAMS / "prints_anything.py"))
    shown = hidl(*words)
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert re.search(r"images_per_second +12.5 ", shown.stdout)
    assert "bytes omitted; to see everything, run: hidl logs" in shown.stderr
    assert len(shown.stderr) < 5_000_000
    (directory,) = hidl.runs.iterdir()
    assert (directory / "steps" / "1" / "output.txt").stat().st_size > 100_000_000


def test_an_invalid_pattern_is_refused_before_anything_starts(hidl: Hidl) -> None:
    refused = hidl("run", "--metric", "rate=(a", "--metric", "loss=b", "--", *PROGRAM)
    assert refused.returncode == 3
    assert "missing ): (a" in refused.stderr
    assert "--metric loss: the number is ambiguous: the pattern has no group" in refused.stderr
    assert not hidl.runs.exists()


def test_a_study_of_a_metric_in_the_output_ends_once_it_is_settled(hidl: Hidl) -> None:
    study = ("--scale", "1,2", "--repeat", "40", "--until-settled", "--target", "0.2", "--metric", RATE)
    document = run(hidl, *study, program=(*PROGRAM, "--noisy"))
    assert document["verdict"]["verdict"] == "pass"
    (directory,) = hidl.runs.iterdir()
    rounds = json.loads((directory / "enough.json").read_text())["rounds"]
    assert 2 <= rounds < 40
    assert [step["repetitions"] for step in document["verdict"]["study"]["steps"]] == [rounds, rounds]


def test_where_the_output_cannot_be_read_in_the_job_the_study_goes_on(hidl: Hidl) -> None:
    study = ("run", "--scale", "1,2", "--repeat", "3", "--until-settled", "--target", "0.2", "--metric", RATE)
    done = hidl(*study, "--json", "--", "python", "-c", "print('Img/sec: no')", X="1")
    assert done.returncode == 9, done.stderr
    (directory,) = hidl.runs.iterdir()
    assert "going on to the last repetition" in (directory / "stderr.log").read_text()


def test_a_failed_program_is_a_failed_job(hidl: Hidl) -> None:
    failed = hidl("run", "--metric", RATE, "--", "python", "-c", "print('Img/sec: 3'); raise SystemExit(4)")
    assert failed.returncode == 8
    assert "ended with status 4" in failed.stderr


def test_a_workload_file_has_patterns(hidl: Hidl, tmp_path: Path) -> None:
    patterns = [{"pattern": "Img/sec: (?P<images_per_second>[0-9.]+)", "skip": 1, "ranks": 0}]
    program = {"command": list(PROGRAM), "patterns": patterns}
    metrics = {"images_per_second": {"unit": "kimages/s", "better": "higher"}}
    hidl.add_workload("prints", "prints_rates.py", program=program, metrics=metrics)
    found = hidl.json("run", "prints", "--ranks-per-node", "2")["steps"][0]["metrics"]["images_per_second"]
    assert found["samples"] == [201, 202]

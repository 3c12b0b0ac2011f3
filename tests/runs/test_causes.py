"""A run that fails ends with its likely cause and the cure, told to people and in its documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROGRAMS, Hidl


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl with the mpi stack, and workloads that fail."""
    return hidl_with("mpi")


def failing(hidl: Hidl, how: str) -> str:
    """A workload that fails so."""
    return with_command(hidl, how, ["python", str(PROGRAMS / "fails.py"), how])


def with_command(hidl: Hidl, name: str, command: list[str]) -> str:
    hidl.add_workload(name, "fails.py", program={"command": command})
    return name


def causes(hidl: Hidl) -> Any:
    (run,) = hidl.runs.iterdir()
    return json.loads((run / "causes.json").read_text())["findings"]


@pytest.mark.parametrize(
    ("how", "rule", "cause", "cure"),
    [
        ("module", "HD150", "A Python module is missing", "add no_such_module to a stack"),
        ("full", "HD170", "A file system is full", "df -h"),
        ("files", "HD044", "The limit of open files is low", "ulimit -n"),
        ("memory", "HD158", "The program ran out of memory", "--ranks-per-node"),
        ("killed", "HD131", "A rank was killed (signal 9)", "fewer ranks per node"),
        ("bus", "HD132", "A rank died of a bus error", "df -h /dev/shm"),
    ],
)
def test_a_failed_run_ends_with_its_likely_cause(hidl: Hidl, how: str, rule: str, cause: str, cure: str) -> None:
    completed = hidl("run", failing(hidl, how))
    told, _, next_step = completed.stderr.rpartition("next:")
    assert completed.returncode == 8
    assert f"likely cause: {cause}" in told
    assert cure in next_step
    assert [each["rule"] for each in causes(hidl)] == [rule]


def test_a_program_that_is_not_there_is_named(hidl: Hidl) -> None:
    completed = hidl("run", with_command(hidl, "missing", ["/no/such program"]))
    assert "likely cause: The program is not found (HD110)" in completed.stderr
    assert "check that '/no/such program' is spelled correctly" in completed.stderr


def test_singletons_are_reported_with_their_cause(hidl: Hidl) -> None:
    hide_the_launcher = ["env", "-u", "PMI_FD", "-u", "PMI_RANK", "-u", "PMI_SIZE"]
    workload = with_command(hidl, "alone", [*hide_the_launcher, "python", "-m", "hidl_workloads.world"])
    completed = hidl("run", workload, "--ranks-per-node", "2")
    assert "likely cause: The ranks are singletons (HD001)" in completed.stderr


def test_the_document_of_a_failed_run_holds_its_causes(hidl: Hidl) -> None:
    document = hidl.json("run", failing(hidl, "module"), status=8)
    (cause,) = document["causes"]
    assert (document["state"], cause["rule"], cause["severity"]) == ("FAILED", "HD150", "error")
    assert cause["mend"]


def test_resume_and_status_report_the_cause_of_a_run_that_failed_unseen(hidl: Hidl) -> None:
    run = hidl.json("run", failing(hidl, "module"), "--no-wait")["run"]
    resumed = hidl("resume", run)
    assert resumed.returncode == 8
    assert "likely cause: A Python module is missing" in resumed.stderr
    assert [cause["rule"] for cause in hidl.json("status", run)["causes"]] == ["HD150"]


def test_what_the_program_printed_is_not_obeyed_by_the_terminal(hidl: Hidl) -> None:
    completed = hidl("run", failing(hidl, "escapes"))
    assert "seen: \\x1b]0;owned\\x07/dev/sda: \\x1b[2JNo space left on device" in completed.stderr
    assert "\x1b[2J" not in completed.stderr


def test_a_warning_is_not_a_more_than_a_possible_cause(hidl: Hidl) -> None:
    said = "print('distributed.worker - WARNING - Unmanaged memory use is high.'); raise SystemExit(3)"
    completed = hidl("run", with_command(hidl, "warned", ["python", "-c", said]))
    told, _, next_step = completed.stderr.rpartition("next:")
    assert "possible cause: Dask workers run low on memory (HD223)" in told
    assert "  fix: smaller chunks" in told
    assert "hidl logs" in next_step


def test_an_unknown_failure_has_no_cause(hidl: Hidl) -> None:
    completed = hidl("run", with_command(hidl, "plain", ["python", "-c", "raise SystemExit(3)"]))
    assert completed.returncode == 8
    assert "likely cause" not in completed.stderr
    assert causes(hidl) == []


def test_a_run_that_ended_well_has_no_causes(hidl: Hidl, tmp_path: Path) -> None:
    document = hidl.json("run", failing(hidl, "not"))
    assert document["causes"] == []
    assert list(hidl.runs.glob("*/causes.json")) == []

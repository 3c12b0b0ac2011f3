"""The causes of a run, by its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.doctor.seen import causes_of
from hidl_cli.doctor.seen.runs import keep_causes
from hidl_cli.documents import read_json
from hidl_cli.record.run import Run
from hidl_workloads.doctor.finding import Finding

FULL = Finding("HD041", "error", "/dev/shm is full", "64 MiB of 64 MiB", "ranks talk through it", "empty it", "node2")
UNBOUND = Finding("HD046", "warning", "ranks are not bound", "0-3", "they move", "--bind-to core")
NOTE = Finding("HD045", "info", "cores are left", "3 of 4", "they could work too", "--threads 4")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that printed of a module that is missing, and of a bus error."""
    failed = Run(tmp_path / "run")
    failed.directory.mkdir()
    failed.stdout.write_text("srun: error: node2: task 289: Bus error\n")
    failed.stderr.write_text("ModuleNotFoundError: No module named 'zarr'\n")
    return failed


def rules(run: Run) -> list[str]:
    return [cause.rule for cause in causes_of(run)]


def test_both_logs_are_looked_at(run: Run) -> None:
    assert rules(run) == ["HD132", "HD150"]


def test_what_the_job_found_by_itself_comes_first_and_once(run: Run) -> None:
    run.stderr.write_text("OSError: [Errno 28] No space left on device: '/dev/shm/x'\n")
    run.write("findings", {"schema": "hidl.findings/1", "findings": [FULL.to_json(), NOTE.to_json()]})
    assert rules(run)[0] == "HD041"
    assert rules(run).count("HD041") == 1


def test_what_the_job_was_only_warned_of_stands_behind_what_failed(run: Run) -> None:
    run.write("findings", {"schema": "hidl.findings/1", "findings": [UNBOUND.to_json()]})
    assert rules(run) == ["HD132", "HD150", "HD046"]


def test_what_is_only_good_to_know_is_no_cause(run: Run) -> None:
    run.write("findings", {"schema": "hidl.findings/1", "findings": [NOTE.to_json()]})
    assert "HD045" not in rules(run)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"findings": 3}', '{"findings": [{"rule": "HD041"}]}', '{"findings": ["HD041"]}']
)
def test_a_damaged_document_of_the_job_is_passed_over(run: Run, text: str) -> None:
    (run.directory / "findings.json").write_text(text)
    assert rules(run) == ["HD132", "HD150"]


def test_causes_are_written_once_and_hold_from_then_on(run: Run) -> None:
    keep_causes(run)
    run.stderr.write_text("nothing\n")
    keep_causes(run)
    assert rules(run) == ["HD132", "HD150"]
    assert read_json(run.directory / "causes.json")["schema"] == "hidl.causes/1"


def test_a_run_without_logs_has_no_causes(tmp_path: Path) -> None:
    assert causes_of(Run(tmp_path)) == []


def test_only_the_end_of_a_large_log_is_read(run: Run) -> None:
    with run.stdout.open("w") as log:
        log.write("No space left on device\n")
        log.writelines("all is well, as it was before\n" for _ in range(10**6 // 3))  # 10 MB
        log.write("srun: error: node2: task 289: Bus error\n")
    assert rules(run) == ["HD132", "HD150"]


def test_bytes_that_are_no_text_do_not_hide_a_cause(run: Run) -> None:
    run.stderr.write_bytes(b"\xff\xfe\x00 rank 3: \xc3( No space left on device\n")
    assert "HD170" in rules(run)

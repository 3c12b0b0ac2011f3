"""Likely causes, found in a text and in a run's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.diagnoses import MAX_TEXT, find_causes, read_causes, write_causes
from hidl_cli.documents import read_json
from hidl_cli.record import Run
from hidl_workloads.doctor.finding import Finding

HEALTHY = sorted((Path(__file__).parent / "healthy").glob("*.txt"))

FULL = Finding("HD041", "error", "/dev/shm is full", "64 MiB of 64 MiB", "ranks talk through it", "empty it", "node2")
UNBOUND = Finding("HD046", "warning", "ranks are not bound", "0-3", "they move", "--bind-to core")
NOTE = Finding("HD045", "info", "cores are left", "3 of 4", "they could work too", "--threads 4")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose logs show a missing module and a bus error."""
    failed = Run(tmp_path / "run")
    failed.directory.mkdir()
    failed.stdout.write_text("srun: error: node2: task 289: Bus error\n")
    failed.stderr.write_text("ModuleNotFoundError: No module named 'zarr'\n")
    return failed


def rules(run: Run) -> list[str]:
    return [cause.rule for cause in read_causes(run)]


def test_both_logs_are_searched(run: Run) -> None:
    assert rules(run) == ["HD150", "HD132"]


def test_findings_of_the_job_come_first_and_once(run: Run) -> None:
    run.stderr.write_text("OSError: [Errno 28] No space left on device: '/dev/shm/x'\n")
    run.write("findings", {"schema": "hidl.findings/1", "findings": [FULL.to_json(), NOTE.to_json()]})
    assert rules(run)[0] == "HD041"
    assert rules(run).count("HD041") == 1


def test_warnings_of_the_job_come_after_errors(run: Run) -> None:
    run.write("findings", {"schema": "hidl.findings/1", "findings": [UNBOUND.to_json()]})
    assert rules(run) == ["HD150", "HD132", "HD046"]


def test_info_findings_are_not_causes(run: Run) -> None:
    run.write("findings", {"schema": "hidl.findings/1", "findings": [NOTE.to_json()]})
    assert "HD045" not in rules(run)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"findings": 3}', '{"findings": [{"rule": "HD041"}]}', '{"findings": ["HD041"]}']
)
def test_invalid_findings_are_ignored(run: Run, text: str) -> None:
    (run.directory / "findings.json").write_text(text)
    assert rules(run) == ["HD150", "HD132"]


@pytest.mark.parametrize(
    ("ranks", "overhead", "once", "found"),
    [(1, 0, False, []), (3, 2, False, []), (2, 0, False, ["HD641"]), (4, 2, False, ["HD641"]), (1, 0, True, ["HD641"])],
)
def test_a_single_worker_may_train_alone(run: Run, ranks: int, overhead: int, once: bool, found: list[str]) -> None:
    """Two of Dask's ranks do not train, and a batch script starts an unknown number of them."""
    run.stdout.write_text("[LightGBM] [Info] Local rank: 0, total number of machines: 1\n")
    run.stderr.write_text("")
    assert rules(run) == ["HD641"]
    steps = [{"placement": {"ranks": each}} for each in (1, ranks)]
    workload = {"program": {"once": once}, "overhead_ranks": overhead}
    run.write("plan", {"steps": steps, "workload": workload})
    assert rules(run) == found


def test_causes_are_written_once(run: Run) -> None:
    write_causes(run)
    run.stderr.write_text("nothing\n")
    write_causes(run)
    assert rules(run) == ["HD150", "HD132"]
    assert read_json(run.directory / "causes.json")["schema"] == "hidl.causes/1"


def test_a_run_without_logs_has_no_causes(tmp_path: Path) -> None:
    assert read_causes(Run(tmp_path)) == []


def test_only_the_end_of_a_large_log_is_read(run: Run) -> None:
    with run.stdout.open("w") as log:
        log.write("No space left on device\n")
        log.writelines("all is well, as it was before\n" for _ in range(10**6 // 3))  # 10 MB
        log.write("srun: error: node2: task 289: Bus error\n")
    assert rules(run) == ["HD150", "HD132"]


def test_invalid_utf8_does_not_hide_a_cause(run: Run) -> None:
    run.stderr.write_bytes(b"\xff\xfe\x00 rank 3: \xc3( No space left on device\n")
    assert "HD170" in rules(run)


@pytest.mark.parametrize("file", HEALTHY, ids=lambda file: file.stem)
def test_healthy_runs_match_nothing(file: Path) -> None:
    assert find_causes(file.read_text(encoding="utf-8")) == []


def test_a_consequence_is_not_reported_beside_its_cause() -> None:
    text = "srun: error: node1: task 3: Killed\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup."
    assert [cause.rule for cause in find_causes(text)] == ["HD105"]


def test_errors_come_before_warnings_then_by_position() -> None:
    text = "\n".join(
        (
            "distributed.worker.memory - WARNING - Worker is at 89% memory usage. Pausing worker.",
            "OSError: [Errno 122] Disk quota exceeded: '/home/a/x'",
            "ModuleNotFoundError: No module named 'zarr'",
        )
    )
    assert [cause.rule for cause in find_causes(text)] == ["HD171", "HD150", "HD223"]


def test_a_cause_is_reported_once_with_its_line_and_fix() -> None:
    (cause,) = find_causes("ModuleNotFoundError: No module named 'zarr'\n" * 8)
    assert cause.seen == "ModuleNotFoundError: No module named 'zarr'"
    assert "add zarr to a stack" in cause.fix


def test_output_in_a_fix_is_quoted_for_the_shell() -> None:
    (cause,) = find_causes("execvp error on file /tmp/x; rm -rf ~ $(id) (No such file or directory)")
    assert "check that '/tmp/x; rm -rf ~ $(id)' is spelled correctly" in cause.fix


def test_escape_sequences_are_escaped() -> None:
    (cause,) = find_causes("\x1b]0;owned\x07execvp error on file \x1b[2J\u202e/bin/x (No such file or directory)")
    assert (cause.seen + cause.fix).isprintable()
    assert "\\x1b[2J" in cause.seen


def test_where_is_the_host_in_the_text() -> None:
    (cause,) = find_causes("ssh: connect to host node2 port 22: Connection refused")
    assert cause.where == "node2"


def test_a_long_line_is_clipped_around_the_match() -> None:
    (cause,) = find_causes("x" * 10**6 + " No space left on device " + "y" * 10**5)
    assert "No space left on device" in cause.seen
    assert len(cause.seen) <= 300


def test_only_the_end_of_a_long_text_is_searched() -> None:
    assert find_causes("No space left on device\n" + "all is well\n" * (MAX_TEXT // 12)) == []

"""What a run printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.commands import follow
from hidl_cli.plan.launch_plan import create_run
from tests.conftest import Hidl
from tests.store.run_directories import ended, plan


@pytest.mark.parametrize(
    ("printed", "complained", "shown"),
    [("", "Traceback\n", True), ("all is well\n", "a warning\n", False), ("", "", False)],
)
def test_who_sees_nothing_is_reported_where_the_complaints_are(
    hidl: Hidl, printed: str, complained: str, shown: bool
) -> None:
    run = create_run(plan(run="20260101-000000-toy-0001"), "", root=hidl.runs)
    ended(run, "FAILED")
    run.stdout.write_text(printed)
    run.stderr.write_text(complained)

    told = hidl("logs")

    assert told.stdout == printed
    assert (f"hidl logs --stderr {run.id}" in told.stderr) == shown


def test_a_secret_is_hidden_if_its_name_is_anywhere_in_a_log(hidl: Hidl) -> None:
    run = create_run(plan(run="20260101-000000-toy-0001"), "", root=hidl.runs)
    ended(run, "FAILED")
    run.stderr.write_text("password: correct-horse-4711\n" + "a warning\n" * 30_000)
    run.stdout.write_text("sent correct-horse-4711\n")
    assert hidl("logs").stdout == "sent ***\n"


def test_output_that_is_left_out_is_searched_for_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(follow, "say", said.append)
    run = create_run(plan(run="20260101-000000-toy-0001"), "", root=tmp_path)
    tail = follow._Tail(run)
    lines = "a line\n" * 9000
    run.stdout.write_text(f"password: correct-horse-4711\n{lines}--token q7Zr8Kp2Wm5Xv9Tb4")
    tail.show_new()
    with run.stdout.open("a") as log:
        log.write(f"Nc6Jd1Lf3\n{lines}"[: tail.LIMIT + 4] + "\nsent correct-horse-4711\n")
    tail.show_new()
    assert said[-1] == "sent ***"
    assert not [line for line in said if "Nc6" in line or "Jd1" in line or "f3" in line]

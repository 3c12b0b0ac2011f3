"""What a run printed."""

from __future__ import annotations

import pytest

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

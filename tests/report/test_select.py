"""Which runs a report is about."""

from __future__ import annotations

from datetime import datetime, timezone

import example
import pytest

from hidl_cli.errors import UsageError
from hidl_cli.record.run import Run
from hidl_cli.record.state import State
from hidl_cli.report.select import chosen, in_words, loaded, since
from hidl_cli.runs.prepare import Request

NOW = datetime(2026, 9, 10, 12, tzinfo=timezone.utc)
PINGPONG = Request("pingpong", nodes=2)


@pytest.fixture
def runs(nights: example.Nights) -> list[Run]:
    """Five nights, the newest first: pingpong, and matmul in the third."""
    made = [nights.run(PINGPONG, night, nights.pingpong()) for night in (0, 1)]
    made.append(nights.run(Request("matmul", nodes=2), 2, nights.products({})))
    return [*made, *(nights.run(PINGPONG, night, nights.pingpong()) for night in (3, 4))][::-1]


def test_all_runs_are_reported_on_the_newest_first(runs: list[Run], nights: example.Nights) -> None:
    assert chosen([], root=nights.root) == runs


def test_named_runs_are_in_the_order_of_time_and_each_once(runs: list[Run], nights: example.Nights) -> None:
    names = [runs[3].id, str(runs[0].directory), runs[3].id]
    assert chosen(names, root=nights.root) == [runs[0], runs[3]]


def test_a_workload_a_site_and_a_time_leave_those_that_fit(runs: list[Run], nights: example.Nights) -> None:
    assert chosen([], workload="matmul", root=nights.root) == [runs[2]]
    assert chosen([], site="elsewhere", root=nights.root) == []
    assert chosen([], since=datetime(2026, 9, 3, tzinfo=timezone.utc), root=nights.root) == runs[:3]


def test_the_newest_of_those_that_fit_are_taken(runs: list[Run], nights: example.Nights) -> None:
    assert chosen([], workload="pingpong", most=3, root=nights.root) == [runs[0], runs[1], runs[3]]


def test_a_directory_that_is_no_run_is_left_out(runs: list[Run], nights: example.Nights) -> None:
    (runs[0].directory / "plan.json").write_text("{}")
    assert chosen([], root=nights.root) == runs[1:]


def test_a_run_that_cannot_be_read_is_told(runs: list[Run]) -> None:
    (runs[0].directory / "status.json").write_text("no JSON")
    found, notes = loaded(runs)
    assert [each.run for each in found] == runs[1:]
    assert any(runs[0].id in note and "status.json cannot be read" in note for note in notes)


def test_a_run_that_ended_while_nobody_followed_it_is_judged(runs: list[Run]) -> None:
    (runs[0].directory / "verdict.json").unlink()
    (found, *_), _notes = loaded(runs[:1])
    assert found.verdict["reason"] == "one size only: there is no scaling to judge"


def test_a_job_whose_scheduler_is_not_here_is_shown_as_it_was_said_last(nights: example.Nights) -> None:
    run = nights.run(PINGPONG, 0, nights.pingpong(), state=State.RUNNING)
    (run.directory / "job.json").unlink()
    (found,), _ = loaded([run])
    assert found.status.state is State.RUNNING


@pytest.mark.parametrize(
    ("words", "time"),
    [
        ("2026-09-01", datetime(2026, 9, 1, tzinfo=timezone.utc)),
        ("2026-09-01T12:30", datetime(2026, 9, 1, 12, 30, tzinfo=timezone.utc)),
        ("12h", datetime(2026, 9, 10, 0, tzinfo=timezone.utc)),
        ("9d", datetime(2026, 9, 1, 12, tzinfo=timezone.utc)),
        ("1w", datetime(2026, 9, 3, 12, tzinfo=timezone.utc)),
    ],
)
def test_a_time_is_a_date_or_so_long_ago(words: str, time: datetime) -> None:
    assert since(words, NOW) == time


@pytest.mark.parametrize("words", ["yesterday", "", "5", "5m", "-1d", "2026-13-01", "9999999d"])
def test_another_word_is_no_time(words: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        since(words, NOW)


@pytest.mark.parametrize("words", ["99999w", "99999d"])
def test_the_beginning_of_all_times_is_no_error(words: str) -> None:
    assert since(words, NOW) < NOW


def test_the_title_says_what_was_chosen() -> None:
    assert in_words([], "example", "matmul", "30d") == "matmul on example since 30d"
    assert in_words([], None, None, None) == "all workloads on all sites"
    assert in_words(["a", "b"], "example", None, None) == "a, b"
    assert in_words(list("abcd"), None, None, None) == "4 chosen runs"

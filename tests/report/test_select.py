"""Which runs a report is about."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from hidl_cli.plan.options import RunRequest
from hidl_cli.record import Run, State
from hidl_cli.report.build import page_of
from hidl_cli.report.html import to_html
from hidl_cli.report.model import Outcome, format_selection, load, load_runs, related_runs, select_runs
from hidl_cli.store.extract import record_of
from hidl_cli.store.store import Store
from tests.report import example

PINGPONG = RunRequest("pingpong", nodes=2)


@pytest.fixture
def runs(nights: example.Nights) -> list[Run]:
    """Five nights, the newest first: pingpong, and matmul in the third."""
    made = [nights.run(PINGPONG, night, nights.pingpong()) for night in (0, 1)]
    made.append(nights.run(RunRequest("matmul", nodes=2), 2, nights.products({})))
    return [*made, *(nights.run(PINGPONG, night, nights.pingpong()) for night in (3, 4))][::-1]


def test_all_runs_are_reported_on_the_newest_first(runs: list[Run], nights: example.Nights) -> None:
    assert select_runs([], root=nights.root) == runs


def test_named_runs_are_in_the_order_of_time_and_each_once(runs: list[Run], nights: example.Nights) -> None:
    names = [runs[3].id, str(runs[0].directory), runs[3].id]
    assert select_runs(names, root=nights.root) == [runs[0], runs[3]]


def test_a_workload_a_site_and_a_time_leave_those_that_fit(runs: list[Run], nights: example.Nights) -> None:
    assert select_runs([], workload="matmul", root=nights.root) == [runs[2]]
    assert select_runs([], site="elsewhere", root=nights.root) == []
    assert select_runs([], since=datetime(2026, 9, 3, tzinfo=timezone.utc), root=nights.root) == runs[:3]


def test_the_newest_of_those_that_fit_are_taken(runs: list[Run], nights: example.Nights) -> None:
    assert select_runs([], workload="pingpong", most=3, root=nights.root) == [runs[0], runs[1], runs[3]]


def test_a_directory_that_is_not_a_run_is_left_out(runs: list[Run], nights: example.Nights) -> None:
    (runs[0].directory / "plan.json").write_text("{}")
    assert select_runs([], root=nights.root) == runs[1:]


def test_a_run_that_cannot_be_read_is_reported(runs: list[Run]) -> None:
    (runs[0].directory / "plan.json").write_text("no JSON")
    found, notes = load_runs(runs)
    assert [each.run for each in found] == runs[1:]
    assert any(f"run {runs[0].id} is not shown: " in note for note in notes)


def test_a_run_whose_status_cannot_be_read_is_shown(runs: list[Run]) -> None:
    (runs[0].directory / "status.json").write_text("no JSON")
    found, _ = load_runs(runs)
    assert [each.run for each in found] == runs
    assert not found[0].status.state.is_final


def test_a_run_that_ended_while_nobody_followed_it_is_judged(runs: list[Run]) -> None:
    (runs[0].directory / "verdict.json").unlink()
    (found, *_), _notes = load_runs(runs[:1])
    assert found.verdict["reason"] == "one size only: scaling not evaluated"


def test_a_directory_that_was_copied_is_left_as_it_is(nights: example.Nights, tmp_path: Path) -> None:
    ended = nights.run(PINGPONG, 0, nights.pingpong())
    (ended.directory / "verdict.json").unlink()
    copied = Run(ended.directory.rename(tmp_path / ended.id))
    (found,), notes = load_runs([copied])
    assert (found.outcome, notes) == (Outcome.UNJUDGED, [])
    assert copied.document("verdict") is None


def test_a_scheduler_that_does_not_answer_is_reported(nights: example.Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    run = nights.run(PINGPONG, 0, nights.pingpong(), state=State.RUNNING)
    monkeypatch.setenv("PATH", "/nowhere")
    (found,), _ = load_runs([run])
    assert found.outcome is Outcome.ACTIVE
    assert str(found.status.reason).startswith("Slurm has not responded")


def test_a_job_whose_scheduler_is_not_here_is_shown_as_it_was_said_last(nights: example.Nights) -> None:
    run = nights.run(PINGPONG, 0, nights.pingpong(), state=State.RUNNING)
    (run.directory / "job.json").unlink()
    (found,), _ = load_runs([run])
    assert found.status.state is State.RUNNING


class TestKindred:
    @pytest.fixture
    def store(self, runs: list[Run], tmp_path: Path) -> Store:
        store = Store(tmp_path / "results.sqlite")
        store.add(record_of(run) for run in runs)
        return store

    def ids(self, runs: list[Run], store: Store) -> set[str]:
        return {run.run.id for run in related_runs([load(run) for run in runs], store)}

    def test_a_runs_history_is_what_ran_before_of_its_kind(self, runs: list[Run], store: Store) -> None:
        assert self.ids([runs[1]], store) == {runs[3].id, runs[4].id}

    def test_a_run_that_is_shown_is_not_related(self, runs: list[Run], store: Store) -> None:
        assert self.ids(runs, store) == set()

    def test_a_run_whose_directory_is_gone_is_left_out(self, runs: list[Run], store: Store) -> None:
        (runs[4].directory / "plan.json").unlink()
        assert self.ids([runs[1]], store) == {runs[3].id}

    def test_no_store_knows_no_run(self, runs: list[Run], tmp_path: Path) -> None:
        assert self.ids(runs, Store(tmp_path / "none.sqlite")) == set()

    def test_they_make_history_and_are_not_shown_by_themselves(self, runs: list[Run], store: Store) -> None:
        shown = [load(runs[0])]
        page = page_of(
            shown,
            related=related_runs(shown, store),
            detect=lambda values, days: (),
            generated="2026-10-20T06:00:00+00:00",
            hidl="1",
            selection="",
        )
        assert [run.id for run in page.runs] == [runs[0].id]
        assert [len(trend.points) for trend in page.trends] == [4, 4]
        assert (page.standings[0].in_a_row, page.standings[0].since[:10]) == (4, "2026-09-01")
        assert f'href="#run-{runs[4].id}"' not in to_html(page)


def test_the_title_says_what_was_chosen() -> None:
    assert format_selection([], "example", "matmul", "30d") == "matmul on example since 30d"
    assert format_selection([], None, None, None) == "all workloads on all sites"
    assert format_selection(["a", "b"], "example", None, None) == "a, b"
    assert format_selection(list("abcd"), None, None, None) == "4 chosen runs"

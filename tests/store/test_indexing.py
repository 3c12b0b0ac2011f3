"""The index follows the run directories: what is new is found by name, and a rebuild gives the same."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import floats, integers

from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import create_run
from hidl_cli.record import Run, State, Status
from hidl_cli.runs.history import refresh
from hidl_cli.store import index as indexing
from hidl_cli.store.index import index_run
from hidl_cli.store.store import Store
from tests.store.run_directories import ended, judged, of_another_version, plan

update = partial(indexing.update, judge=refresh)
reindex = partial(indexing.reindex, judge=refresh)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's run directories."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("HIDL_RESULTS", raising=False)
    return tmp_path / "state" / "hidl" / "runs"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results.sqlite")


def values(store: Store) -> list[float]:
    return sorted(sample.value for sample in store.samples())


def everything(store: Store) -> list[str]:
    runs = [repr(asdict(run)) for run in store.runs()]
    return sorted([*runs, *(repr(asdict(sample)) for sample in store.samples())])


def test_new_directories_are_indexed(root: Path, store: Store) -> None:
    judged(root, 1)
    assert update(store).added == 1
    judged(root, 2)
    assert (update(store).added, values(store)) == (1, [1, 2])


def test_known_directories_are_not_read_again(root: Path, store: Store) -> None:
    run = judged(root, 1)
    update(store)
    (run.directory / "plan.json").write_text("no plan any more")
    assert (update(store).foreign, values(store)) == (0, [1])


def test_a_directory_is_new_whatever_the_clock_says(root: Path, store: Store) -> None:
    judged(root, 2, created="2026-01-01T00:00:00+00:00")
    update(store)
    run = judged(root, 1, created="1999-12-31T23:59:59+00:00")
    os.utime(run.directory, (0, 0))
    update(store)
    assert [sample.value for sample in store.samples()] == [1, 2]


def test_runs_of_another_version_are_counted_and_left_out(root: Path, store: Store) -> None:
    judged(root, 1)
    of_another_version(root, "x")
    assert [update(store).foreign, update(store).foreign] == [1, 1]
    assert values(store) == [1]


def test_what_another_version_did_not_understand_is_read_again(
    root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_another_version(root, "x")
    update(store)
    shutil.rmtree(root / "x")
    judged(root, 1).directory.rename(root / "x")
    assert update(store).added == 0
    monkeypatch.setattr(indexing, "_READS", "hidl.plan/next")
    assert update(store).added == 1


def test_a_running_job_is_checked_until_it_ends(root: Path, store: Store) -> None:
    run = create_run(plan(), "", root=root)
    other = root.parent / "elsewhere"
    root.rename(other)
    assert update(store, other).unfinished == 1
    ended(Run(other / run.id), "FAILED")
    assert update(store, other).unfinished == 0
    assert store.known(str(other)) == {run.id: "ended"}


def test_a_run_that_seemed_to_have_ended_and_came_back_is_among_the_results(root: Path, store: Store) -> None:
    run = judged(root, 1)
    verdict = run.document("verdict")
    assert verdict is not None
    (run.directory / "verdict.json").unlink()
    ended(run, "LOST")
    assert update(store).added == 0
    ended(run, "COMPLETED")
    run.write("verdict", verdict)
    assert (update(store).added, update(store).added) == (1, 0)


def test_a_job_that_waits_again_has_not_ended_by_the_word_of_its_first_attempt(root: Path, store: Store) -> None:
    run = create_run(plan(), "", root=root)
    ended(run, "CANCELLED")
    waiting = partial(indexing.update, judge=lambda runs: [Status(State.PENDING) for _ in runs])
    assert (waiting(store).unfinished, store.known(str(root))) == (1, {})


def test_what_is_not_a_run_directory_is_passed_over(root: Path, store: Store) -> None:
    root.mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "file").write_text("")
    (root / ".hidden").mkdir()
    update(store)
    assert store.known(str(root)) == {}


def test_only_reindex_forgets_missing_directories(root: Path, store: Store) -> None:
    judged(root, 2)
    gone = judged(root, 3)
    update(store)
    shutil.rmtree(gone.directory)
    update(store)
    assert values(store) == [2, 3]
    assert (reindex(store).gone, values(store)) == (1, [2])


def test_a_root_that_is_gone_keeps_its_runs_unless_it_is_named(root: Path, store: Store, tmp_path: Path) -> None:
    other = tmp_path / "other"
    judged(other, 1)
    judged(root, 2)
    reindex(store, [other, root])
    other.rename(tmp_path / "unmounted")
    assert (reindex(store).unlistable, values(store)) == ([other], [1, 2])
    assert (reindex(store, [other]).gone, values(store)) == (1, [2])


def test_this_users_own_runs_are_kept_too(root: Path, store: Store) -> None:
    judged(root, 1)
    update(store)
    shutil.rmtree(root)
    assert (reindex(store).unlistable, values(store)) == ([root], [1])


def test_reindex_reads_every_root_that_is_known(root: Path, store: Store, tmp_path: Path) -> None:
    other = tmp_path / "other"
    judged(other, 1)
    update(store, other)
    judged(other, 2)
    judged(root, 3)
    reindex(store)
    assert values(store) == [1, 2, 3]


def test_reindex_repairs_what_is_wrong(root: Path, store: Store) -> None:
    judged(root, 1)
    update(store)
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute("UPDATE samples SET value = 77")
        connection.commit()
    reindex(store)
    assert values(store) == [1]


def test_a_directory_that_cannot_be_read_now_keeps_what_is_known_of_it(root: Path, store: Store) -> None:
    run = judged(root, 1)
    update(store)
    (run.directory / "plan.json").unlink()
    (run.directory / "plan.json").symlink_to("plan.json")
    assert (reindex(store).unreadable, values(store)) == (1, [1])


def test_a_store_that_is_lost_is_rebuilt(root: Path, store: Store) -> None:
    judged(root, 1)
    update(store)
    before = everything(store)
    store.file.unlink()
    reindex(store)
    assert everything(store) == before


def test_a_store_of_an_earlier_version_is_filled_again_from_all_its_roots(
    root: Path, store: Store, tmp_path: Path
) -> None:
    judged(root, 1)
    judged(tmp_path / "other", 2)
    reindex(store, [root, tmp_path / "other"])
    with closing(sqlite3.connect(store.file)) as connection:
        connection.executescript("DROP VIEW results; DROP TABLE samples; PRAGMA user_version = 0")
    index_run(judged(root, 3))
    update(store)
    assert values(store) == [1, 2, 3]


def test_what_an_earlier_version_knew_is_not_forgotten_by_an_interrupt(
    root: Path, store: Store, tmp_path: Path
) -> None:
    judged(tmp_path / "other", 2)
    reindex(store, [tmp_path / "other"])
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute("PRAGMA user_version = 0")
    store.renew()
    assert values(store) == []
    reindex(store)
    assert values(store) == [2]


def test_two_that_renew_it_at_once_empty_it_once(root: Path, store: Store) -> None:
    judged(root, 1)
    update(store)
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute("PRAGMA user_version = 0")
    store.renew()
    update(store)
    store.renew()
    assert values(store) == [1]


def test_a_run_is_indexed_once_it_is_judged(root: Path) -> None:
    index_run(judged(root, 1))
    assert (values(Store()), Store().file) == ([1], root.parent / "results.sqlite")


def test_the_store_lies_where_it_is_said(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "group").mkdir()
    monkeypatch.setenv("HIDL_RESULTS", str(tmp_path / "group"))
    index_run(judged(root, 1))
    assert (tmp_path / "group" / "results.sqlite").is_file()
    monkeypatch.setenv("HIDL_RESULTS", str(tmp_path / "group" / "ours.db"))
    index_run(judged(root, 2))
    assert values(Store()) == [2]


def test_a_store_that_cannot_be_used_harms_no_run(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = judged(root, 1)
    Store().file.write_bytes(b"something else" * 100)
    index_run(run)
    assert "is complete but not yet indexed" in caplog.text
    assert "hidl results reindex" in caplog.text


def test_a_place_that_cannot_be_is_reported(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    judged(root, 1)
    with pytest.raises(HidlError, match="cannot write"):
        update(Store(tmp_path / "file" / "results.sqlite"))


def test_progress_is_reported(root: Path, store: Store) -> None:
    for value in range(3):
        judged(root, value)
    told: list[tuple[int, int]] = []
    update(store, on_progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


class Life(RuleBasedStateMachine):
    """Runs come, are judged again, are moved and go, in any order; sometimes the index is brought up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(_TEMPORARY[0]) / f"life{next(_NUMBERS)}"
        self.root = self.place / "runs"
        self.root.mkdir(parents=True)
        self.store = Store(self.place / "results.sqlite")

    @rule(value=floats(0, 10), size=integers(1, 3))
    def a_run_is_judged(self, value: float, size: int) -> None:
        judged(self.root, value, sizes=(size,))

    @rule(value=floats(0, 10))
    def a_run_is_judged_and_indexed(self, value: float) -> None:
        self.store.add([indexing.record_of(judged(self.root, value))])

    @rule()
    def another_version_runs(self) -> None:
        of_another_version(self.root, f"foreign{next(_NUMBERS)}")

    @rule(which=integers(0, 5))
    def a_run_is_moved(self, which: int) -> None:
        for run in sorted(self.root.iterdir())[which : which + 1]:
            run.rename(self.root / f"moved{next(_NUMBERS)}")

    @rule()
    def the_index_is_brought_up_to_date(self) -> None:
        update(self.store, self.root)

    @rule()
    def the_index_is_made_anew(self) -> None:
        reindex(self.store, [self.root])

    @invariant()
    def up_to_date_is_the_same_as_made_anew(self) -> None:
        update(self.store, self.root)
        fresh = Store(self.place / "fresh.sqlite")
        fresh.file.unlink(missing_ok=True)
        reindex(fresh, [self.root])
        assert everything(self.store) == everything(fresh)


_TEMPORARY: list[Path] = []
_NUMBERS = iter(range(10**9))


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path) -> None:
    _TEMPORARY[:] = [tmp_path]


Life.TestCase.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
TestLife = pytest.mark.deep(pytest.mark.usefixtures("_temporary")(Life.TestCase))

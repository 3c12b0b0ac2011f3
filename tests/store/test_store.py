"""The store gives back what it was given, filtered and in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hidl_cli.analysis.samples import Sample
from hidl_cli.errors import UsageError
from hidl_cli.store.extract import RunWithSamples
from hidl_cli.store.store import Filters, Store
from tests.store.records import record

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
#: SQLite keeps no negative zero.
NUMBER = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results.sqlite")


def values(store: Store, **filters: Any) -> list[float]:
    return [sample.value for sample in store.samples(Filters(**filters))]


@st.composite
def records(draw: st.DrawFn) -> list[RunWithSamples]:
    """Runs with steps and metrics of any names and values, planned at any time."""
    made = []
    for name in draw(st.lists(TEXT, max_size=4, unique=True)):
        created = draw(st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(timezone.utc)))
        one = record(
            name,
            created=created.isoformat(timespec="seconds"),
            workload=draw(st.sampled_from(["toy", "other"])),
            site=draw(TEXT),
            tuning=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
            verdict=draw(st.sampled_from(["pass", "fail", None])),
        )
        key = st.tuples(st.integers(1, 3), st.sampled_from(["rate", "loss", "ü"]), st.none() | st.integers(0, 3))
        samples = []
        steps = draw(st.lists(key, max_size=6, unique=True))
        for step, metric, rank in steps:
            measured: dict[str, Any] = {"repetition": step, "series": f"s{step}", "hosts": (f"n{step}", "ü")}
            samples.append(replace(one.samples[0], **measured, metric=metric, rank=rank, value=draw(NUMBER)))
        # names may contain `/` here, and two directories that differ in `/` only are the same
        directory = f"/runs/{len(made)}"
        made.append(replace(one, directory=directory, samples=tuple(samples), steps=tuple(key[0] for key in steps)))
    return made


def of(found: Sequence[Sample]) -> list[str]:
    return sorted(repr(asdict(sample)) for sample in found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(records(), st.data())
def test_what_went_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, runs: list[RunWithSamples], data: st.DataObject
) -> None:
    store = Store(tmp_path_factory.mktemp("store") / "results.sqlite")
    store.add(runs)
    samples = [sample for run in runs for sample in run.samples]
    assert of(list(store.samples())) == of(samples)
    wanted = {
        name: data.draw(st.none() | st.sampled_from(sorted({getattr(sample, name) for sample in samples}) or [""]))
        for name in ("run", "workload", "site", "series", "metric")
    }
    fitting = [s for s in samples if all(v is None or getattr(s, name) == v for name, v in wanted.items())]
    assert of(list(store.samples(Filters(**wanted)))) == of(fitting)


@given(st.permutations(range(6)))
@settings(deadline=None, max_examples=15)
def test_the_oldest_run_comes_first_whenever_it_was_indexed(
    tmp_path_factory: pytest.TempPathFactory, order: list[int]
) -> None:
    store = Store(tmp_path_factory.mktemp("store") / "results.sqlite")
    for day in order:
        store.add([record(f"run{day}", [day], created=f"2026-01-0{day + 1}T00:00:00+00:00")])
    assert values(store) == values(store, series="s1", metric="rate") == [0, 1, 2, 3, 4, 5]
    assert [run.run for run in store.runs(limit=2)] == ["run5", "run4"]


def test_a_time_of_another_zone_has_its_place(store: Store) -> None:
    store.add([record("late", [2], created="2026-01-01T01:00:00+00:00")])
    store.add([record("early", [1], created="2026-01-01T02:00:00+05:00")])
    assert values(store) == [1, 2]


def test_adding_a_run_again_changes_nothing(store: Store) -> None:
    store.add([record("a", [1, 2]), record("b", [3])])
    store.add([record("a", [1, 2])])
    assert (values(store), store.count()) == ([1, 2, 3], (2, 3))


def test_a_run_that_changed_takes_its_own_place(store: Store) -> None:
    store.add([record("a", [1, 2])])
    store.add([record("a", [5])])
    assert values(store) == [5]


def test_a_copy_of_a_run_is_left_out(store: Store, tmp_path: Path) -> None:
    (tmp_path / "here" / "a").mkdir(parents=True)
    store.add([record("a", [1], root=str(tmp_path / "here"))])
    assert store.add([record("a", [1], root=str(tmp_path / "there"))]) == 0
    assert store.runs()[0].directory == str(tmp_path / "here" / "a")


def test_a_run_that_was_moved_is_known_by_its_new_place(store: Store, tmp_path: Path) -> None:
    store.add([record("a", [1], root=str(tmp_path / "here"))])
    assert store.add([record("a", [1], root=str(tmp_path / "there"))]) == 1
    assert [run.directory for run in store.runs()] == [str(tmp_path / "there" / "a")]


def test_dropped_runs_leave_nothing_behind(store: Store) -> None:
    store.add([record("a"), record("b", metric="loss", series="s2", hosts=["other"])])
    store.drop("/runs", ["b"])
    store.purge()
    with store.database.reading() as connection:
        tables = ("runs", "samples", "steps", "series", "metrics", "hosts", "host_lists", "directories")
        counts = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    assert set(counts.values()) == {1}


def test_a_host_finds_the_steps_that_ran_on_it(store: Store) -> None:
    store.add([record("a", [1], hosts=["n1", "n2"]), record("b", [2], hosts=["n2"]), record("c", [3], hosts=["n3"])])
    assert values(store, host="n2") == [1, 2]


def test_times_bound_a_query(store: Store) -> None:
    store.add([record(f"r{day}", [day], created=f"2026-01-0{day}") for day in range(1, 6)])
    since, until = datetime(2026, 1, 2, tzinfo=timezone.utc), datetime(2026, 1, 4, tzinfo=timezone.utc)
    assert values(store, since=since, until=until) == [2, 3, 4]
    assert values(store, since=since, until=until, series="s1", metric="rate") == [2, 3, 4]


def test_values_of_single_ranks_can_be_left_out(store: Store) -> None:
    whole = record("a", [1])
    store.add([replace(whole, samples=(*whole.samples, replace(whole.samples[0], rank=3, value=7)), steps=(1, 1))])
    assert (values(store), values(store, of_ranks=False)) == ([1, 7], [1])


def test_a_long_series_comes_whole_though_it_is_read_in_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hidl_cli.store.store._PAGE", 7)
    monkeypatch.setattr("hidl_cli.store.store._RUNS", 3)
    store.add([record(f"r{number:02}", [number, number + 0.5]) for number in range(50)])
    assert values(store, series="s1", metric="rate") == values(store) == [half / 2 for half in range(100)]


def test_a_metric_whose_unit_changed_is_one(store: Store) -> None:
    for number in range(4):
        run = record(f"r{number}", [number], created=f"2026-01-0{number + 1}")
        store.add([replace(run, samples=(replace(run.samples[0], unit="ab"[number % 2]),))])
    found = [(sample.value, sample.unit) for sample in store.samples(Filters(series="s1", metric="rate"))]
    assert found == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]


def test_a_reader_that_stands_still_holds_up_no_writer(store: Store) -> None:
    store.add([record(f"r{number}", [number]) for number in range(300)])
    reader = store.samples()
    next(reader)
    Store(store.file, at_most=0).add([record("late", [1000])])
    assert len(list(reader)) >= 299


def test_series_are_summed_up(store: Store) -> None:
    store.add([record(f"r{day}", [1, 2], created=f"2026-01-0{day}T00:00:00+00:00") for day in (1, 3, 2)])
    store.add([record("other", workload="other", series="s2", created="2025-01-01T00:00:00+00:00")])
    first, second = store.series()
    assert (first.series, first.count, first.first, first.last) == (
        "s1",
        6,
        "2026-01-01T00:00:00+00:00",
        "2026-01-03T00:00:00+00:00",
    )
    assert (second.workload, second.parameters, second.ranks) == ("other", {"batch": 8}, 2)
    assert [each.series for each in store.series(Filters(workload="other"))] == ["s2"]
    since = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(days=1)
    assert [each.count for each in store.series(Filters(since=since))] == [4]


def test_a_store_that_is_not_there_is_empty(store: Store) -> None:
    assert (values(store), store.runs(), store.series(), store.count(), store.roots()) == ([], [], [], (0, 0), [])
    assert not store.file.exists()


@pytest.mark.parametrize("name", [None, "last", "new", "20260102-new", "20260102"])
def test_a_run_is_found_by_either_end_of_its_id(store: Store, name: str | None) -> None:
    store.add([record("20260101-old"), record("20260102-new", created="2026-01-02")])
    assert store.find(name).run == "20260102-new"


@pytest.mark.parametrize(("name", "told"), [("none", "no results for run 'none'"), ("2026", "2 results match '2026'")])
def test_a_name_that_fits_none_or_several_is_reported(store: Store, name: str, told: str) -> None:
    store.add([record("20260101-old"), record("20260102-new")])
    with pytest.raises(UsageError, match=told):
        store.find(name)


def test_the_group_may_write_where_the_umask_lets_it(store: Store) -> None:
    import os

    before = os.umask(0o002)
    try:
        store.add([record("a")])
    finally:
        os.umask(before)
    assert store.file.stat().st_mode & 0o777 == 0o664


def test_the_view_has_a_column_for_each_field_of_a_sample(store: Store) -> None:
    store.add([record("a", [1.5])])
    with store.database.reading() as connection:
        rows = connection.execute("SELECT * FROM results")
        names = {column[0] for column in rows.description}
    assert names >= set(Sample.__dataclass_fields__)

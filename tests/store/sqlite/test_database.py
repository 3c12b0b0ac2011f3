"""Nothing that happens to the store's file, to its writers or to its disk loses a committed row."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hidl_cli.errors import HidlError, MissingPrecondition
from hidl_cli.runs.history import refresh
from hidl_cli.store.index import reindex
from hidl_cli.store.sqlite import VERSION, OutdatedStore, UnusableStore
from hidl_cli.store.store import Filters, Store
from tests.store.records import record
from tests.waiting import patience

REPOSITORY = Path(__file__).parents[3]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that writes to a store; none is left behind."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.store.records", *map(str, arguments)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results.sqlite")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "small", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk: mounting a tmpfs needs root ({mounted.stderr.strip()})")
    yield place
    subprocess.run(["umount", place], check=True)


def is_sound(store: Store) -> bool:
    with closing(sqlite3.connect(store.file)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("locks", [(), ("without-locks",)])
def test_eight_writers_of_which_one_is_killed_lose_no_committed_run(
    store: Store, start: Start, locks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hidl_cli.store.sqlite.locks_hold", lambda _: not locks)
    writers = [start(store.file, f"w{number}", 25, *locks) for number in range(7)]
    victim = start(store.file, "victim", 5, "stop-within", *locks)
    assert victim.stdout is not None
    told = [line.strip() for line in iter(victim.stdout.readline, "within\n")]
    victim.kill()
    written = told + [name for writer in writers for name in writer.communicate(timeout=patience(300))[0].split()]
    assert len(written) == 7 * 25 + 5
    assert {run.run for run in store.runs()} == set(written)
    assert store.count() == (180, 180 * 20)
    assert sum(sample.value for sample in store.samples()) == 180 * sum(range(20))
    assert is_sound(store)


def test_readers_go_on_while_others_write(store: Store, start: Start) -> None:
    store.add([record("first", [1])])
    writers = [start(store.file, f"w{number}", 20) for number in range(3)]
    seen = []
    while any(writer.poll() is None for writer in writers):
        runs = len(store.runs())
        samples = sum(1 for _ in store.samples(Filters(series="s1", metric="rate")))
        assert samples >= 1 + (runs - 1) * 20
        seen.append(runs)
    assert seen == sorted(seen)
    assert store.count()[0] == 61


def test_a_reader_sees_what_was_committed_though_a_writer_was_killed_within(store: Store, start: Start) -> None:
    writer = start(store.file, "w", 3, "stop-within")
    assert writer.stdout is not None
    list(iter(writer.stdout.readline, "within\n"))
    assert store.file.with_name("results.sqlite-journal").stat().st_size > 0
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert sum(sample.value for sample in store.samples()) == 3 * sum(range(20))
    assert sorted(path.name for path in store.file.parent.iterdir()) == ["results.sqlite"]


def test_a_full_disk_loses_nothing_that_was_committed(small_disk: Path) -> None:
    store = Store(small_disk / "results.sqlite")
    written: list[str] = []

    def fill() -> None:
        while True:
            name = f"r{len(written)}"
            store.add([record(name, range(20))])
            written.append(name)

    with pytest.raises(HidlError, match=r"disk is full|No space left") as told:
        fill()
    assert "free some space" in str(told.value.hint)
    assert {run.run for run in store.runs()} == set(written)
    assert len(list(store.samples())) == len(written) * 20
    assert is_sound(store)


def test_a_disk_that_has_room_again_goes_on(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 400_000)
    store = Store(small_disk / "results.sqlite")
    runs = [record(f"r{number}", range(20)) for number in range(100)]
    with pytest.raises(HidlError):
        store.add(runs)
    ballast.unlink()
    assert store.add(runs) == 100
    assert (store.count(), is_sound(store)) == ((100, 2000), True)


def test_a_store_that_cannot_be_written_can_be_read(small_disk: Path) -> None:
    store = Store(small_disk / "results.sqlite")
    store.add([record("a", [1, 2])])
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert [sample.value for sample in store.samples()] == [1, 2]
    with pytest.raises(HidlError, match=r"cannot write the results in .*: .*Read-only file system"):
        store.add([record("b")])


def test_a_damaged_file_is_reported_and_stays(store: Store) -> None:
    store.add([record(f"r{number}", range(50)) for number in range(50)])
    content = bytearray(store.file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    store.file.write_bytes(content)
    for act in (lambda: list(store.samples()), lambda: store.add([record("new")])):
        with pytest.raises(UnusableStore, match="is damaged") as told:
            act()
        assert "hidl results reindex" in str(told.value.hint)
    assert store.file.read_bytes() == content


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be read as one" * 20, b"PK\3\4" * 2000])
def test_a_file_that_is_not_a_store_is_put_aside_by_reindex_and_by_nothing_else(store: Store, content: bytes) -> None:
    store.file.write_bytes(content)
    with pytest.raises(UnusableStore, match="not an SQLite file"):
        store.runs()
    with pytest.raises(UnusableStore):
        store.add([record("a")])
    aside = reindex(store, [store.file.parent / "no runs"], judge=refresh).aside
    assert aside == store.file.with_name("results.sqlite.aside-1")
    assert aside.read_bytes() == content
    assert store.add([record("a")]) == 1


def test_the_database_of_another_program_is_left_alone(store: Store) -> None:
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE runs (theirs)")
        connection.commit()
    before = store.file.read_bytes()
    with pytest.raises(UnusableStore, match="not a results store of hidl"):
        store.add([record("a")])
    assert store.file.read_bytes() == before


def test_a_store_of_a_newer_hidl_is_left_alone(store: Store) -> None:
    store.add([record("a")])
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    for act in (store.runs, lambda: store.add([record("b")]), lambda: reindex(store, judge=refresh)):
        with pytest.raises(MissingPrecondition, match="newer hidl"):
            act()


def test_a_store_of_an_earlier_hidl_is_reported(store: Store) -> None:
    store.add([record("a")])
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION - 1}")
    with pytest.raises(OutdatedStore, match="earlier version of hidl"):
        store.runs()


def test_there_is_no_write_ahead_log(store: Store) -> None:
    store.add([record("a")])
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    store.add([record("b")])
    with store.database.reading() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert [path.name for path in store.file.parent.iterdir()] == ["results.sqlite"]


def test_an_interrupt_within_a_transaction_leaves_what_was_there(store: Store) -> None:
    store.add([record("a")])

    def interrupted() -> None:
        with store.database.writing() as connection:
            connection.execute("DELETE FROM runs")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [run.run for run in store.runs()] == ["a"]
    assert not store.database.lock.exists()


def test_threads_take_turns(store: Store) -> None:
    threads = [
        threading.Thread(target=lambda n=number: Store(store.file).add([record(f"r{n}")])) for number in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.count() == (16, 16)


@pytest.mark.parametrize("name", ["a b", "ü ?#%41", "-x"])
def test_any_name_will_do(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name / name)
    store.add([record("a")])
    assert os.listdir(tmp_path / name) == [name]  # noqa: PTH208 - the very bytes

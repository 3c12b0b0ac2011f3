"""One answer of a scheduler for all processes of hidl."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hidl_cli.errors import SchedulerUnreachable
from hidl_cli.schedulers.poller import QueryCache, Snapshot
from tests.conftest import REPOSITORY
from tests.waiting import patience


class Asked:
    """A scheduler that counts the questions, and may not answer."""

    def __init__(self) -> None:
        self.times = 0
        self.silent = False

    def __call__(self) -> list[str]:
        self.times += 1
        if self.silent:
            raise SchedulerUnreachable("it is down")
        return [f"answer {self.times}"]


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_an_answer_that_is_young_enough_is_not_asked_for_again(tmp_path: Path, asked: Asked) -> None:
    cache = QueryCache(tmp_path / "cache.json", asked)
    assert [cache.read(60).lines, cache.read(60).lines] == [("answer 1",), ("answer 1",)]


def test_an_answer_that_is_too_old_is_asked_for_again(tmp_path: Path, asked: Asked) -> None:
    cache = QueryCache(tmp_path / "cache.json", asked)
    assert [cache.read(0).lines, cache.read(0).lines] == [("answer 1",), ("answer 2",)]


def test_another_process_reads_the_same_answer(tmp_path: Path, asked: Asked) -> None:
    QueryCache(tmp_path / "cache.json", asked).read(60)
    assert (QueryCache(tmp_path / "cache.json", asked).read(60).lines, asked.times) == (("answer 1",), 1)


def test_processes_that_look_at_once_ask_once(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from hidl_cli.schedulers.poller import QueryCache
def ask():
    with open({str(tmp_path / "questions")!r}, "a") as file:
        file.write("?")
    time.sleep(0.3)
    return ["answer"]
while not Path({str(tmp_path / "go")!r}).exists():
    time.sleep(0.001)
QueryCache(Path({str(tmp_path / "cache.json")!r}), ask).read(60)
"""
    started = [subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY) for _ in range(5)]
    time.sleep(0.5)
    (tmp_path / "go").touch()
    for process in started:
        process.wait(patience(30))
    assert (tmp_path / "questions").read_text() == "?"


def test_while_nobody_answers_the_last_answer_stands(tmp_path: Path, asked: Asked) -> None:
    cache = QueryCache(tmp_path / "cache.json", asked)
    answered = cache.read(0).answered
    asked.silent = True
    snapshot = cache.read(0)
    assert (snapshot.lines, snapshot.answered, snapshot.error) == (("answer 1",), answered, "it is down")


def test_a_scheduler_that_does_not_answer_is_not_pressed(tmp_path: Path, asked: Asked) -> None:
    cache = QueryCache(tmp_path / "cache.json", asked)
    asked.silent = True
    cache.read(60)
    cache.read(60)
    assert asked.times == 1


def test_what_is_noted_keeps_its_age_for_every_process(tmp_path: Path, asked: Asked) -> None:
    QueryCache(tmp_path / "cache.json", asked).note(begun=["run-1"])
    time.sleep(0.05)
    other = QueryCache(tmp_path / "cache.json", asked)
    other.note(begun=["run-1"])
    assert other.read(0).age_of("run-1") >= 0.05


def test_what_is_over_has_no_age(tmp_path: Path, asked: Asked) -> None:
    cache = QueryCache(tmp_path / "cache.json", asked)
    cache.note(begun=["run-1"])
    cache.note(over=["run-1"])
    assert cache.read(0).age_of("run-1") == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "hidl.query-cache/1"}', '{"schema": "another", "lines": []}']
)
def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path, asked: Asked, text: str) -> None:
    (tmp_path / "cache.json").write_text(text)
    assert QueryCache(tmp_path / "cache.json", asked).read(60).lines == ("answer 1",)


def test_without_a_place_to_write_each_process_has_its_own(tmp_path: Path, asked: Asked) -> None:
    (tmp_path / "file").touch()
    cache = QueryCache(tmp_path / "file" / "cache.json", asked)
    assert [cache.read(60).lines, cache.read(60).lines] == [("answer 1",), ("answer 1",)]


def test_an_answer_of_the_future_is_not_believed(tmp_path: Path, asked: Asked) -> None:
    cache = QueryCache(tmp_path / "cache.json", asked)
    cache._own = Snapshot(asked=time.time() + 3600)
    assert cache.read(60).lines == ("answer 1",)

"""One answer of a scheduler for all processes of hidl."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hidl_cli.errors import SchedulerUnreachable
from hidl_cli.schedulers.board import Board, Snapshot
from tests.conftest import REPOSITORY


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
    board = Board(tmp_path / "board.json", asked)
    assert [board.look(60).lines, board.look(60).lines] == [("answer 1",), ("answer 1",)]


def test_an_answer_that_is_too_old_is_asked_for_again(tmp_path: Path, asked: Asked) -> None:
    board = Board(tmp_path / "board.json", asked)
    assert [board.look(0).lines, board.look(0).lines] == [("answer 1",), ("answer 2",)]


def test_another_process_reads_the_same_answer(tmp_path: Path, asked: Asked) -> None:
    Board(tmp_path / "board.json", asked).look(60)
    assert (Board(tmp_path / "board.json", asked).look(60).lines, asked.times) == (("answer 1",), 1)


def test_processes_that_look_at_once_ask_once(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from hidl_cli.schedulers.board import Board
def ask():
    with open({str(tmp_path / "questions")!r}, "a") as file:
        file.write("?")
    time.sleep(0.3)
    return ["answer"]
while not Path({str(tmp_path / "go")!r}).exists():
    time.sleep(0.001)
Board(Path({str(tmp_path / "board.json")!r}), ask).look(60)
"""
    started = [subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY) for _ in range(5)]
    time.sleep(0.5)
    (tmp_path / "go").touch()
    for process in started:
        process.wait(30)
    assert (tmp_path / "questions").read_text() == "?"


def test_while_nobody_answers_the_last_answer_stands(tmp_path: Path, asked: Asked) -> None:
    board = Board(tmp_path / "board.json", asked)
    answered = board.look(0).answered
    asked.silent = True
    snapshot = board.look(0)
    assert (snapshot.lines, snapshot.answered, snapshot.error) == (("answer 1",), answered, "it is down")


def test_a_scheduler_that_does_not_answer_is_not_pressed(tmp_path: Path, asked: Asked) -> None:
    board = Board(tmp_path / "board.json", asked)
    asked.silent = True
    board.look(60)
    board.look(60)
    assert asked.times == 1


def test_what_is_noted_keeps_its_age_for_every_process(tmp_path: Path, asked: Asked) -> None:
    Board(tmp_path / "board.json", asked).note(begun=["run-1"])
    time.sleep(0.05)
    other = Board(tmp_path / "board.json", asked)
    other.note(begun=["run-1"])
    assert other.look(0).age_of("run-1") >= 0.05


def test_what_is_over_has_no_age(tmp_path: Path, asked: Asked) -> None:
    board = Board(tmp_path / "board.json", asked)
    board.note(begun=["run-1"])
    board.note(over=["run-1"])
    assert board.look(0).age_of("run-1") == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "hidl.board/1"}', '{"schema": "another", "lines": []}'])
def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path, asked: Asked, text: str) -> None:
    (tmp_path / "board.json").write_text(text)
    assert Board(tmp_path / "board.json", asked).look(60).lines == ("answer 1",)


def test_without_a_place_to_write_each_process_has_its_own(tmp_path: Path, asked: Asked) -> None:
    (tmp_path / "file").touch()
    board = Board(tmp_path / "file" / "board.json", asked)
    assert [board.look(60).lines, board.look(60).lines] == [("answer 1",), ("answer 1",)]


def test_an_answer_of_the_future_is_not_believed(tmp_path: Path, asked: Asked) -> None:
    board = Board(tmp_path / "board.json", asked)
    board._own = Snapshot(asked=time.time() + 3600)
    assert board.look(60).lines == ("answer 1",)

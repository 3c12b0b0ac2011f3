"""How long an engine polls, by a clock that the tests set."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import REPOSITORY

MOST = 200e-6
FILE = REPOSITORY / "libs" / "mpi4dask" / "mpi4dask" / "spin.py"


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spinner(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One that has just had a message. Its module needs nothing of the stack that it is for."""
    spec = importlib.util.spec_from_file_location("spin", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.time, "perf_counter", clock)
    spinner = module.Spinner(MOST)
    spinner.until()
    return spinner


def polls(spinner: Any, clock: Clock, *gaps: float) -> float:
    """How long it polls after messages that come with these gaps."""
    until = 0.0
    for gap in gaps:
        clock.now += gap
        until = spinner.until()
    return until - clock.now


def test_answers_that_take_longer_are_waited_for(spinner: Any, clock: Clock) -> None:
    assert polls(spinner, clock, 1e-6) == pytest.approx(MOST)
    assert polls(spinner, clock, 600e-6) == pytest.approx(900e-6)
    assert polls(spinner, clock, *[50e-6, 600e-6] * 20, 50e-6) == pytest.approx(
        900e-6
    )  # in a dialogue, sent and received


def test_no_wait_is_longer_than_ten_times_the_usual(spinner: Any, clock: Clock) -> None:
    longest = max(polls(spinner, clock, 100e-6 * number) for number in range(1, 100))
    assert longest == pytest.approx(10 * MOST, rel=0.06)


def test_messages_that_come_seldom_are_not_waited_for(spinner: Any, clock: Clock) -> None:
    polls(spinner, clock, 1200e-6)
    assert polls(spinner, clock, *[0.1] * 5) == pytest.approx(MOST)


@pytest.mark.parametrize("gaps", [(1e-6,), (600e-6,) * 9, (0.1,)])
def test_where_ranks_share_cores_it_never_polls(spinner: Any, clock: Clock, gaps: tuple[float, ...]) -> None:
    shared = type(spinner)(0.0)
    shared.until()
    assert polls(shared, clock, *gaps) == 0.0


def test_a_pause_is_a_pause_for_any_wait(spinner: Any, clock: Clock) -> None:
    polls(spinner, clock, 600e-6)
    spinner.polled(clock.now, clock.now + 600e-6)
    assert polls(spinner, clock, 600e-6) < 0
    assert polls(spinner, clock, 0.01) > 0


def polls_in_vain(spinner: Any, clock: Clock, answer_after: float, *, woken: bool) -> float:
    """Send a message whose answer comes after that time; return the time that was polled for it."""
    until = spinner.until()
    spinner.sent()
    polled = max(until - clock.now, 0.0)
    if until and answer_after > polled:
        clock.now += polled
        spinner.missed()
        answer_after -= polled
    clock.now += answer_after
    if woken:
        spinner.woken()
    spinner.arrived()
    spinner.until()
    return polled


def test_polling_in_vain_takes_a_hundredth_of_the_time(spinner: Any, clock: Clock) -> None:
    begin = clock.now
    polled = sum(polls_in_vain(spinner, clock, 3e-3, woken=True) for _ in range(1000))
    assert 0.005 < polled / (clock.now - begin) < 0.015


def test_polling_that_finds_most_messages_goes_on(spinner: Any, clock: Clock) -> None:
    for number in range(1000):
        late = number % 4 == 0
        polled = polls_in_vain(spinner, clock, 3e-3 if late else 50e-6, woken=late)
        assert polled > 0


def test_polling_starts_again_when_it_would_find_messages(spinner: Any, clock: Clock) -> None:
    while polls_in_vain(spinner, clock, 3e-3, woken=True):
        pass
    assert polls_in_vain(spinner, clock, 250e-6, woken=True) == 0
    assert polls_in_vain(spinner, clock, 50e-6, woken=False) > 0

"""Interrupts of the command that starts a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hidl_cli.commands import follow as following
from hidl_cli.errors import Terminated
from hidl_cli.record import Run, State
from hidl_cli.runs import follow


class Recorder:
    """A scheduler that notes what it is asked to end."""

    def __init__(self) -> None:
        self.ended: list[State] = []
        self.interrupt: BaseException | None = None

    def submit(self, run: Run) -> None:
        """Take it, and perhaps be interrupted."""
        if self.interrupt is not None:
            raise self.interrupt

    def cancel(self, run: Run, *, state: State) -> bool:
        """Note it."""
        self.ended.append(state)
        return True


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(following, "create_run", lambda *_, **__: Run(tmp_path))
    for module in (following, follow):
        monkeypatch.setattr(module, "scheduler_of", lambda _: recorder)
    return recorder


def interrupted(monkeypatch: pytest.MonkeyPatch, scheduler: str, interrupt: BaseException, *, status: str = "") -> None:
    plan: Any = SimpleNamespace(scheduler=scheduler, allocation=SimpleNamespace(time_limit=None))
    monkeypatch.setattr(follow, "plan_of", lambda _: plan)

    def command() -> None:
        with following.started(plan, "") as run:
            if status:
                (run.directory / "status.json").write_text(status)
            raise interrupt

    with pytest.raises(type(interrupt)):
        command()


@pytest.mark.parametrize("scheduler", ["local", "slurm"])
def test_a_run_ends_whose_command_is_interrupted_before_it_is_followed(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    interrupted(monkeypatch, scheduler, KeyboardInterrupt())
    assert recorder.ended == [State.INTERRUPTED]


def test_also_while_it_is_submitted(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder.interrupt = KeyboardInterrupt()
    interrupted(monkeypatch, "local", KeyboardInterrupt())
    assert recorder.ended == [State.INTERRUPTED]


def test_a_queued_job_outlives_the_host(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, "slurm", Terminated())
    assert recorder.ended == []


def test_a_run_that_has_ended_is_left_alone(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = '{"state": "COMPLETED", "started": 1, "ended": 2, "exit_status": 0, "step": 1, "steps": 1, "hosts": []}'
    interrupted(monkeypatch, "local", KeyboardInterrupt(), status=ended)
    assert recorder.ended == []

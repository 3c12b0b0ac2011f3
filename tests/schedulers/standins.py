"""Runs on the stand-in of a batch system: the same tests for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hidl_twin.batch.system import System

from hidl_cli.errors import SchedulerUnreachable, SubmitRefused
from hidl_cli.record import State
from hidl_cli.schedulers.backend import Backend
from tests.cluster.standin import StandIn
from tests.schedulers.bench import BatchSystemTests, Bench


class StandInTests(BatchSystemTests):
    """See ``BatchSystemTests``. ``system`` is the stand-in, ``backend`` what hidl does with it."""

    system: ClassVar[type[System]]
    backend: ClassVar[type[Backend]]

    @pytest.fixture
    def standin(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
        """The stand-in, whose commands come first on PATH; a minute of a time limit takes a second."""
        found = StandIn(self.system(), tmp_path / self.system.name, minute=1.0)
        monkeypatch.setenv("PATH", f"{found.spool / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setattr(self.backend, "first_interval", 0.02)
        yield found
        found.end()

    @pytest.fixture
    def bench(self, standin: StandIn, tmp_path: Path) -> Bench:
        """Runs on it."""
        return Bench(self.backend, tmp_path / "my runs")

    def test_a_job_over_a_limit_is_refused(self, bench: Bench) -> None:
        with pytest.raises(SubmitRefused):
            bench.submitted("true", nodes=5)

    def test_a_job_whose_host_is_gone_has_failed_by_it(self, bench: Bench, standin: StandIn) -> None:
        run = bench.submitted("sleep 300")
        bench.polled(run, lambda status: status.state is State.RUNNING)
        standin.store.give_order(standin.store.jobs()[-1].id, "TERM_CSM_ALLOC")
        status = bench.polled(run)
        assert status.state in (State.NODE_FAIL, State.FAILED, State.CANCELLED)

    def test_without_an_answer_nothing_is_submitted(self, bench: Bench, standin: StandIn) -> None:
        standin.end_daemon()
        with pytest.raises(SchedulerUnreachable):
            bench.submitted("true")

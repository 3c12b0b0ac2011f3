"""Runs on the stand-in PBS of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hidl_cli.cluster.pbs.system import Pbs as StandInPbs
from hidl_cli.errors import SchedulerUnreachable, SubmitRefused
from hidl_cli.record.state import State
from hidl_cli.schedulers.pbs import Pbs
from tests.cluster.standin import StandIn
from tests.schedulers.bench import BatchSystemTests, Bench


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, whose commands come first on PATH; a minute of a time limit takes a second."""
    found = StandIn(StandInPbs(), tmp_path / "pbs", minute=1.0)
    monkeypatch.setenv("PATH", f"{found.spool / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Pbs, "first_interval", 0.02)
    yield found
    found.end()


@pytest.fixture
def bench(standin: StandIn, tmp_path: Path) -> Bench:
    """Runs on it."""
    return Bench(Pbs, tmp_path / "my runs")


class TestPbsStandIn(BatchSystemTests):
    """See ``BatchSystemTests``."""

    hold = "-h"

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

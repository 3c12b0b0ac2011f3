"""Runs on the stand-in Flux of this machine."""

from __future__ import annotations

import time

import pytest
from hidl_twin.flux.system import Flux as StandInFlux

from hidl_cli.record import State
from hidl_cli.schedulers.flux import FluxBackend
from tests.cluster.standin import StandIn
from tests.schedulers.bench import Bench
from tests.schedulers.standins import StandInTests


class TestFluxStandIn(StandInTests):
    """See ``StandInTests``."""

    system = StandInFlux
    backend = FluxBackend
    hold = "--urgency=0"

    def test_a_running_job_is_found_among_more_than_a_thousand(self, bench: Bench, standin: StandIn) -> None:
        """``flux jobs`` shows 1,000 jobs by default, those that wait first."""
        run = bench.submitted("sleep 300")
        bench.polled(run, lambda status: status.state is State.RUNNING)
        bench.submitted("true", directives=[self.hold])
        standin.crowd(1100)
        assert len(standin("flux", "jobs", "-a", "-n").stdout.splitlines()) == 1000
        listed = bench.backend().parse(bench.backend().query(None))
        assert len(listed) == 1102
        assert [job.state for job in listed].count(State.RUNNING) == 1
        assert bench.scheduler.cancel(run, state=State.CANCELLED)
        assert bench.polled(run).state is State.CANCELLED

    def test_a_job_that_the_listing_lacks_is_asked_for(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        run = bench.submitted("sleep 300")
        bench.polled(run, lambda status: status.state is State.RUNNING)
        monkeypatch.setattr(FluxBackend, "query", lambda self, cluster: [])
        monkeypatch.setattr(FluxBackend, "grace_seconds", 0.0)
        scheduler = bench.scheduler
        assert {scheduler.poll([run])[0].state for _ in range(8) if time.sleep(0.1) is None} == {State.RUNNING}
        assert scheduler.cancel(run, state=State.CANCELLED)
        assert bench.polled(run).state is State.CANCELLED

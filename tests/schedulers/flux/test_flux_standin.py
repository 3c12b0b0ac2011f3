"""Runs on the stand-in Flux of this machine."""

from __future__ import annotations

from hidl_cli.cluster.flux.system import Flux as StandInFlux
from hidl_cli.schedulers.flux import Flux
from tests.schedulers.standins import StandInTests


class TestFluxStandIn(StandInTests):
    """See ``StandInTests``."""

    system = StandInFlux
    backend = Flux
    hold = "--urgency=0"

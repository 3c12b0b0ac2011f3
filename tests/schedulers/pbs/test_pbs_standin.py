"""Runs on the stand-in PBS of this machine."""

from __future__ import annotations

from hidl_twin.pbs.system import Pbs as StandInPbs

from hidl_cli.schedulers.pbs import PbsBackend
from tests.schedulers.standins import StandInTests


class TestPbsStandIn(StandInTests):
    """See ``StandInTests``."""

    system = StandInPbs
    backend = PbsBackend
    hold = "-h"

"""All stand-ins, by the scheduler's name."""

from __future__ import annotations

from collections.abc import Mapping

from hidl_twin.batch.system import System
from hidl_twin.flux.system import Flux
from hidl_twin.lsf.system import Lsf
from hidl_twin.pbs.system import Pbs

SYSTEMS: Mapping[str, System] = {system.name: system for system in (Lsf(), Pbs(), Flux())}

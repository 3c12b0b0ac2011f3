"""All stand-ins, by the scheduler's name."""

from __future__ import annotations

from collections.abc import Mapping

from hidl_cli.cluster.batch.system import System
from hidl_cli.cluster.flux.system import Flux
from hidl_cli.cluster.lsf.system import Lsf
from hidl_cli.cluster.pbs.system import Pbs

SYSTEMS: Mapping[str, System] = {system.name: system for system in (Lsf(), Pbs(), Flux())}

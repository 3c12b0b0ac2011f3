"""The stand-in Flux of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hidl_twin.flux.system import Flux

from tests.cluster.standin import StandIn


@pytest.fixture
def flux(tmp_path: Path) -> Iterator[StandIn]:
    """A stand-in with queues batch (4 nodes, 1 h) and debug (1 node, 10 min)."""
    found = StandIn(Flux(), tmp_path / "flux")
    yield found
    found.end()

"""Which tests run beside each other under ``pytest -n 2``: the tests of one directory do not, nor do the cluster's."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

REPOSITORY = Path(__file__).parent.parent
#: How the tests of the one cluster, which they may kill, name it among their arguments.
CLUSTER = ("cluster: LivingCluster", "on_cluster: Callable", "bench: Bench")


@pytest.fixture(scope="session")
def common_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary directory that is one for all processes of this session; each one's own directory lies in it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Make one that keeps directories whole, since their tests share what is slow to make, in their order.

    The cluster's tests come early, so that one process waits for Slurm while the other one computes.
    """
    config.option.loadscopereorder = False
    return SideBySide(config, log)


class SideBySide(LoadScopeScheduling):
    """Hands the tests of one directory, or all tests of the cluster, to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid.partition("::")[0])


@cache
def _scope(file: str) -> str:
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    return "the cluster" if any(name in text for name in CLUSTER) else str(Path(file).parent)

"""How the tests run in parallel: the number of processes, which tests share one, and in which order."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.tiers import tier
from tools.run_tests import TIER

if TYPE_CHECKING:
    from xdist.remote import Producer

REPOSITORY = Path(__file__).parent.parent
#: By what the files of tests that share the cluster, which they may kill, are recognized: an argument, or an import.
CLUSTER = ("cluster: LivingCluster", "on_cluster: Callable", "ordered: Callable", "tests.schedulers.slurm.conftest")
#: Directories whose tests kill daemons and nodes; they have a cluster of their own.
KILLERS = ("tests/cluster", "tests/schedulers")
#: The units of the cluster's tests.
KILLED, USED = "the cluster that tests kill", "the cluster that tests use"
#: Directories whose session fixtures take longer than their tests gain by running in parallel.
WHOLE = (
    *("tests/cluster/lsf", "tests/cluster/twin", "tests/docs", "tests/hyparflow", "tests/mpi4dask", "tests/report"),
    *("tests/mpi4c10d", "tests/mpitraffic", "tests/workloads/ml"),
)
#: The units of half a minute and more, the longest first: one that began last would end alone, with a core idle.
LONG = (
    *("tests/hyparflow", "tests/mpi4dask", "tests/mpi4c10d", "tests/workloads/ml", "tests/tutorials/test_laptop.py"),
    *("tests/validate/test_validate_local.py", "tests/workloads/test_oracle.py", "tests/rehearse/test_rehearse.py"),
    *("tests/workloads/test_keras_distributed.py", "tests/tutorials/test_researcher.py"),
)


@pytest.fixture(scope="session")
def common_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary directory that is one for all processes of this session; each one's own directory lies in it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.hookimpl
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """All tests: 3 or 4 processes, more than the cores, as many wait; where files or tests are named: this one."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.collectonly:
        return 0
    return 4 if os.environ.get(TIER) == "real" else min(max(len(os.sched_getaffinity(0)) + 1, 3), 4)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under xdist, the cluster's units come first, then the long ones, then others with real tests."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {_unit(item.nodeid) for item in items if tier(item) != "pure"}
        items.sort(key=lambda item: _rank(_unit(item.nodeid), slow))


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Make one that hands out units: a file, or more where tests share what is slow to make."""
    config.option.loadscopereorder = False
    return SideBySide(config, log)


class SideBySide(LoadScopeScheduling):
    """Hands all tests of a unit to one process, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def _rank(unit: str, slow: set[str]) -> int:
    first = (KILLED, USED, *LONG)
    return first.index(unit) if unit in first else len(first) + (unit not in slow)


def _unit(nodeid: str) -> str:
    return _unit_of(nodeid.partition("::")[0])


@cache
def _unit_of(file: str) -> str:
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    if any(name in text for name in CLUSTER):
        return KILLED if file.startswith(KILLERS) else USED
    return next((directory for directory in WHOLE if file.startswith(f"{directory}/")), file)

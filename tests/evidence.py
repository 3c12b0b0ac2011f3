"""What a failure is judged by: its tier, whether it may be excused, and what this machine was doing meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tiers import limit, tier
from tools import slowness
from tools.run_tests import NEVER_EXCUSED

if TYPE_CHECKING:
    from tests.cluster.cluster import LivingCluster

#: The share of its time limit after which the stacks of what a test has started are written down.
LATE = 0.8
_MOST_STACKS, _LOG_LINES, _LINES = 20, 30, 150
_STACKS = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Near its time limit, write down the stacks of a test's ranks."""
    stacks = item.stash[_STACKS] = []
    timer = threading.Timer(LATE * limit(item), _write_stacks, (stacks, time.time()))
    timer.daemon = True
    if limit(item) and tier(item) != "pure":
        timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    """Add to a failure what is needed to judge it."""
    report: pytest.TestReport = yield
    if report.failed:
        if reason := _never_excused(item, call):
            report.user_properties.append((NEVER_EXCUSED, reason))
        if tier(item) != "pure":
            report.sections.append(("this machine then", _machine()))
            if cluster := getattr(item, "funcargs", {}).get("cluster"):
                report.sections.append(("Slurm then", _slurm(cluster)))
            if stacks := item.stash.get(_STACKS, []):
                report.sections.append((f"stacks at {LATE:.0%} of the time limit", "\n".join(stacks)))
    return report


def _never_excused(item: pytest.Item, call: pytest.CallInfo[None]) -> str | None:
    if call.when != "call" or call.excinfo is None or call.excinfo.errisinstance(pytest.fail.Exception):  # a timeout
        return None
    if getattr(getattr(item, "function", None), "is_hypothesis_test", False):
        return "a counterexample of Hypothesis"
    if call.excinfo.errisinstance(AssertionError) and item.get_closest_marker("exact"):
        return "wrong numbers"
    return None


def _machine() -> str:
    processes = _output("ps", "-e", "-o", "pid,ppid,stat,etimes,pcpu,args", "--forest", "--no-headers", "--cols", "160")
    return f"{slowness.load()}\n" + "\n".join(processes.splitlines()[-_LINES:])


def _slurm(cluster: LivingCluster) -> str:
    asked = ("env", f"SLURM_CONF={cluster.conf}")
    told = [_output(*asked, *words) for words in (("squeue", "--all", "--long"), ("sinfo", "-N", "--long"))]
    for log in sorted((cluster.directory / "log").glob("*.log")):
        told.append(f"{log.name}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:]))
    return "\n".join(told)


def _write_stacks(stacks: list[str], began: float) -> None:
    """The stacks of all Python processes that have started since then."""
    age = time.time() - began
    for line in _output("ps", "-e", "-o", "pid=,etimes=,comm=").splitlines():
        pid, seconds, command = line.split(None, 2)
        if command.startswith("python") and int(seconds) <= age and int(pid) != os.getpid():
            stacks.append(_output(str(Path(sys.executable).with_name("py-spy")), "dump", "--pid", pid))
        if len(stacks) == _MOST_STACKS:
            break


def _output(*command: str) -> str:
    """What it prints, or why it cannot: evidence is never a failure of its own."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}\n"
    return done.stdout or done.stderr

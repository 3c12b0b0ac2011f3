"""A node that claims two sockets of 28 cores, in a mount namespace as `hidl cluster up` makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hidl_twin import TEMPLATES, packages
from hidl_twin.claimed.build import claim
from hidl_twin.claimed.processors import Processors

from hidl_cli.templates import render_script
from tests.waiting import patience

CLX = Processors(56, 2, 1, "Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz")
ENTER = """#!/bin/bash
set -euo pipefail
name=$1
mount -n -t tmpfs none /run
{claimed}
exec "${{@:2}}"
"""
OnNode = Callable[..., str]


@pytest.fixture(scope="module")
def on_node(tmp_path_factory: pytest.TempPathFactory) -> OnNode:
    """Runs a command on such a node; returns its output. Nothing may stand on its stderr."""
    if (reason := packages.obstacle(accounting=False)) is not None:
        pytest.skip(f"NEEDS A NODE: {reason.message}")
    place = tmp_path_factory.mktemp("cluster")
    assert claim(place / "claimed", {"c1": CLX})
    script = place / "enter.sh"
    script.write_text(ENTER.format(claimed=render_script("claimed.sh.j2", {"directory": place}, TEMPLATES)))

    def run(*command: str) -> str:
        entering = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "bash", str(script), "c1"]
        completed = subprocess.run(
            [*entering, *command], capture_output=True, text=True, timeout=patience(60), check=False
        )
        assert (completed.returncode, completed.stderr) == (0, "")
        return completed.stdout.strip()

    return run


def test_programs_of_the_system_see_what_is_claimed(on_node: OnNode) -> None:
    assert on_node("nproc") == "56"
    assert on_node("getconf", "_NPROCESSORS_ONLN") == "56"
    told = dict(line.split(":", 1) for line in on_node("lscpu").splitlines() if ":" in line)
    facts = {name.strip(): value.strip() for name, value in told.items()}
    assert facts["Model name"] == CLX.model
    assert (facts["CPU(s)"], facts["Socket(s)"], facts["Core(s) per socket"]) == ("56", "2", "28")
    assert (facts["NUMA node0 CPU(s)"], facts["NUMA node1 CPU(s)"]) == ("0-27", "28-55")


@pytest.mark.usefixtures("cluster")  # it is what installs Slurm
def test_slurmd_sees_it_through_hwloc(on_node: OnNode) -> None:
    assert "CPUs=56 Boards=1 SocketsPerBoard=2 CoresPerSocket=28 ThreadsPerCore=1" in on_node("slurmd", "-C")


def test_hidl_sees_it(on_node: OnNode) -> None:
    program = "from hidl_cli.site.machine import machine; m = machine(); print(m.sockets, m.cores, m.threads_per_core)"
    assert on_node(sys.executable, "-c", program) == "2 56 1"


def test_affinity_survives_an_empty_environment(on_node: OnNode) -> None:
    """The library is loaded by the loader itself: neither `env -i` nor a job's own LD_PRELOAD takes it away."""
    assert on_node("taskset", "-c", "28-55", "env", "-i", "LD_PRELOAD=libm.so.6", "/usr/bin/nproc") == "28"


def test_hydra_binds_ranks_to_cores_of_their_own(on_node: OnNode, stack_prefix: Callable[[str], Path]) -> None:
    mpiexec = stack_prefix("mpi") / "bin/mpiexec"
    told = on_node(str(mpiexec), "-n", "2", "-bind-to", "core:28", "sh", "-c", "taskset -pc $$")
    assert sorted(line.rsplit(": ", 1)[1] for line in told.splitlines()) == ["0-27", "28-55"]


def test_open_mpi_binds_ranks_to_cores_of_their_own(on_node: OnNode, stack_prefix: Callable[[str], Path]) -> None:
    mpirun = stack_prefix("openmpi") / "bin/mpirun"
    words = ["--allow-run-as-root", "--map-by", "ppr:2:node:PE=28", "--bind-to", "core"]
    told = on_node(str(mpirun), *words, "sh", "-c", "taskset -pc $$")
    assert sorted(line.rsplit(": ", 1)[1] for line in told.splitlines()) == ["0-27", "28-55"]


def test_the_machine_itself_stays_as_it_is(on_node: OnNode) -> None:
    before = (os.cpu_count(), os.sched_getaffinity(0), Path("/etc/ld.so.preload").exists())
    on_node("true")
    assert (os.cpu_count(), os.sched_getaffinity(0), Path("/etc/ld.so.preload").exists()) == before
    online = subprocess.run(["nproc", "--all"], capture_output=True, text=True, check=True).stdout
    assert online.strip() != "56" or os.cpu_count() == 56


def test_what_is_made_is_kept_until_something_else_is_claimed(tmp_path: Path) -> None:
    assert claim(tmp_path, {"c1": CLX, "c2": CLX})
    kind = (tmp_path / "nodes/c1").resolve()
    made = (kind / "affinity.so").stat().st_mtime_ns
    assert not claim(tmp_path, {"c1": CLX, "c2": CLX})
    assert claim(tmp_path, {"c2": CLX, "rtx1": Processors(16, 2)})
    assert (kind / "affinity.so").stat().st_mtime_ns == made
    assert {link.name for link in (tmp_path / "nodes").iterdir()} == {"c2", "rtx1"}
    assert (tmp_path / "nodes/c2").resolve() == kind

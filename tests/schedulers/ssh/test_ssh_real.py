"""Hosts without a queue: the sshd of the test cluster's nodes; Slurm is there, and nobody asks it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import LivingCluster
from tests.cluster.own_ssh import with_own_ssh
from tests.conftest import Hidl
from tests.tiers import deep
from tests.waiting import patience, until

#: Rank 0 says that it has started; each rank leaves a daemon behind, as programs do.
SLOW = """
import subprocess, sys, time
from mpi4py import MPI
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen(["sleep", "977"], start_new_session=True, **quiet)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    print("started", flush=True)
time.sleep(float(sys.argv[1]))
"""

#: Their ranks are started by Hydra and by Open MPI's mpirun.
STACKS = ("mpi", "openmpi")
each_stack = pytest.mark.parametrize("stack", [STACKS[0], deep(STACKS[1])])


@pytest.fixture
def here(cluster: LivingCluster, on_cluster: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    """hidl with both stacks, for a user whose own ssh reaches the nodes."""
    return with_own_ssh(on_cluster(*STACKS), cluster, tmp_path)


@pytest.fixture
def start(here: Hidl, cluster: LivingCluster) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start("60", "--hosts", "node1,node2")``: a run of the slow program with 2 ranks per node."""
    program = cluster.directory.parent / "slow.py"
    program.write_text(SLOW)
    started: list[subprocess.Popen[str]] = []

    def run(seconds: str, *options: str, stack: str = "mpi") -> subprocess.Popen[str]:
        words = ("run", "--stack", stack, "--ranks-per-node", "2", *options, "--", "python", str(program), seconds)
        child = here.start(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    for run in here.runs.iterdir():
        here("cancel", run.name)


def until_started(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    printed = []
    for line in child.stdout:
        printed.append(line)
        if line.strip() == "started":
            return
    pytest.fail("".join(printed))


def processes_of(here: Hidl) -> list[str]:
    """Command lines of processes of this user's runs, here and on all nodes, of which this machine sees all.

    Daemons of launchers, which have no variables of the run, are known by the installation that they are from.
    """
    marks = {f"HIDL_RUN_ID={run.name}".encode() for run in here.runs.iterdir()}
    names = {run.name.encode() for run in here.runs.iterdir()} | {here.environment["XDG_DATA_HOME"].encode()}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            environment = set((process / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if words and (marks & environment or any(name in words for name in names)):
            found.append(words.replace(b"\0", b" ").decode())
    return found


def until_nothing_is_left(here: Hidl) -> None:
    """Guards end what is left within seconds, also of a supervisor that was killed or is just ending."""
    until(lambda: not processes_of(here), otherwise=lambda: "\n".join(processes_of(here)))


def last(here: Hidl) -> dict[str, Any]:
    (run,) = here.json("status", "-n", "1")["runs"]
    assert isinstance(run, dict)
    return run


@each_stack
def test_the_line_of_the_documentation_passes(here: Hidl, stack: str) -> None:
    ran = here("run", "mpi-sanity", "--stack", stack, "--hosts", "node1,node2", "--ranks-per-node", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "node1: 2, node2: 2" in ran.stderr
    assert "pass" in ran.stdout
    until_nothing_is_left(here)


@pytest.mark.deep
def test_hosts_of_a_host_file_with_their_slots(here: Hidl, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# two of four\nnode2:2\nnode4:2\n")
    ran = here("run", "mpi-sanity", "--hostfile", str(hosts), "--site", "test-cluster")
    assert "node2: 2, node4: 2" in ran.stderr, ran.stderr
    assert ran.returncode == 0


def test_hosts_that_cannot_be_used_are_named_at_once(here: Hidl, cluster: LivingCluster) -> None:
    ran = here("run", "mpi-sanity", "--hosts", "node1,nowhere1,nowhere2")
    assert ran.returncode == 4
    assert "2 of 3 host(s) cannot be used; nothing was started" in ran.stderr
    assert "nowhere1: " in ran.stderr
    assert "nowhere2: " in ran.stderr
    assert last(here)["state"] == "REFUSED"
    until_nothing_is_left(here)


def test_a_host_whose_key_is_unknown_is_named_with_the_next_step(here: Hidl, tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(ssh.read_text().replace(' "$@"', ' -o UserKnownHostsFile=/dev/null "$@"'))
    ran = here("run", "mpi-sanity", "--hosts", "node1")
    assert ran.returncode == 4
    assert "node1: Host key verification failed." in ran.stderr
    assert "ssh node1 true" in ran.stderr


def test_one_host_by_two_names_is_refused(here: Hidl) -> None:
    address = here_address(here, "node1")
    ran = here("run", "mpi-sanity", "--hosts", f"node1,{address}")
    assert ran.returncode == 4
    assert "the same host as node1" in ran.stderr


def here_address(here: Hidl, node: str) -> str:
    shown = subprocess.run(["ssh", "-G", node], env=here.environment, capture_output=True, text=True, check=True)
    return next(line.split()[1] for line in shown.stdout.splitlines() if line.startswith("hostname "))


@pytest.mark.deep
def test_a_directory_that_hosts_do_not_see_is_named(here: Hidl, cluster: LivingCluster) -> None:
    elsewhere = Path("/dev/shm") / f"hidl-test-{os.getpid()}"
    try:
        ran = here("run", "mpi-sanity", "--hosts", "node1,node2", XDG_STATE_HOME=str(elsewhere))
        assert ran.returncode == 4
        assert ran.stderr.count("is not visible there") == 2
        assert "XDG_STATE_HOME" in ran.stderr
    finally:
        subprocess.run(["rm", "-r", str(elsewhere)], check=False)


@each_stack
def test_ctrl_c_leaves_nothing_on_any_host(here: Hidl, start: Callable[..., subprocess.Popen[str]], stack: str) -> None:
    child = start("300", "--hosts", "node1,node2", stack=stack)
    until_started(child)
    assert any("sleep 977" in words for words in processes_of(here))
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=patience(300))
    assert child.returncode == 130
    until_nothing_is_left(here)
    assert last(here)["state"] == "INTERRUPTED"


@pytest.mark.deep
@each_stack
def test_after_kill_9_of_hidl_the_run_goes_on_and_can_be_cancelled(
    here: Hidl, start: Callable[..., subprocess.Popen[str]], stack: str
) -> None:
    child = start("300", "--hosts", "node1,node2", stack=stack)
    until_started(child)
    child.kill()
    child.communicate()
    assert last(here)["state"] == "RUNNING"
    assert here("cancel").returncode == 0
    until_nothing_is_left(here)
    assert last(here)["state"] == "CANCELLED"


@pytest.mark.deep
@each_stack
def test_after_kill_9_of_the_supervisor_nothing_is_left_and_the_hosts_are_free(
    here: Hidl, start: Callable[..., subprocess.Popen[str]], stack: str
) -> None:
    child = start("300", "--hosts", "node1,node2", stack=stack)
    until_started(child)
    os.kill(int(last(here)["job"]), signal.SIGKILL)
    child.communicate(timeout=patience(300))
    assert child.returncode == 8
    assert last(here)["state"] == "LOST"
    until_nothing_is_left(here)
    assert here("run", "mpi-sanity", "--hosts", "node1,node2").returncode == 0


@pytest.mark.deep
@each_stack
def test_a_lost_host_ends_the_run(here: Hidl, start: Callable[..., subprocess.Popen[str]], stack: str) -> None:
    child = start("300", "--hosts", "node1,node2", stack=stack)
    until_started(child)
    guards = [words for words in processes_of(here) if words.startswith("bash -s hidl-guard")]
    assert len(guards) == 2
    subprocess.run(["pkill", "-KILL", "-f", f"^{guards[0].strip()}"], check=True)
    child.communicate(timeout=patience(300))
    assert last(here)["state"] == "NODE_FAIL"
    assert "lost" in last(here)["reason"]


@pytest.mark.deep
def test_a_time_limit_ends_the_run(here: Hidl, start: Callable[..., subprocess.Popen[str]]) -> None:
    child = start("300", "--hosts", "node1", "--time", "0:08")
    child.communicate(timeout=patience(300))
    assert child.returncode == 8
    assert last(here)["state"] == "TIMEOUT"
    until_nothing_is_left(here)


@pytest.mark.deep
def test_two_runs_on_one_host_wait_for_each_other_unless_told_otherwise(
    here: Hidl, start: Callable[..., subprocess.Popen[str]]
) -> None:
    first = start("300", "--hosts", "node1,node2")
    until_started(first)
    second = start("0", "--hosts", "node2")
    assert second.stdout is not None
    assert any("waiting for node2, in use by run" in line for line in second.stdout)
    shared = start("0", "--hosts", "node2", "--share-hosts")
    assert "started" in shared.communicate(timeout=patience(300))[0]
    assert second.poll() is None
    first.send_signal(signal.SIGINT)
    assert "started" in second.communicate(timeout=patience(300))[0]
    assert second.returncode == 0
    first.communicate()


@each_stack
def test_environment_and_arguments_arrive_as_they_are(here: Hidl, cluster: LivingCluster, stack: str) -> None:
    shown = cluster.directory.parent / f"shown-by-{stack}"
    shown.mkdir()
    hostile = ["a b", "x;y", "$HOME", "`id`", "'", '"', "\\", "*", "-n", "", "ä\nb"]
    writes = (
        "import json, os, sys; from mpi4py import MPI; "
        f"json.dump(sys.argv[1:], open({str(shown)!r} + f'/{{MPI.COMM_WORLD.rank}}', 'w'))"
    )
    ran = here("run", "--hosts", "node1,node2", "--stack", stack, "--", "python", "-c", writes, *hostile)
    assert ran.returncode == 0, ran.stderr
    assert [json.loads((shown / str(rank)).read_text()) for rank in range(2)] == [hostile, hostile]

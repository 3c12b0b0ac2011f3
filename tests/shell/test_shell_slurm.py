"""``hidl shell`` on a real Slurm, at a real terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import LivingCluster
from tests.conftest import Hidl
from tests.shell.ends import ENDS, KEPT, Open, children, each_end, open_shell
from tests.shell.terminal import Terminal, processes_with
from tests.tiers import deep
from tests.waiting import until

SITE = ("--site", "test-cluster")
TWO_NODES = (*SITE, "--nodes", "2", "--ranks-per-node", "2")


def allocations(cluster: LivingCluster) -> list[str]:
    """What Slurm still holds for shells."""
    return cluster("squeue", "--noheader", "--name=hidl-shell", "--format=%i %T").stdout.splitlines()


def nothing_is_left(shell: Open, cluster: LivingCluster) -> None:
    shell.nothing_is_left()
    until(lambda: not allocations(cluster), otherwise=lambda: f"{allocations(cluster)}")


def salloc_of(terminal: Terminal) -> int:
    """The process number of the salloc that hidl started."""
    (found,) = (pid for pid in children(terminal.pid) if Path(f"/proc/{pid}/comm").read_text() == "salloc\n")
    return found


@each_end
def test_nothing_is_left(way: str, on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path) -> None:
    hidl = on_cluster("mpi")
    shell = open_shell(hidl, tmp_path, *TWO_NODES, launched=4)
    status = ENDS[way](shell)
    assert shell.terminal.wait() == status, shell.terminal.shown
    nothing_is_left(shell, cluster)
    if way not in KEPT:
        assert list(hidl.runs.iterdir()) == []


def test_a_shell_that_slurm_cancels_says_so(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    shell = open_shell(on_cluster("mpi"), tmp_path, *TWO_NODES, launched=4)
    assert cluster("scancel", "--name=hidl-shell").returncode == 0
    assert shell.terminal.wait() == 8
    assert "the shell was cancelled" in shell.terminal.shown
    nothing_is_left(shell, cluster)


def test_standard_input_of_ranks_is_rank_0s(on_cluster: Callable[..., Hidl], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("3\n4\n")
    reads = "import sys; from mpi4py import MPI; print(f'{MPI.COMM_WORLD.rank} {sys.stdin.read()!r}')"
    command = f'ranks python -c "{reads}" < {tmp_path}/in.txt'
    done = on_cluster("mpi")("shell", "mpi", *SITE, "--ranks-per-node", "2", "--", "bash", "-c", command)
    assert sorted(re.findall(r"^[01] '.*'$", done.stdout, re.MULTILINE)) == [r"0 '3\n4\n'", "1 ''"], done.stderr


@pytest.mark.deep
def test_at_the_time_limit_nothing_is_left(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    shell = open_shell(on_cluster("mpi"), tmp_path, *TWO_NODES, "--time", "00:01:00", launched=4)
    (held,) = allocations(cluster)
    cluster.use_up_the_time(held.split()[0])
    assert shell.terminal.wait() == 8
    assert "the shell reached its time limit" in shell.terminal.shown
    nothing_is_left(shell, cluster)


def test_a_killed_salloc_leaves_no_allocation(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    shell = open_shell(on_cluster("mpi"), tmp_path, *TWO_NODES, launched=4)
    os.kill(salloc_of(shell.terminal), signal.SIGKILL)
    assert shell.terminal.wait() == 8
    nothing_is_left(shell, cluster)


@pytest.fixture
def full(cluster: LivingCluster) -> Iterator[None]:
    """All nodes are taken by another job."""
    job = cluster(
        "sbatch", "--parsable", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"
    ).stdout.strip()
    try:
        until(
            lambda: "RUNNING" in cluster("squeue", "--noheader", f"--job={job}", "--format=%T").stdout,
            otherwise=lambda: cluster("squeue").stdout,
        )
        yield
    finally:
        cluster("scancel", job)


@pytest.mark.parametrize("way", [deep("sighup"), deep("sigterm"), deep("kill -9 of hidl"), "the window is closed"])
def test_a_shell_that_waits_is_taken_back(
    way: str, full: None, on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    terminal = Terminal(hidl.command("shell", "mpi", *TWO_NODES), hidl.environment, tmp_path)
    terminal.see("queued and waiting for resources")
    shell = Open(terminal, hidl, "no-such-process")
    status = ENDS[way](shell)
    assert terminal.wait() == status
    nothing_is_left(shell, cluster)


@pytest.mark.deep
def test_a_waiting_shell_whose_salloc_hangs_is_taken_back(
    full: None, on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    terminal = Terminal(hidl.command("shell", "mpi", *TWO_NODES), hidl.environment, tmp_path)
    terminal.see("queued and waiting for resources")
    salloc = salloc_of(terminal)
    os.kill(salloc, signal.SIGSTOP)  # as when it hangs in the handler of a signal
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.wait() == -signal.SIGKILL
    nothing_is_left(Open(terminal, hidl, "no-such-process"), cluster)
    assert not Path(f"/proc/{salloc}").exists()


def test_ctrl_c_ends_the_waiting(
    full: None, on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    terminal = Terminal(hidl.command("shell", "mpi", *TWO_NODES), hidl.environment, tmp_path)
    terminal.see("queued and waiting for resources")
    terminal.press(b"\x03")
    assert terminal.wait() == 8
    assert "the shell was cancelled" in terminal.shown
    nothing_is_left(Open(terminal, hidl, "no-such-process"), cluster)


def test_the_shell_uses_the_allocation(on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path) -> None:
    hidl = on_cluster("mpi")
    terminal = Terminal(hidl.command("shell", "mpi", *TWO_NODES), hidl.environment, tmp_path)
    terminal.see("ranks PROGRAM starts 4 ranks on 2 nodes: srun --nodes=2 --ntasks=4")
    terminal.see("(mpi) ")
    terminal.type("cat $HIDL_HOSTS | sort | tr '\\n' ,; pwd")
    terminal.see(f"node1,node2,{tmp_path}")
    text = "f'{os.uname()[1]} {MPI.COMM_WORLD.size}\\n'.encode()"
    program = f'python -c "from mpi4py import MPI; import os; os.write(1, {text})"'
    for launch in ("ranks", "mpiexec -n 4 -ppn 2 -f $HIDL_HOSTS", "srun --mpi=pmi2"):
        terminal.type(f"{launch} {program} > said; sort said | tr '\\n' ,; echo end")
        terminal.see("node1 4,node1 4,node2 4,node2 4,end")
        terminal.see("(mpi) ")
    terminal.type("exit 3")
    assert terminal.wait() == 3


def test_slurm_refuses_with_its_limit(on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path) -> None:
    completed = on_cluster("mpi")("shell", "mpi", *SITE, "--account", "no-such", "--qos", "no-such", "--", "true")
    assert completed.returncode in (0, 6)
    completed = on_cluster("mpi")("shell", "mpi", *SITE, "--reservation", "no-such", "--", "true")
    assert completed.returncode == 6
    assert "Slurm rejected the job" in completed.stderr
    assert "--reservation NAME" in completed.stderr


def test_a_server_on_a_node_is_reached_by_the_line(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    file = hidl.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("name: mine\ntitle: a login host\nextends: test-cluster\nlogin_host: node4\n")
    assert hidl("install", "mpi", "--site", "mine").returncode == 0
    (tmp_path / "page.txt").write_text("hello from a node\n")
    for options in ((), ("--bind", "localhost")):
        words = ("--site", "mine", "--", "python", "-m", "http.server", "8123", *options)
        terminal = Terminal(hidl.command("shell", "mpi", *words), hidl.environment, tmp_path)
        terminal.see("open http://localhost:8123")
        line = re.search(r"run on your own computer: ssh (-N .*?) and open", terminal.shown)
        assert line is not None
        assert "@node4" in line[1]
        with subprocess.Popen(["ssh", "-F", str(cluster.ssh_config), *line[1].split()]) as tunnel:
            until(page_is_served, otherwise=lambda: "no page came through the tunnel")
            tunnel.terminate()
        terminal.press(b"\x03")
        terminal.wait()
        until(lambda: not processes_with("http.server 8123"), otherwise=lambda: "http.server lives on")


def page_is_served() -> bool:
    """Whether this machine's port 8123 answers with the page of the node."""
    fetch = ["curl", "--silent", "--max-time", "5", "http://localhost:8123/page.txt"]
    return "hello from a node" in subprocess.run(fetch, capture_output=True, text=True, check=False).stdout

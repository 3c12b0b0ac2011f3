"""``hidl shell`` on hosts without a queue, at a real terminal: the sshd of the test cluster's nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import LivingCluster
from tests.cluster.own_ssh import with_own_ssh
from tests.conftest import Hidl
from tests.shell.ends import ENDS, KEPT, each_end, open_shell
from tests.shell.terminal import Terminal, processes_with
from tests.waiting import patience, until

HOSTS = ("--hosts", "node1,node2", "--ranks-per-node", "2")


@pytest.fixture
def here(cluster: LivingCluster, on_cluster: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    """hidl with stack mpi, for a user whose own ssh reaches the nodes."""
    return with_own_ssh(on_cluster("mpi"), cluster, tmp_path)


@each_end
def test_nothing_is_left(way: str, here: Hidl, tmp_path: Path) -> None:
    shell = open_shell(here, tmp_path, *HOSTS, launched=4)
    status = ENDS[way](shell)
    assert shell.terminal.wait() == status, shell.terminal.shown
    shell.nothing_is_left()
    if way not in KEPT:
        assert list(here.runs.iterdir()) == []


@pytest.mark.deep
def test_at_the_time_limit_nothing_is_left(here: Hidl, tmp_path: Path) -> None:
    minutes, seconds = divmod(round(patience(20)), 60)  # it must be open, and its ranks started, by then
    shell = open_shell(here, tmp_path, *HOSTS, "--time", f"{minutes}:{seconds:02}", launched=4)
    assert shell.terminal.wait() == 8
    assert "the shell reached its time limit" in shell.terminal.shown
    shell.nothing_is_left()


@pytest.mark.deep
def test_a_lost_host_ends_the_shell(here: Hidl, cluster: LivingCluster, tmp_path: Path) -> None:
    with cluster.restored():
        shell = open_shell(here, tmp_path, *HOSTS, launched=4)
        cluster.kill_node("node2")
        assert shell.terminal.wait() == 8
        assert "a node failed" in shell.terminal.shown
        shell.nothing_is_left()


def test_a_host_that_is_down_is_named_before_anything_starts(here: Hidl, tmp_path: Path) -> None:
    opened = here("shell", "mpi", "--hosts", "node1,no-such-host", "--", "true")
    assert opened.returncode == 4, opened.stderr
    assert "no-such-host" in opened.stderr
    assert list(here.runs.iterdir()) == []


def test_ranks_run_on_all_hosts_and_a_second_shell_waits_for_them(here: Hidl, tmp_path: Path) -> None:
    first = Terminal(here.command("shell", "mpi", *HOSTS), here.environment, tmp_path)
    first.see("(mpi) ")
    first.type("ranks hostname | sort | tr '\\n' ,; echo; cat $HIDL_HOSTS | tr '\\n' ,")
    first.see("node1,node1,node2,node2,")
    second = Terminal(here.command("shell", "mpi", *HOSTS), here.environment, tmp_path)
    second.see("waiting for node1, in use by run")
    third = here("shell", "mpi", *HOSTS, "--share-hosts", "--", "sh", "-c", "ranks hostname | wc -l; exit 5")
    assert (third.returncode, third.stdout.split()) == (5, ["4"]), third.stderr
    first.type("exit")
    assert first.wait() == 0
    second.see("(mpi) ")
    second.press(b"\x04")
    assert second.wait() == 0
    assert list(here.runs.iterdir()) == []


@pytest.mark.deep
def test_who_waits_for_a_host_can_give_up(here: Hidl, tmp_path: Path) -> None:
    first = Terminal(here.command("shell", "mpi", *HOSTS), here.environment, tmp_path)
    first.see("(mpi) ")
    second = Terminal(here.command("shell", "mpi", *HOSTS), here.environment, tmp_path)
    second.see("waiting for node1, in use by run")
    second.press(b"\x03")
    assert second.wait() == 130
    first.press(b"\x04")
    assert first.wait() == 0
    until(lambda: not processes_with(str(here.runs)), otherwise=lambda: f"{processes_with(str(here.runs))}")

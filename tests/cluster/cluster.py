"""The fixture ``cluster``: a real Slurm with four nodes for the whole session; tests may kill of it what they like."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from hidl_twin import packages
from hidl_twin.cluster import Cluster, shared

from hidl_cli.errors import MissingPrecondition
from hidl_cli.site.machine import machine
from tests.waiting import patience, until

FIXTURES = ("cluster", "second_cluster", "public_cluster")
#: CPUs of a node, whatever the machine has: tests place two ranks of two threads on each.
CPUS = 4
#: Logical processors that a node shows: where the machine has the cores, its own.
SHOWN = CPUS if machine().cores < CPUS else len(os.sched_getaffinity(0))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a cluster where none can be had, each test by its name."""
    if not {*FIXTURES}.isdisjoint(getattr(item, "fixturenames", ())) and (obstacle := _obstacle()):
        pytest.skip(f"{item.nodeid} NEEDS A CLUSTER: {obstacle}")


@cache
def _obstacle() -> str | None:
    """Why no cluster can be had on this machine, after trying to install what is missing."""
    if (obstacle := packages.obstacle(accounting=True)) is not None:
        return obstacle.message
    log = Path(tempfile.gettempdir()) / "hidl-tests-apt-get.log"
    try:
        packages.install(accounting=True, log=log, say=lambda _: None)
    except MissingPrecondition as error:
        return error.message
    return None


class LivingCluster:
    """A cluster that is up. It ends with this process, however that ends: see ``living``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def directory(self) -> Path:
        """Its state."""
        return self._cluster.layout.directory

    @property
    def conf(self) -> Path:
        """Its slurm.conf."""
        return self._cluster.layout.conf

    @property
    def ssh_config(self) -> Path:
        """For ``ssh -F``, on this machine."""
        return self._cluster.layout["ssh/config"]

    @property
    def environment(self) -> dict[str, str]:
        """What hidl and Slurm's commands need to find it: ``hidl("run", ..., **cluster.environment)``."""
        return {"SLURM_CONF": str(self.conf)}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes."""
        return self._cluster.dress.names

    def __call__(self, *command: str, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands, or any other, on this machine: ``cluster("squeue", "-h")``."""
        environment = os.environ | self.environment | variables
        return subprocess.run(
            command,
            env=environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=patience(timeout),
            check=False,
        )

    def on(self, node: str, *command: str) -> str:
        """What a command, run on a node by root and not by Slurm, prints."""
        return self._cluster.nodes[node].run(command).stdout

    def processes(self, node: str) -> list[str]:
        """The command lines of what runs on a node: jobs and their steps, without the node's own daemons."""
        return [process.command for process in self._cluster.nodes[node].processes()]

    def state(self, node: str) -> str | None:
        """The node's state as sinfo tells it; a ``*`` at its end: it does not answer."""
        (found,) = (each for each in self._cluster.status()["nodes"] if each["name"] == node)
        return None if found["state"] is None else str(found["state"])

    def answers(self, daemon: str) -> bool:
        """Whether munged, mariadbd, slurmdbd or slurmctld lives and does its work."""
        service = self._cluster.service(daemon)
        return bool(service.pids) and service.answers()

    def kill(self, daemon: str) -> None:
        """Kill munged, mariadbd, slurmdbd or slurmctld with SIGKILL; ``start`` or ``mend`` brings it back."""
        self._cluster.service(daemon).kill()

    def start(self, daemon: str) -> None:
        """Start a daemon that was killed, and wait until it answers."""
        self._cluster.service(daemon).ensure()

    def restart(self, daemon: str) -> None:
        """End a daemon in good order, start it again, and wait until it answers."""
        self._cluster.restart(daemon)

    def kill_node(self, node: str) -> None:
        """Cut a node's power: all its processes end at once, and its address falls silent."""
        self._cluster.nodes[node].kill()

    def start_node(self, node: str) -> None:
        """Start a node that was killed; Slurm finds that it is back a little later."""
        self._cluster.start_node(node)

    def kill_on(self, node: str, name: str) -> None:
        """Kill sshd or slurmd on a node, and leave the rest of it alive."""
        self.on(node, "pkill", "-KILL", "-x", name)

    def use_up_the_time(self, job: str) -> None:
        """Let a running job reach its time limit, which is a minute at least; Slurm looks for such every 30 s."""
        completed = self("scontrol", "update", f"JobId={job}", "EndTime=now+1")
        assert completed.returncode == 0, completed.stderr

    def switch(self, *, accounting: bool | None = None, enforce_limits: bool | None = None) -> None:
        """Set EnforcePartLimits to ALL or NO, and take away or bring back the accounting; jobs live on."""
        self._cluster.up(accounting=accounting, enforce_limits=enforce_limits)

    def mend(self) -> None:
        """Bring it up again: whatever has died of it lives afterwards."""
        self._cluster.up()

    def wait_until_saved(self) -> None:
        """Wait until slurmctld has written down what it knows now, which it does up to 5 s later, if at all.

        If it is killed before, it forgets the youngest jobs, and ends those that it had started.
        """
        state, known = self.directory / "state" / "job_state", time.time()
        while time.time() < known + patience(7) and not (state.exists() and state.stat().st_mtime > known):
            time.sleep(0.1)

    @contextmanager
    def restored(self) -> Iterator[LivingCluster]:
        """Whatever is done to it within: afterwards it is whole, with accounting and limits, and has no jobs."""
        try:
            yield self
        finally:
            self._cluster.up(accounting=True, enforce_limits=True)
            self("scancel", "--user=root")
            until(lambda: not self("squeue", "-h").stdout)


@contextmanager
def living(
    directory: Path, *shares: Path, nodes: int, accounting: bool, like: str | None = None
) -> Iterator[LivingCluster]:
    """A cluster in ``directory`` that is brought up now and taken down at the end; ``like``: the twin of that site.

    ``hidl cluster down`` is waiting for this process to close a pipe: by leaving the context, or by dying.
    """
    down = [sys.executable, "-m", "hidl_cli", "cluster", "down", "--purge", "--directory", str(directory)]
    waiting = ["sh", "-c", 'read -r _; exec "$@"', "sh", *down]
    repository = Path(__file__).parents[2]
    log = directory.with_name(f"{directory.name}-down.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w", encoding="utf-8") as told,  # not to a pipe: who reads it may be dead by then
        subprocess.Popen(
            waiting, cwd=repository, stdin=subprocess.PIPE, stdout=told, stderr=told, start_new_session=True
        ) as guard,
    ):
        cluster = Cluster(directory, like=like)
        cluster.up(like=like, nodes=nodes, cpus_per_node=CPUS, accounting=accounting, shares=shared(shares))
        yield LivingCluster(cluster)
        guard.communicate(timeout=patience(300))
        assert guard.returncode == 0, log.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def cluster(common_directory: Path) -> Iterator[LivingCluster]:
    """Four nodes with accounting. All temporary directories of this session are seen on the nodes."""
    # The end of the path is that of a user's cluster: by it the site test-cluster is recognized.
    own = common_directory / os.environ.get("PYTEST_XDIST_WORKER", "alone") / "hidl" / "cluster"
    shares = [common_directory, *([Path(stacks)] if (stacks := os.environ.get("HIDL_TEST_SHARED")) else [])]
    with living(own, *shares, nodes=4, accounting=True) as found:
        yield found


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory whose path is short enough for the sockets of a cluster."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def second_cluster(place: Path, tmp_path: Path) -> Iterator[LivingCluster]:
    """One node without accounting, beside any other cluster."""
    with living(place / "second", tmp_path, nodes=1, accounting=False) as found:
        yield found

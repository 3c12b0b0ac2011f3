"""``hidl shell`` on the stand-in LSF, at a real terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hidl_twin.batch.store import FINAL
from hidl_twin.lsf.system import Lsf

from tests.cluster.standin import StandIn
from tests.conftest import Hidl
from tests.shell.ends import ENDS, KEPT, each_end, open_shell
from tests.waiting import until

SITE = """\
name: mine
title: this machine under LSF
scheduler: lsf
launchers: [mpiexec]
partitions: {batch: {node_type: cpu, max_nodes: 4, max_wall: '01:00:00'}}
default_partition: batch
node_types: {cpu: {cores: 2}}
policies: {memory: none, gpus: none, account_option: -P}
"""


@pytest.fixture
def lsf(tmp_path: Path) -> Iterator[StandIn]:
    """A stand-in with the queue batch; every job runs on this machine."""
    found = StandIn(Lsf(), tmp_path / "lsf")
    yield found
    found.end()


@pytest.fixture
def on_lsf(lsf: StandIn, hidl_with: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    """hidl with stack mpi on a site whose scheduler is the stand-in."""
    plain = hidl_with("mpi")
    hidl = Hidl(plain.environment | {"PATH": f"{lsf.spool / 'bin'}:{plain.environment['PATH']}"})
    file = hidl.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(SITE)
    installed = hidl("install", "mpi", "--site", "mine", "--prefix", str(tmp_path / "prefix"))
    assert installed.returncode == 0, installed.stderr
    return hidl


@each_end
def test_nothing_is_left(way: str, on_lsf: Hidl, lsf: StandIn, tmp_path: Path) -> None:
    shell = open_shell(on_lsf, tmp_path, "--site", "mine", "--prefix", str(tmp_path / "prefix"), launched=0)
    status = ENDS[way](shell)
    assert shell.terminal.wait() == status, shell.terminal.shown
    shell.nothing_is_left()
    until(lambda: all(job.stat in FINAL for job in lsf.store.jobs()), otherwise=lambda: f"{lsf.store.jobs()}")
    if way not in KEPT:
        assert list(on_lsf.runs.iterdir()) == []


@pytest.mark.deep
def test_at_the_time_limit_nothing_is_left(on_lsf: Hidl, lsf: StandIn, tmp_path: Path) -> None:
    options = ("--site", "mine", "--prefix", str(tmp_path / "prefix"), "--time", "1")
    shell = open_shell(on_lsf, tmp_path, *options, launched=0)
    assert shell.terminal.wait() == 8
    assert "the shell reached its time limit" in shell.terminal.shown
    shell.nothing_is_left()
    until(lambda: all(job.stat in FINAL for job in lsf.store.jobs()), otherwise=lambda: f"{lsf.store.jobs()}")


def test_lsf_refuses(on_lsf: Hidl, lsf: StandIn, tmp_path: Path) -> None:
    words = ("--site", "mine", "--prefix", str(tmp_path / "prefix"), "--reservation", "no-such", "--", "true")
    lsf.set(queues={"batch": {"max_nodes": 0}})
    completed = on_lsf("shell", "mpi", *words)
    assert completed.returncode == 6, completed.stderr
    assert "lsf did not grant an allocation: see its output above" in completed.stderr

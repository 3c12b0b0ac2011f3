"""Two Unix users and one installation on the real Slurm: run by both, upgraded, taken back and pruned during a job."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import LivingCluster, living
from tests.stack import test_shared
from tests.stack.test_shared import GROUP, User, prefixes
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.deep]

place, shared = test_shared.place, test_shared.shared

#: Slurm knows users by their names: two of every Debian.
STAFF, USER = (pwd.getpwnam(name).pw_uid for name in ("news", "games"))
SITE = "test-cluster"
#: Loads modules of its installation only when it is told to.
LATE = """
import sys, time
from pathlib import Path
from mpi4py import MPI
go, ready = map(Path, sys.argv[1:])
if MPI.COMM_WORLD.rank == 0:
    ready.touch()
while not go.exists():
    time.sleep(0.2)
import mpi4py.futures, mpi4py.bench, xmlrpc.client
print("late", MPI.COMM_WORLD.allreduce(1), sys.prefix, flush=True)
"""


@pytest.fixture
def public_cluster(place: Path) -> Iterator[LivingCluster]:
    """Two nodes, in a directory that all users reach."""
    with living(place / "hidl" / "cluster", place, nodes=2, accounting=False) as found:
        yield found


def test_staff_upgrade_take_back_and_prune_while_a_user_runs(
    place: Path, shared: Path, public_cluster: LivingCluster
) -> None:
    os.chown(shared, STAFF, -1)

    def one(number: int, *packages: str, **install: str) -> User:
        made = test_shared.user(place, shared, number, *packages, on=SITE, verify="here", **install)
        return replace(made, environment={**made.environment, **public_cluster.environment})

    def installed(who: User) -> Path:
        done = who("install", "mine", "--json")
        assert done.returncode == 0, done.stderr
        return Path(json.loads(done.stdout)["installations"][0]["prefix"])

    def status(who: User, run: str) -> Any:
        return json.loads(who("status", run, "--json").stdout)

    staff, user = one(STAFF, group=GROUP), one(USER)
    first = installed(staff)
    own = ("run", "--stack", "mine", "--nodes", "2", "--")
    for who in (staff, user):
        ran = who(*own, "python", "-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)")
        assert (ran.returncode, "2\n2\n" in ran.stderr) == (0, True), ran.stderr

    program, go, ready = place / "late.py", place / "go", place / str(USER) / "ready"
    program.write_text(LATE)
    started = user("run", "--no-wait", "--json", *own[1:], "python", str(program), str(go), str(ready))
    assert started.returncode == 0, started.stderr
    run = json.loads(started.stdout)["run"]
    until(ready.exists, within=60)

    second, third = installed(one(STAFF, "attrs", group=GROUP)), installed(one(STAFF, "six", group=GROUP))
    assert staff("prune", "--older-than", "0", "--yes").returncode == 0
    assert prefixes(shared, SITE) == sorted([first, second, third])
    assert staff("stack", "rollback", "mine").returncode == 0
    go.touch()
    until(lambda: status(user, run)["state"] == "COMPLETED", within=60, otherwise=lambda: status(user, run))
    assert user("logs", run).stdout.count(f"late 2 {first}") == 2
    ran = user(*own, "python", "-c", "import attrs, sys; print(sys.prefix)")
    assert (ran.returncode, str(second) in ran.stderr) == (0, True), ran.stderr
    assert staff("stack", "verify", "mine", "--all").returncode == 0

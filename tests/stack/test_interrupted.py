"""Installing is cut short in every way, and begun again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.stack.conftest import recipe, until_gone
from tests.stack.wheelhouse import make_wheel
from tests.waiting import patience, until

pytestmark = pytest.mark.real


def wait_for_step(root: Path, sign: str) -> None:
    """Wait until something that matches ``sign`` is below the root."""
    until(lambda: list(root.glob(sign)), within=30)


@pytest.mark.deep
@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.deep)])
def test_killed_at_any_moment_and_run_again_it_ends_installed_and_verified(hidl: Hidl, root: Path, times: int) -> None:
    begun = time.monotonic()
    hidl("install", "mpi")
    whole = time.monotonic() - begun
    for _ in range(times):
        shutil.rmtree(root)
        child = hidl.start("install", "mpi", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0.05, whole))
        child.kill()
        child.wait()
        again = hidl("install", "mpi", "--json")
        assert again.returncode == 0, again.stderr
        (installed,) = json.loads(again.stdout)["installations"]
        assert all(check["ok"] for check in installed["verification"]["checks"])
        until_gone(root)
        assert not list(root.glob("local/mpi/.removed-*"))


@pytest.mark.parametrize(
    ("sign", "ending"),
    [
        ("lock.txt", signal.SIGINT),
        ("bin/python", signal.SIGTERM),
        ("bin/mpiexec", signal.SIGINT),
        ("lib/python3*/site-packages/mpi4py/__pycache__", signal.SIGINT),  # the ranks of the verification
    ],
)
def test_interrupted_it_leaves_nothing_running_and_nothing_published(
    hidl: Hidl, root: Path, tmp_path: Path, sign: str, ending: signal.Signals
) -> None:
    make_wheel(tmp_path / "house", "slow", "1.0", content="import time; time.sleep(60)")
    recipe(hidl, "slow", extends="mpi", packages={"slow": ""}, verify={"imports": ["slow"]})
    installer = Hidl(hidl.environment | {"PIP_FIND_LINKS": str(tmp_path / "house")})
    child = installer.start("install", "slow", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for_step(root, f"local/slow/*/{sign}")
    child.send_signal(ending)
    _, said = child.communicate(timeout=patience(300))
    assert (child.returncode, "interrupted" in said) == (130, True)
    until_gone(root)
    assert [
        *root.glob("local/slow/*/manifest.json"),
        *root.glob("local/slow/current"),
        *root.glob("modulefiles/*"),
    ] == []


@pytest.fixture
def halted(hidl: Hidl, root: Path) -> Iterator[subprocess.Popen[str]]:
    """An installation that stands still in its middle; it goes on to its end after the test."""
    first = hidl.start("install", "mpi", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_for_step(root, "local/mpi/*/lock.txt")
    first.send_signal(signal.SIGSTOP)
    yield first
    first.send_signal(signal.SIGCONT)
    assert first.wait(patience(60)) == 0


def waiting(hidl: Hidl) -> tuple[subprocess.Popen[str], str]:
    """A second installation that waits, and what it says while it does."""
    second = hidl.start("install", "mpi", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert second.stderr is not None
    return second, second.stderr.readline()


def test_the_second_of_two_waits_says_for_whom_and_finds_nothing_to_do(
    hidl: Hidl, halted: subprocess.Popen[str]
) -> None:
    second, said = waiting(hidl)
    user = os.environ.get("USER") or f"uid {os.getuid()}"
    assert f"waiting for hidl with pid {halted.pid} of {user} on {os.uname().nodename}, started 20" in said
    halted.send_signal(signal.SIGCONT)
    assert "installed in" in halted.communicate(timeout=patience(300))[0]
    assert "nothing to do" in second.communicate(timeout=patience(300))[0]


def test_a_waiting_one_can_be_interrupted(hidl: Hidl, halted: subprocess.Popen[str]) -> None:
    second, said = waiting(hidl)
    assert "waiting for" in said
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=patience(300))
    assert second.returncode == 130


def test_the_lock_of_a_killed_one_is_free(hidl: Hidl, root: Path) -> None:
    first = hidl.start("install", "mpi", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_step(root, "local/mpi/*/lock.txt")
    first.kill()
    first.wait()
    assert "waiting" not in hidl("install", "mpi").stderr

"""``hidl install`` for a site whose own MPI library proves the stack, in a job."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.cluster.cluster import LivingCluster
from tests.conftest import Hidl
from tests.stack.conftest import site
from tests.waiting import patience


def test_it_is_verified_in_a_job_on_the_sites_own_mpi(
    on_cluster: Callable[..., Hidl], stack_prefix: Callable[[str], Path], common_directory: Path
) -> None:
    hidl = on_cluster("mpi")
    other = stack_prefix("mpi")
    mpi = f"mpi:\n  mine:\n    family: mpich\n    prefix: {other}\ndefault_mpi: mine\n"
    site(hidl, "other", f"title: other\nextends: test-cluster\n{mpi}")
    (found,) = hidl.json("install", "mpi", "--site", "other", "--prefix", str(common_directory / "verified"))[
        "installations"
    ]
    verification = found["verification"]
    assert (verification["where"], verification["mpi"]["name"]) == ("job", "mine")
    assert verification["mpi"]["library"].startswith(str(other.resolve()))
    assert verification["job"]
    assert verification["host"].startswith("node")


def test_interrupted_while_the_verifying_job_waits_the_same_line_waits_for_that_job(
    on_cluster: Callable[..., Hidl], stack_prefix: Callable[[str], Path], common_directory: Path, cluster: LivingCluster
) -> None:
    hidl = on_cluster("mpi")
    mpi = f"mpi:\n  mine:\n    family: mpich\n    prefix: {stack_prefix('mpi')}\ndefault_mpi: mine\n"
    site(hidl, "waiting", f"title: waiting\nextends: test-cluster\n{mpi}")
    line = ("install", "mpi", "--site", "waiting", "--prefix", str(common_directory / "interrupted"))
    blocker = cluster("sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap", "sleep 300").stdout.strip()
    try:
        child = hidl.start(*line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert child.stderr is not None
        assert any("the verification job is pending" in line for line in child.stderr)
        (job,) = jobs(cluster) - {blocker}
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=patience(300))
        assert child.returncode == 130, said
        assert job in jobs(cluster)
    finally:
        cluster("scancel", blocker)
    (found,) = hidl.json(*line)["installations"]
    assert (found["action"], found["verification"]["job"]) == ("installed", job)


def test_killed_right_after_the_submission_the_same_line_waits_for_that_job(
    on_cluster: Callable[..., Hidl],
    stack_prefix: Callable[[str], Path],
    common_directory: Path,
    cluster: LivingCluster,
    tmp_path: Path,
) -> None:
    hidl = on_cluster("mpi")
    mpi = f"mpi:\n  mine:\n    family: mpich\n    prefix: {stack_prefix('mpi')}\ndefault_mpi: mine\n"
    site(hidl, "killed", f"title: killed\nextends: test-cluster\n{mpi}")
    line = ("install", "mpi", "--site", "killed", "--prefix", str(common_directory / "killed"))
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    number = tmp_path / "number"
    sbatch.write_text(f'#!/bin/sh\n{shutil.which("sbatch")} "$@" > "{number}"\nkill -KILL $PPID\n')
    sbatch.chmod(0o755)
    killed = hidl(*line, PATH=f"{sbatch.parent}:{hidl.environment['PATH']}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (found,) = hidl.json(*line)["installations"]
    assert found["verification"]["job"] == number.read_text().strip().partition(";")[0]


def jobs(cluster: LivingCluster) -> set[str]:
    """Ids of the jobs in the queue."""
    return set(cluster("squeue", "--noheader", "--format=%A").stdout.split())

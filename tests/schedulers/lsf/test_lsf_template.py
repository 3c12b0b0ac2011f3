"""What a job script knows of its allocation, from what LSF puts into its environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hidl_cli.schedulers import scheduler
from tests.conftest import SHELLCHECK

MCPU_OF_SUMMIT = "batch2 1 h41n04 42 h41n03 42"
MCPU_WITHOUT_A_LAUNCH_NODE = "h41n04 42 h41n03 42"


def hosts(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    script = f"set -euo pipefail\n{scheduler('lsf').functions}\nlist_hosts\n"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_launch_node_is_not_a_compute_node(tmp_path: Path) -> None:
    assert hosts(tmp_path, LSB_MCPU_HOSTS=MCPU_OF_SUMMIT).stdout.split() == ["h41n04", "h41n03"]


def test_without_a_launch_node_all_hosts_count(tmp_path: Path) -> None:
    assert hosts(tmp_path, LSB_MCPU_HOSTS=MCPU_WITHOUT_A_LAUNCH_NODE).stdout.split() == ["h41n04", "h41n03"]


def test_hosts_of_one_slot_each_all_count(tmp_path: Path) -> None:
    assert hosts(tmp_path, LSB_MCPU_HOSTS="a 1 b 1 c 1").stdout.split() == ["a", "b", "c"]


def test_one_host_is_the_allocation(tmp_path: Path) -> None:
    assert hosts(tmp_path, LSB_MCPU_HOSTS="a 1").stdout.split() == ["a"]


def test_the_host_file_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "host file"
    file.write_text("batch2\n" + "h41n04\n" * 42 + "h41n03\n" * 42)
    assert hosts(tmp_path, LSB_DJOB_HOSTFILE=str(file), LSB_MCPU_HOSTS="other 1").stdout.split() == ["h41n04", "h41n03"]


def test_a_large_allocation_is_listed_too(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    names = [f"node{number:04d}" for number in range(4608)]
    file.write_text("batch2\n" + "".join(f"{name}\n" * 42 for name in names))
    assert hosts(tmp_path, LSB_DJOB_HOSTFILE=str(file)).stdout.split() == names


def test_outside_a_job_of_lsf_it_says_so(tmp_path: Path) -> None:
    completed = hosts(tmp_path)
    assert (completed.returncode, "is this a job of LSF?" in completed.stderr) == (1, True)


def test_in_a_job_the_output_goes_to_the_runs_files(tmp_path: Path) -> None:
    completed = hosts(tmp_path, LSB_MCPU_HOSTS="a 1", LSB_JOBID="7")
    assert (completed.stdout, (tmp_path / "stdout.log").read_text()) == ("", "a\n")


def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    script = tmp_path / "lsf.sh"
    script.write_text(f"#!/usr/bin/env bash\n{scheduler('lsf').functions}\nlist_hosts\n")
    completed = subprocess.run([SHELLCHECK, script], capture_output=True, text=True, check=False)
    assert completed.stdout == ""

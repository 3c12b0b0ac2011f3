"""Which cores there are: read from a kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_workloads.doctor import cores


def machine(root: Path, *, online: str = "0-7") -> None:
    """Two sockets of two cores of two threads each."""
    system = root / "sys/devices/system/cpu"
    for cpu in range(8):
        topology = system / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu // 2 % 2}\n")
        (topology / "core_id").write_text(f"{cpu % 2}\n")
    (system / "online").write_text(f"{online}\n")


@pytest.mark.parametrize(("text", "expected"), [("0-3,8", [0, 1, 2, 3, 8]), ("5", [5]), ("", []), ("x-y", [])])
def test_a_kernels_list_is_read(text: str, expected: list[int]) -> None:
    assert cores.numbers(text) == expected


def test_threads_of_one_core_are_one_core(tmp_path: Path) -> None:
    machine(tmp_path)
    assert cores.cores_of([0, 4], tmp_path / "sys/devices/system/cpu") == {(0, 0)}


def test_without_a_control_group_all_cores_that_are_online_are_the_nodes(tmp_path: Path) -> None:
    machine(tmp_path)
    assert len(cores.of_the_node(tmp_path)) == 4


def test_the_control_group_says_which_are_the_jobs(tmp_path: Path) -> None:
    machine(tmp_path)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    (tmp_path / "sys/fs/cgroup/job/step").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/job/step/cpuset.cpus.effective").write_text("0-1\n")
    assert cores.of_the_node(tmp_path) == {(0, 0), (0, 1)}

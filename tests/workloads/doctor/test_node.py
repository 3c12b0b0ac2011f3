"""Facts and rules of one node: on recorded facts, and on the real fault where it can be staged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.doctor import node_probe
from hidl_workloads.doctor.node import GIB, MIB, RULES, UNLIMITED, Node, Room, probe
from tests.conftest import REPOSITORY

ROOMY = Room("/tmp", 100 * GIB, 50 * GIB, 10**6)
HEALTHY = Node("n1", tmp=ROOMY, shm=replace(ROOMY, path="/dev/shm"), memlock=UNLIMITED, nofile=1024, memory=64 * GIB)
TELL = (
    "from hidl_workloads.doctor import node; print([(f.rule, f.severity) for f in node.RULES.findings(node.probe())])"
)


def found(node: Node) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity) for finding in RULES.findings(node)]


def test_nothing_is_wrong_with_a_healthy_node() -> None:
    assert found(HEALTHY) == []


def test_nothing_is_wrong_where_nothing_is_known() -> None:
    assert found(Node("n1")) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tmp": replace(ROOMY, free=MIB)}, ("HD040", "error")),
        ({"tmp": replace(ROOMY, free=100 * MIB)}, ("HD040", "warning")),
        ({"tmp": replace(ROOMY, files_free=0)}, ("HD040", "error")),
        ({"tmp": replace(ROOMY, files_free=10)}, ("HD040", "warning")),
        ({"tmp": replace(ROOMY, writable=False)}, ("HD040", "error")),
        ({"shm": replace(ROOMY, free=MIB)}, ("HD041", "error")),
        ({"shm": replace(ROOMY, total=64 * MIB, free=64 * MIB)}, ("HD041", "warning")),
        ({"shm": replace(ROOMY, free=32 * MIB)}, ("HD041", "warning")),
        ({"shm": replace(ROOMY, writable=False)}, ("HD041", "error")),
        ({"memlock": 64 * 1024}, ("HD043", "info")),
        ({"memlock": 64 * 1024, "rdma": True}, ("HD043", "error")),
        ({"memlock": 64 * MIB, "rdma": True}, ("HD043", "warning")),
        ({"nofile": 512}, ("HD044", "warning")),
        ({"nofile": 64}, ("HD044", "error")),
        ({"memory_limit": 4 * GIB, "wanted_memory": 64 * GIB}, ("HD048", "warning")),
    ],
)
def test_what_is_wrong_is_found_by_its_rule(changes: dict[str, object], expected: tuple[str, str]) -> None:
    assert found(replace(HEALTHY, **changes)) == [expected]  # type: ignore[arg-type]


@given(st.integers(0, 2**50), st.integers(0, 2**50))
def test_more_room_is_never_worse(less: int, more: int) -> None:
    def badness(free: int) -> int:
        findings = found(replace(HEALTHY, shm=Room("/dev/shm", 2**50, free)))
        return {"error": 2, "warning": 1}.get(findings[0][1], 0) if findings else 0

    assert badness(max(less, more)) <= badness(min(less, more))


def test_every_finding_says_where_it_is() -> None:
    small = Room("/tmp", MIB, 0)
    bad = replace(HEALTHY, tmp=small, shm=small, memlock=0, nofile=1, memory_limit=1, wanted_memory=GIB)
    assert {finding.where for finding in RULES.findings(bad)} == {"n1"}


def test_of_two_mounts_on_one_place_the_later_one_is_seen(tmp_path: Path) -> None:
    mounts = tmp_path / "proc" / "self" / "mountinfo"
    mounts.parent.mkdir(parents=True)
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 0:5 / /tmp rw - tmpfs a rw",
        "3 1 0:6 / /tmp rw - nfs srv:/t rw",
    ]
    mounts.write_text("\n".join(lines))
    assert node_probe.mount_of("/tmp", tmp_path) == ("nfs", "srv:/t")
    assert node_probe.mount_of("/tmpfiles", tmp_path) == ("ext4", "/dev/sda1")


def test_the_probe_needs_nothing_but_python() -> None:
    text = Path(node_probe.__file__).read_text(encoding="utf-8")
    completed = subprocess.run([sys.executable, "-I", "-S", "-c", text, "/nowhere"], capture_output=True, check=True)
    facts = Node.from_facts(json.loads(completed.stdout))
    assert (facts.host, facts.stack and facts.stack.seen) == (os.uname().nodename, False)


def test_what_it_reports_of_this_machine_is_what_the_machine_says() -> None:
    here = probe()
    assert here.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert here.tmp is not None
    assert here.tmp.identity == f"{Path('/tmp').stat().st_dev}:{Path('/tmp').stat().st_ino}"


def test_facts_are_read_back_as_they_were_written() -> None:
    here = probe("/nowhere", wanted_memory=GIB)
    assert Node.from_facts(json.loads(json.dumps(asdict(here)))) == here


def staged(command: str, *around: str) -> str:
    """What is found in a process for which ``command`` has made the fault real."""
    words = [*around, "sh", "-c", f"{command} && exec {sys.executable} -c '{TELL}'"]
    return subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="MOUNTS NEED ROOT")
def test_a_full_dev_shm_is_found() -> None:
    fill = "mount -t tmpfs -o size=1m t /dev/shm && head -c 1048576 /dev/zero > /dev/shm/full"
    assert "('HD041', 'error')" in staged(fill, "unshare", "-m")


def test_limited_locked_memory_is_found() -> None:
    assert "('HD043', 'info')" in staged("ulimit -l 64")


def test_a_small_number_of_open_files_is_found() -> None:
    assert "('HD044', 'warning')" in staged("ulimit -n 512")

"""``hidl validate --hosts`` and ``hidl doctor --hosts``: the sshd of the test cluster's nodes, without Slurm."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import LivingCluster
from tests.cluster.own_ssh import with_own_ssh
from tests.conftest import Hidl
from tests.shell.terminal import processes_with
from tests.validate.conftest import PACED, cases
from tests.waiting import patience, until

LEAVES = """
import reframe as rfm
from hidl_checks import Run
from reframe.core.builtins import parameter


@rfm.simple_test
class leaves(Run):
    workload = "leaves"
    scale = parameter(["1-rank"])
"""
HOSTS = ("--site", "test-cluster", "--hosts", "node1,node2")


@pytest.fixture
def here(cluster: LivingCluster, on_cluster: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    """hidl with stack mpi and the tests' checks, for a user whose own ssh reaches the nodes."""
    return with_own_ssh(on_cluster("mpi"), cluster, tmp_path)


def left(here: Hidl) -> list[str]:
    """Command lines of this user's installations and runs, here and on all nodes."""
    return [*processes_with(here.environment["XDG_DATA_HOME"]), *processes_with(here.environment["XDG_STATE_HOME"])]


@pytest.mark.deep
def test_the_scales_are_those_that_the_hosts_allow(here: Hidl) -> None:
    document = here.json("validate", *HOSTS, "--check", "mpi_sanity")
    found = cases(document)
    assert {name: case["verdict"] for name, case in found.items()} == {
        "mpi_sanity %scale=1-rank": "pass",
        "mpi_sanity %scale=1-node": "pass",
        "mpi_sanity %scale=2-nodes": "pass",
    }
    assert document["left_out"] == ["mpi_sanity %scale=4-nodes"]
    status = here.json("status", found["mpi_sanity %scale=2-nodes"]["run"])
    assert (status["scheduler"], status["hosts"]) == ("ssh", ["node1", "node2"])


@pytest.mark.deep
def test_a_host_that_cannot_be_used_is_named_in_its_case(here: Hidl) -> None:
    words = ("--site", "test-cluster", "--hosts", "node1,nowhere", "--check", "mpi_sanity%scale=2-nodes")
    (case,) = here.json("validate", *words, status=6)["cases"]
    assert case["verdict"] == "fail"
    assert "1 of 2 host(s) cannot be used; nothing was started: nowhere: " in case["reason"]


@pytest.mark.deep
def test_ctrl_c_leaves_nothing_on_any_host(here: Hidl) -> None:
    words = ("validate", *HOSTS, "--check", "hanging")
    with here.start(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as validation:
        until(lambda: any("paced.py" in line for line in left(here)), otherwise=lambda: "no rank started")
        validation.send_signal(signal.SIGINT)
        validation.communicate(timeout=patience(300))
    assert validation.returncode == 130
    until(lambda: not left(here), otherwise=lambda: "\n".join(left(here)))


@pytest.mark.deep
def test_what_a_check_has_left_on_a_host_is_ended(here: Hidl) -> None:
    quiet = "stdin=-3, stdout=-3, stderr=-3"
    daemon = f"import subprocess; subprocess.Popen(['sleep', '97771'], start_new_session=True, {quiet})"
    here.add_workload("leaves", "fails.py", program={"command": ["python", "-c", daemon]}, metrics=PACED["metrics"])
    (here.config / "reframe_checks" / "leaves.py").write_text(LEAVES)
    (case,) = here.json("validate", *HOSTS, "--check", "leaves", status=9)["cases"]
    assert "wrote no metrics" in case["reason"]
    until(lambda: not processes_with("sleep 97771"), otherwise=lambda: "the daemon lives")


def test_the_doctor_examines_the_hosts(here: Hidl) -> None:
    document = here.json("doctor", *HOSTS, "--stack", "mpi")
    assert document["unknown"] == []
    told = {(each["rule"], each["where"]): each["severity"] for each in document["findings"]}
    assert set(told.values()) == {"info"}
    assert ("HD054", None) in told  # so both were asked


@pytest.mark.deep
def test_a_host_that_cannot_be_used_is_a_finding_and_the_others_are_examined(here: Hidl) -> None:
    words = ("--site", "test-cluster", "--stack", "mpi")
    document = here.json("doctor", *words, "--hosts", "node1,nowhere,node2", status=4)
    errors = [each for each in document["findings"] if each["severity"] == "error"]
    assert [(each["rule"], each["where"]) for each in errors] == [("HD055", "nowhere")]
    assert "resolve" in errors[0]["seen"]
    assert errors[0]["mend"] == "check its name, or add it to ~/.ssh/config with a HostName"
    assert ("HD054", None) in {(each["rule"], each["where"]) for each in document["findings"]}

    alone = here.json("doctor", *words, "--hosts", "nowhere", status=4)
    assert [each["rule"] for each in alone["findings"] if each["severity"] == "error"] == ["HD055"]
    assert list((here.runs.parent / "doctor").iterdir()) == []

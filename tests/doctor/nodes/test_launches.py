"""Rules over launches that were tried, and over ssh between nodes, on recorded facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hidl_cli.doctor.nodes import Attempt, JobFacts, LaunchResult, SshCheck, find_in_launches
from hidl_workloads.doctor.node import Node
from hidl_workloads.doctor.nodes import Nodes
from hidl_workloads.doctor.ranks import Rank

NODES = Nodes((Node("n0"), Node("n1")), ("n0", "n1"))
USUAL = Attempt("srun", "pmi2", True, 2, None)
OTHER = Attempt("srun", "none", False, 2, None)


def tried(attempt: Attempt, *, size: int = 2, status: int | None = 0, said: str = "", count: int = 2) -> LaunchResult:
    ranks = tuple(Rank(number if size > 1 else 0, size, f"n{number}") for number in range(count))
    return LaunchResult(attempt, status, said, ranks)


def found(
    *launches: LaunchResult, ssh: tuple[SshCheck, ...] = (), nodes: Nodes = NODES
) -> list[tuple[str, str, str | None]]:
    return [(each.rule, each.severity, each.where) for each in find_in_launches(JobFacts(nodes, launches, ssh))]


def test_nothing_is_wrong_with_launches_that_came_up() -> None:
    assert found(tried(USUAL), tried(Attempt("mpiexec", None, True, 2, None))) == []


def test_singletons_of_the_type_that_hidl_uses_are_an_error() -> None:
    assert found(tried(USUAL, size=1)) == [("HD001", "error", "srun --mpi=pmi2")]


def test_singletons_of_another_type_are_good_to_know() -> None:
    assert found(tried(USUAL), tried(OTHER, size=1)) == [("HD001", "info", "srun --mpi=none")]


def test_another_type_that_fails_loudly_is_not_a_finding() -> None:
    assert found(tried(USUAL), tried(OTHER, status=16, count=0)) == []


def test_the_cure_of_a_type_that_does_not_work_is_one_that_does() -> None:
    facts = JobFacts(NODES, (tried(USUAL, size=1), tried(replace(OTHER, mpi_type="pmix"))))
    (finding,) = find_in_launches(facts)
    assert "use a launcher that works: srun --mpi=pmix" in finding.fix


@pytest.mark.parametrize(
    ("status", "count", "words"),
    [
        (1, 0, "exited with status 1; output: cannot execute"),
        (124, 0, "timed out"),
        (0, 1, "1 of 2 ranks did not report"),
    ],
)
def test_a_launch_that_starts_not_all_ranks_is_found(status: int, count: int, words: str) -> None:
    facts = JobFacts(NODES, (tried(USUAL, status=status, count=count, said="=====\ncannot execute\n====="),))
    (finding,) = (each for each in find_in_launches(facts) if each.rule == "HD052")
    assert words in finding.seen


def test_where_a_node_is_broken_that_is_to_be_fixed_first() -> None:
    silent = replace(NODES, hosts=("n0", "n1", "n2"))
    (finding,) = find_in_launches(JobFacts(silent, (tried(USUAL, status=1, count=0),)))
    assert finding.fix == "first fix n2"


def test_a_launch_that_the_job_did_not_come_to_is_not_a_finding() -> None:
    assert found(tried(USUAL, status=None, count=0)) == []


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("root@n1: Permission denied (publickey).", "ssh-keygen"),
        ("Host key verification failed.", "ssh-keyscan n1"),
        ("ssh: connect to host n1 port 22: Connection refused", "systemctl status sshd"),
        ("something else", "ssh -v"),
    ],
)
def test_each_refusal_of_ssh_has_its_cure(said: str, cure: str) -> None:
    (finding,) = find_in_launches(JobFacts(NODES, (), (SshCheck("n0", "n1", 255, said),)))
    assert (finding.rule, finding.where, cure in finding.fix) == ("HD006", "n1", True)


def test_ssh_that_answers_is_not_a_finding() -> None:
    assert found(ssh=(SshCheck("n0", "n1", 0),)) == []

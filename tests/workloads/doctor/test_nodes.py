"""Rules over the nodes of a job, on recorded facts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.doctor.node import GIB, Node, Room, Stack
from hidl_workloads.doctor.nodes import RULES, Nodes

STACK = Stack(seen=True, python=True, manifest="a" * 64)
TMP = Room("/tmp", GIB, GIB, type="ext4", source="/dev/sda2", identity="8:2")


def node(name: str, **changes: object) -> Node:
    facts = Node(
        name,
        time=1000.0,
        told_by="stack",
        boot=f"boot of {name}",
        tmp=TMP,
        prefix="/apps/mpi",
        stack=STACK,
        versions={"kernel": "6.1", "C library": "glibc 2.36"},
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def found(*nodes: Node, **changes: object) -> list[tuple[str, str, str | None]]:
    facts = Nodes(nodes, tuple(each.host for each in nodes), 999.5, 1000.5)
    findings = RULES.findings(replace(facts, **changes))  # type: ignore[arg-type]
    return [(finding.rule, finding.severity, finding.where) for finding in findings]


def test_nothing_is_wrong_with_four_alike() -> None:
    assert found(*(node(f"n{number}") for number in range(4))) == []


def test_one_local_disk_each_is_not_shared_though_all_look_alike() -> None:
    assert TMP.identity == node("n1").tmp.identity == node("n2").tmp.identity  # type: ignore[union-attr]
    assert found(node("n1"), node("n2")) == []


def test_a_tmp_on_the_network_is_shared() -> None:
    shared = replace(TMP, type="nfs4", source="srv:/scratch")
    assert found(node("n1", tmp=shared), node("n2", tmp=shared), node("n3")) == [("HD042", "warning", None)]


def test_a_tmp_of_the_machine_that_two_nodes_are_parts_of_is_shared() -> None:
    ids = [rule for rule, *_ in found(node("n1", boot="b"), node("n2", boot="b"))]
    assert ids == ["HD042", "HD054"]


def test_parts_of_one_machine_with_directories_of_their_own_are_good_to_know_of() -> None:
    own = replace(TMP, identity="0:99")
    assert found(node("n1", boot="b"), node("n2", boot="b", tmp=own)) == [("HD054", "info", None)]


def test_a_host_that_answers_twice_shares_no_directory_with_itself() -> None:
    twice = (node("vm", boot="b"), node("vm", boot="b"))
    assert found(*twice, outside=node("vm", boot="b")) == [("HD054", "info", None)]
    (finding,) = RULES.findings(Nodes(twice, ("vm", "vm"), 999.5, 1000.5))
    assert finding.seen == "vm (2 times) have the same boot id"


def test_one_node_that_is_part_of_the_host_that_asks_is_known_too() -> None:
    assert found(node("n1", boot="b"), outside=Node("login", boot="b")) == [("HD054", "info", None)]


@pytest.mark.parametrize(("time", "severity"), [(999.0, "warning"), (1001.0, "warning"), (1400.0, "error")])
def test_a_clock_outside_of_question_and_answer_is_wrong(time: float, severity: str) -> None:
    assert found(node("n1"), node("n2", time=time)) == [("HD049", severity, "n2")]


@given(st.floats(999.5, 1000.5))
def test_no_clock_within_question_and_answer_is_called_wrong(time: float) -> None:
    assert found(node("n1"), node("n2", time=time)) == []


def test_another_installation_on_one_node_is_found_there() -> None:
    other = replace(STACK, manifest="b" * 64)
    assert found(node("n1"), node("n2"), node("n3", stack=other)) == [("HD050", "error", "n3")]


def test_another_kernel_is_good_to_know_and_another_c_library_a_warning() -> None:
    other = {"kernel": "5.14", "C library": "glibc 2.34"}
    expected = [("HD050", "warning", "n3"), ("HD050", "info", "n3")]
    assert found(node("n1"), node("n2"), node("n3", versions=other)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"stack": Stack(seen=False, python=False), "told_by": "system"},
        {"stack": Stack(seen=True, python=False)},
        {"stack": STACK, "told_by": "system"},
        {"stack": Stack(seen=True, python=True)},
    ],
    ids=["no directory", "no interpreter", "an interpreter that does not start", "no manifest"],
)
def test_a_stack_that_cannot_be_used_is_not_there(changes: dict[str, object]) -> None:
    assert found(node("n1"), node("n2", **changes)) == [("HD051", "error", "n2")]


def test_a_host_that_reported_nothing_does_not_answer() -> None:
    assert found(node("n1"), hosts=("n1.cluster", "n2.cluster")) == [("HD053", "error", "n2.cluster")]

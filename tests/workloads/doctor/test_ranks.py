"""Rules over the ranks of a world, on recorded facts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.doctor.ranks import RULES, Rank, World, this_rank

NODE = frozenset((0, core) for core in range(8))
MPICH = ("/apps/lib/libmpi.so.12",)


def ranks(count: int, *, per_node: int = 2, each: int = 4, **changes: object) -> tuple[Rank, ...]:
    """``count`` ranks on as many nodes as they need, each bound to ``each`` cores of its own."""

    def rank(number: int) -> Rank:
        first = number % per_node * each
        cores = frozenset((0, core) for core in range(first, first + each))
        host = f"n{number // per_node}"
        return Rank(number, count, host, cores, NODE, 1, MPICH, version="MPICH 5", boot=f"boot of {host}")

    return tuple(replace(rank(number), **changes) for number in range(count))  # type: ignore[arg-type]


def found(world: World) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity) for finding in RULES.findings(world)]


def test_nothing_is_wrong_with_ranks_that_have_their_cores() -> None:
    assert found(World(ranks(4), expected=4, cores_per_rank=4)) == []


def test_nothing_is_wrong_where_nothing_is_known() -> None:
    assert found(World((Rank(0, 1, "n0"),))) == []


def test_ranks_that_are_each_alone_are_singletons() -> None:
    assert found(World(ranks(4, size=1), expected=4)) == [("HD001", "error")]


def test_a_launch_that_works_is_the_cure_of_one_that_does_not() -> None:
    (finding,) = RULES.findings(World(ranks(4, size=1), expected=4, instead=("srun --mpi=pmi2",)))
    assert "srun --mpi=pmi2" in finding.fix


def test_one_rank_that_was_asked_for_alone_is_not_a_singleton() -> None:
    assert found(World(ranks(1), expected=1)) == []


def test_a_launcher_that_was_given_one_rank_has_another_number_in_mind() -> None:
    assert found(World(ranks(1, told_size=1), expected=2)) == [("HD008", "error")]


def test_a_world_of_another_size_is_found() -> None:
    assert found(World(ranks(2), expected=4)) == [("HD008", "error")]


def test_two_libraries_in_one_process_are_found() -> None:
    both = (*MPICH, "/other/libmpi.so.40")
    assert found(World(ranks(2, libraries=both))) == [("HD003", "error")]


def test_a_library_in_the_place_of_the_stacks_own_is_found() -> None:
    assert found(World(ranks(2, strange=("/other/libmpi.so.40",)))) == [("HD003", "error")]


def test_another_version_on_one_rank_is_found_with_its_host() -> None:
    *same, last = ranks(4, per_node=1)
    (finding,) = RULES.findings(World((*same, replace(last, version="MPICH 4"))))
    assert (finding.rule, "MPICH 4 on n3" in finding.seen) == ("HD009", True)


def test_more_threads_than_cores_are_found_once() -> None:
    assert found(World(ranks(4, threads=5))) == [("HD045", "warning")]


def test_unbound_ranks_are_wrong_only_where_binding_was_asked_for() -> None:
    unbound = ranks(2, cores=NODE)
    assert found(World(unbound)) == []
    assert found(World(unbound, cores_per_rank=4)) == [("HD046", "warning")]


def test_hardware_threads_that_were_counted_as_cores_are_named_as_the_cause() -> None:
    halves = tuple(replace(rank, cpus=4) for rank in ranks(2, each=2))
    (finding,) = RULES.findings(World(halves, cores_per_rank=4))
    assert finding.rule == "HD046"
    assert "hardware threads were counted" in finding.seen
    assert "threads_per_core" in finding.fix
    assert "TaskPlugin" not in finding.fix
    unbound = tuple(replace(rank, cpus=8) for rank in ranks(2, cores=NODE))
    (finding,) = RULES.findings(World(unbound, cores_per_rank=4))
    assert "TaskPlugin" in finding.fix


def test_ranks_on_the_same_core_are_found_with_their_host() -> None:
    (finding,) = RULES.findings(World(ranks(4, cores=frozenset({(0, 3)})), cores_per_rank=1))
    assert (finding.rule, finding.where, finding.seen) == ("HD047", "n0", "ranks 0, 1 share cores")
    assert finding.fix.startswith("remove taskset")


def test_the_same_core_of_different_hosts_is_not_the_same_core() -> None:
    assert found(World(ranks(4, per_node=1, cores=frozenset({(0, 3)})), cores_per_rank=1)) == []


@pytest.mark.parametrize("boots", [{}, {"login": "b"}], ids=["each other", "the host outside"])
def test_parts_of_one_machine_share_cores_and_that_is_not_a_fault(boots: dict[str, str]) -> None:
    unbound = ranks(2 if boots else 4, cores=NODE, boot="b")
    assert found(World(unbound, cores_per_rank=4, boots=boots)) == [("HD046", "info")]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 2))
def test_no_fault_is_found_in_what_is_placed_well(nodes: int, per_node: int, each: int) -> None:
    world = ranks(nodes * per_node, per_node=per_node, each=each, threads=each)
    assert found(World(world, expected=len(world), cores_per_rank=each)) == []


def test_a_rank_is_read_back_as_it_was_written() -> None:
    here = this_rank(3, 7, version="V")
    assert Rank.from_json(json.loads(json.dumps(here.to_json()))) == here

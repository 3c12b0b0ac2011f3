"""The count of MPI calls is itself held against a program whose calls can be counted by reading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workloads import ranks
from tests.workloads.omb.calls import Call, Counted, Section, count

RANKS = 4


@pytest.fixture(scope="module")
def counted(counter: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Counted:
    directory = tmp_path_factory.mktemp("calls") / "counts"
    return count(counter, wheels, RANKS, ranks.PROGRAMS / "makes_known_calls.py", directory=directory)


def without(section: Section, *functions: str) -> Section:
    return Section({call: calls for call, calls in section.items() if call.function not in functions})


def test_point_to_point_calls_are_counted_on_both_sides(counted: Counted) -> None:
    both = {
        Call("MPI_Isend", sent=5): 1,
        Call("MPI_Irecv", received=5): 1,
        Call("MPI_Waitall"): 1,
        Call("MPI_Send_init", sent=8): 1,
        Call("MPI_Start of MPI_Send", sent=8): 7,
        Call("MPI_Recv", received=8): 7,
        Call("MPI_Wait"): 7,
        Call("MPI_Request_free"): 1,
    }
    assert [rank[1] for rank in counted.ranks] == [
        Section(both | ({Call("MPI_Send", sent=32): 3} if rank % 2 == 0 else {Call("MPI_Recv", received=32): 3}))
        for rank in range(RANKS)
    ]


def test_collectives_are_counted_with_what_each_rank_s_buffers_hold(counted: Counted) -> None:
    assert [rank[2] for rank in counted.ranks] == [
        Section(
            {
                Call("MPI_Allreduce", 24, 24): 2,
                Call("MPI_Allgather", 16, 16 * RANKS): 1,
                Call("MPI_Bcast", 40 * (rank == 1), 40 * (rank != 1)): 1,
                Call("MPI_Gather", 16, 16 * RANKS * (rank == 1)): 1,
                Call("MPI_Allgatherv", 8 * (rank + 1), 8 * (1 + 2 + 3 + 4)): 1,
                Call("MPI_Reduce_scatter", 8 * (1 + 2 + 3 + 4), 8 * (rank + 1)): 1,
                Call("MPI_Alltoall", 32 * RANKS, 32 * RANKS): 1,
                Call("MPI_Ialltoall", 32 * RANKS, 32 * RANKS): 1,
                Call("MPI_Wait"): 1,
                Call("MPI_Barrier"): 1,
            }
        )
        for rank in range(RANKS)
    ]


def test_neighbourhoods_are_counted_by_their_degree(counted: Counted) -> None:
    expected = {Call("MPI_Neighbor_allgather", 16, 32): 1, Call("MPI_Neighbor_alltoall", 32, 32): 1}
    assert [rank[3] for rank in counted.ranks] == [Section(expected)] * RANKS


def test_one_sided_calls_are_counted_where_they_are_made(counted: Counted) -> None:
    expected = {
        Call("MPI_Win_lock_all"): 1,
        Call("MPI_Put", sent=16): 1,
        Call("MPI_Get", received=16): 1,
        Call("MPI_Win_flush"): 2,
        Call("MPI_Win_unlock_all"): 1,
    }
    assert [rank[4] for rank in counted.ranks] == [Section(expected)] * RANKS

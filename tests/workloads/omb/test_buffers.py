"""What holds the data: memory that begins on a page, and patterns in which any change is seen."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.gpu_aware import Answer
from hidl_workloads.omb import buffers
from hidl_workloads.omb.benchmark import Datatype
from hidl_workloads.omb.options import Options, UsageError

TYPES = [Datatype("MPI_CHAR", None, 1, "i1"), Datatype("MPI_INT", None, 4, "i4"), Datatype("MPI_FLOAT", None, 4, "f4")]
HOST = ("bytearray", "numpy")


@pytest.mark.parametrize("kind", HOST)
@pytest.mark.parametrize("size", [1, 4096, 100_001])
def test_memory_on_the_host_begins_on_a_page(kind: str, size: int) -> None:
    host = buffers.allocate(kind, size).read(size)
    assert (host.ctypes.data % mmap.PAGESIZE, host.size) == (0, size)


@pytest.mark.parametrize("kind", [*HOST, "pickle"])
def test_memory_is_written_before_it_is_sent(kind: str) -> None:
    assert set(buffers.allocate(kind, 10_000).read(10_000)) == {ord("a")}


@pytest.mark.parametrize("kind", HOST)
@given(data=st.data(), datatype=st.sampled_from(TYPES), count=st.integers(1, 3000))
def test_a_changed_element_is_found(kind: str, data: st.DataObject, datatype: Datatype, count: int) -> None:
    buffer = buffers.allocate(kind, count * datatype.size)
    expected = buffers.pattern(count, datatype, 3, 1)
    buffer.write(expected)
    assert buffers.differences(buffer, expected) == 0
    element = data.draw(st.integers(0, count - 1))
    buffer.write(expected[element : element + 1] + 1, element * datatype.size)
    assert buffers.differences(buffer, expected) == 1


@given(
    iteration=st.integers(0, 10_000),
    source=st.integers(0, 1000),
    datatype=st.sampled_from(TYPES),
    count=st.sampled_from([1, 2, 64, 4096]),
)
def test_neighbouring_iterations_and_ranks_differ_in_every_element(
    iteration: int, source: int, datatype: Datatype, count: int
) -> None:
    own = buffers.pattern(count, datatype, iteration, source)
    others = [buffers.pattern(count, datatype, *other) for other in ((iteration + 1, source), (iteration, source + 1))]
    assert all((own != other).all() for other in others)


def test_a_message_that_arrived_short_is_wrong_in_every_element() -> None:
    buffer = buffers.allocate("pickle", 8)
    buffer.received(bytearray(4))
    assert buffers.differences(buffer, np.zeros(8, "i1")) == 8


@pytest.mark.parametrize("kind", ["cupy", "numba"])
def test_a_library_that_is_not_there_is_named(kind: str) -> None:
    with pytest.raises(UsageError, match=f"requires the library {kind}"):
        buffers.allocate(kind, 8)


@pytest.mark.parametrize("kind", [*HOST, "pickle"])
def test_what_lies_on_the_host_cannot_lie_on_a_device(kind: str) -> None:
    with pytest.raises(UsageError, match="cannot be on a device; supported: cupy, numba, torch"):
        buffers.allocate(kind, 8, device=True)


def test_one_side_can_lie_on_the_host_and_the_other_on_a_device() -> None:
    options = Options(places=("H", "D"), buffer="cupy")
    assert [buffers.on_device(options, rank) for rank in (0, 1, 2)] == [False, True, True]
    assert isinstance(buffers.for_rank(options, 0, 8), buffers.NumpyBuffer)


@pytest.mark.parametrize(("kind", "device"), [("cupy", True), ("numba", True), ("torch", False), ("numpy", False)])
def test_the_kind_tells_where_a_buffer_lies_where_nothing_else_does(kind: str, device: bool) -> None:
    assert buffers.on_device(Options(buffer=kind), 0) is device


@pytest.mark.parametrize("aware", [True, False, None])
def test_an_mpi_library_that_does_not_read_gpu_memory_is_refused_before_it_crashes(
    aware: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without such a word, it may read it."""
    monkeypatch.setattr("hidl_workloads.gpu_aware.ask", lambda _: Answer(aware, "libmpi.so.12 answers"))
    assert ("which this MPI library does not read (libmpi.so.12 answers)" in buffers.unreadable("numba")) is (
        aware is False
    )

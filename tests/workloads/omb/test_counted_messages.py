"""Messages between ranks and one-sided operations are made as often, and with as many bytes, as OMB's C programs do."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.workloads import ranks
from tests.workloads.omb.calls import Call, Section, count

TIMED, WARMUP, WINDOW, SIZE = 5, 2, 3, 64
TIMES = TIMED + WARMUP
WINDOWED = {"bw", "bibw", "mbw_mr", "bw_persistent", "bibw_persistent", "put_bw", "get_bw", "put_bibw"}
ANSWER = 1  # bytes of the message by which the receiver tells that a window has arrived

_SEND, _RECEIVE = Call("MPI_Send", sent=SIZE), Call("MPI_Recv", received=SIZE)
_ISEND, _IRECEIVE = Call("MPI_Isend", sent=SIZE), Call("MPI_Irecv", received=SIZE)
_TOLD, _ANSWERED = Call("MPI_Recv", received=ANSWER), Call("MPI_Send", sent=ANSWER)
_STARTED_SEND, _STARTED_RECEIVE = Call("MPI_Start of MPI_Send", sent=SIZE), Call("MPI_Start of MPI_Recv", received=SIZE)
_FLUSH = Call("MPI_Win_flush")

#: By benchmark: the calls of rank 0 and of rank 1.
OF_OMB: dict[str, tuple[dict[Call, int], dict[Call, int]]] = {
    "latency": ({_SEND: TIMES, _RECEIVE: TIMES}, {_SEND: TIMES, _RECEIVE: TIMES}),
    "multi_lat": ({_SEND: TIMES, _RECEIVE: TIMES}, {_SEND: TIMES, _RECEIVE: TIMES}),
    "latency_persistent": (
        {_STARTED_SEND: TIMES, _STARTED_RECEIVE: TIMES},
        {_STARTED_SEND: TIMES, _STARTED_RECEIVE: TIMES},
    ),
    "bw": ({_ISEND: TIMES * WINDOW, _TOLD: TIMES}, {_IRECEIVE: TIMES * WINDOW, _ANSWERED: TIMES}),
    "mbw_mr": ({_ISEND: TIMES * WINDOW, _TOLD: TIMES}, {_IRECEIVE: TIMES * WINDOW, _ANSWERED: TIMES}),
    "bibw": ({_ISEND: TIMES * WINDOW, _IRECEIVE: TIMES * WINDOW}, {_ISEND: TIMES * WINDOW, _IRECEIVE: TIMES * WINDOW}),
    "put_latency": ({Call("MPI_Put", sent=SIZE): TIMES, _FLUSH: TIMES}, {}),
    "get_latency": ({Call("MPI_Get", received=SIZE): TIMES, _FLUSH: TIMES}, {}),
    "acc_latency": ({Call("MPI_Accumulate", sent=SIZE): TIMES, _FLUSH: TIMES}, {}),
    "get_acc_latency": ({Call("MPI_Get_accumulate", SIZE, SIZE): TIMES, _FLUSH: TIMES}, {}),
    "put_bw": ({Call("MPI_Put", sent=SIZE): TIMES * WINDOW, _FLUSH: TIMES}, {}),
    "get_bw": ({Call("MPI_Get", received=SIZE): TIMES * WINDOW, _FLUSH: TIMES}, {}),
}
COUNTED = {call.function for both in OF_OMB.values() for section in both for call in section}


@pytest.fixture(scope="module")
def made(wheels: Path, counter: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Section, ...]]:
    """By benchmark: what each of the two ranks called."""
    times = ["-m", f"{SIZE}:{SIZE}", "-i", str(TIMED), "-x", str(WARMUP)]
    words = [[name, *times, *(["-W", str(WINDOW)] if name in WINDOWED else [])] for name in OF_OMB]
    program = [ranks.PROGRAMS / "runs_benchmarks.py", json.dumps(words)]
    counted = count(counter, wheels, 2, *program, directory=tmp_path_factory.mktemp("messages") / "counts")
    told = json.loads(counted.completed.stdout.splitlines()[-1])
    assert [status for status, _, _ in told] == [0] * len(told), told
    return {
        name: tuple(
            Counter({call: n for call, n in rank[section].items() if _of_interest(call)}) for rank in counted.ranks
        )
        for section, name in enumerate(OF_OMB, start=1)
    }


def _of_interest(call: Call) -> bool:
    """Not what mpi4py pickles around a benchmark, which has other sizes."""
    return call.function in COUNTED and max(call.sent, call.received) in (0, ANSWER, SIZE)


@pytest.mark.parametrize("name", OF_OMB)
def test_it_sends_what_omb_sends(made: dict[str, tuple[Section, ...]], name: str) -> None:
    assert made[name] == tuple(Counter(section) for section in OF_OMB[name])

"""Exchange data by one of several patterns, and write what this rank sent: traffic.py PATTERN DIRECTORY."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
ME, SIZE = WORLD.rank, WORLD.size
#: Messages and bytes to each rank, by channel.
sent: dict[str, dict[int, list[int]]] = {"point-to-point": {}, "collective": {}, "one-sided": {}}
lock = threading.Lock()


def count(channel: str, target: int, size: int, messages: int = 1) -> None:
    with lock:
        cell = sent[channel].setdefault(target, [0, 0])
        cell[0] += messages
        cell[1] += size


def count_others(size: int, messages: int = 1, ranks: list[int] | None = None) -> None:
    for rank in range(SIZE) if ranks is None else ranks:
        if rank != ME:
            count("collective", rank, size, messages)


def data(size: int) -> np.ndarray:
    return np.zeros(size, np.uint8)


def ring() -> None:
    for size in (0, 1, 8, 1000, 70_000, 2_000_000):
        WORLD.Sendrecv(data(size), (ME + 1) % SIZE, 0, data(size + 5), (ME - 1) % SIZE)
        count("point-to-point", (ME + 1) % SIZE, size)
    buffer = data(24)
    WORLD.Sendrecv_replace(buffer, (ME + 1) % SIZE, 0, (ME - 1) % SIZE)
    count("point-to-point", (ME + 1) % SIZE, 24)
    WORLD.Sendrecv(data(3), MPI.PROC_NULL, 0, data(3), MPI.PROC_NULL)


def tree() -> None:
    """A binomial tree of blocking calls, all modes of sending, and probes."""
    step = 1
    while step < SIZE:
        if step > ME and ME + step < SIZE:
            buffer = data(1000 + step)
            (WORLD.Send, WORLD.Ssend)[step % 2](buffer, ME + step)
            count("point-to-point", ME + step, buffer.size)
        elif step <= ME < 2 * step:
            status = MPI.Status()
            WORLD.Probe(ME - step, MPI.ANY_TAG, status)
            WORLD.Recv(data(status.Get_count(MPI.BYTE)), ME - step)
        step *= 2
    if ME:
        message = json.dumps({"rank": ME})
        WORLD.send(message, 0)
        count("point-to-point", 0, len(MPI.pickle.dumps(message)))
    else:
        for _ in range(SIZE - 1):
            WORLD.recv()


def nonblocking() -> None:
    left, right = (ME - 1) % SIZE, (ME + 1) % SIZE
    for complete in (waitall, waitany, waitsome, testall, testany, testsome, each):
        receives = [WORLD.Irecv(data(500), left if tag % 2 else MPI.ANY_SOURCE, tag) for tag in range(5)]
        sends = []
        for tag in range(5):
            sends.append((WORLD.Isend, WORLD.Issend)[tag % 2](data(100 * tag), right, tag))
            count("point-to-point", right, 100 * tag)
        complete([*receives, *sends])
        WORLD.Barrier()
    for _ in range(100):
        cancelled = WORLD.Irecv(data(9), left, 77)
        cancelled.Cancel()
        cancelled.Wait()


def boundaries() -> None:
    """Exchange with neighbours without periodic boundaries: the ends of the line have no neighbour."""
    left, right = (ME - 1 if ME else MPI.PROC_NULL), (ME + 1 if ME + 1 < SIZE else MPI.PROC_NULL)
    for complete in (waitall, waitany, waitsome, testall, testany, testsome, each):
        receives = [WORLD.Irecv(data(500), side, tag) for tag in range(3) for side in (left, right)]
        sends = [WORLD.Isend(data(100 * tag), side, tag) for tag in range(3) for side in (left, right)]
        complete([*receives, *sends])
        for tag in range(3):
            for side in {left, right} - {MPI.PROC_NULL}:
                count("point-to-point", side, 100 * tag)


def waitall(requests: list[MPI.Request]) -> None:
    MPI.Request.Waitall(requests)


def waitany(requests: list[MPI.Request]) -> None:
    while MPI.Request.Waitany(requests) != MPI.UNDEFINED:
        pass


def waitsome(requests: list[MPI.Request]) -> None:
    while MPI.Request.Waitsome(requests) is not None:
        pass


def testall(requests: list[MPI.Request]) -> None:
    while not MPI.Request.Testall(requests):
        pass


def testany(requests: list[MPI.Request]) -> None:
    while MPI.Request.Testany(requests) != (MPI.UNDEFINED, True):
        pass


def testsome(requests: list[MPI.Request]) -> None:
    while MPI.Request.Testsome(requests, [MPI.Status() for _ in requests]) is not None:
        pass


def each(requests: list[MPI.Request]) -> None:
    for request in requests[::2]:
        request.Wait()
    for request in requests[1::2]:
        while not request.Test():
            pass


def persistent() -> None:
    left, right = (ME - 1) % SIZE, (ME + 1) % SIZE
    requests = [WORLD.Send_init(data(640), right), WORLD.Recv_init(data(640), left)]
    for _ in range(10):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        count("point-to-point", right, 640)
    for request in requests:
        request.Free()
    if hasattr(MPI.Comm, "Bcast_init"):
        buffer = data(50)
        try:
            request = WORLD.Bcast_init(buffer, SIZE - 1)
        except NotImplementedError:
            return
        for _ in range(3):
            request.Start()
            request.Wait()
            if ME == SIZE - 1:
                count_others(50)
        request.Free()


def split() -> None:
    """Ranks of the parts are in reverse; communicators are made and freed many times."""
    part = WORLD.Split(ME % 2, -ME)
    members = [rank for rank in reversed(range(SIZE)) if rank % 2 == ME % 2]
    assert members[part.rank] == ME
    for _ in range(200):
        copy = part.Dup()
        if part.size > 1:
            target = members[(part.rank + 1) % part.size]
            copy.Sendrecv(data(17), (part.rank + 1) % part.size, 0, data(17), (part.rank - 1) % part.size)
            count("point-to-point", target, 17)
        copy.Free()
    part.Allgather(data(9), data(9 * part.size))
    count_others(9, ranks=members)


def threads() -> None:
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    copies = [WORLD.Dup() for _ in range(4)]

    def exchange(number: int) -> None:
        comm = copies[number]
        for size in range(200):
            request = comm.Irecv(data(size), (ME - 1) % SIZE)
            comm.Send(data(size), (ME + 1) % SIZE)
            request.Wait()
            count("point-to-point", (ME + 1) % SIZE, size)

    running = [threading.Thread(target=exchange, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def collectives() -> None:
    """All with addressees that MPI defines, blocking and nonblocking."""
    root = SIZE - 1

    def run(name: str, *arguments: object) -> None:
        getattr(WORLD, name)(*arguments)
        getattr(WORLD, f"I{name[0].lower()}{name[1:]}")(*arguments).Wait()

    run("Bcast", data(11), root)
    if root == ME:
        count_others(22, 2)
    run("Gather", data(13), data(13 * SIZE) if root == ME else None, root)
    if root != ME:
        count("collective", root, 26, 2)
    run("Scatter", data(7 * SIZE) if root == ME else None, data(7), root)
    if root == ME:
        count_others(14, 2)
    run("Allgather", data(5), data(5 * SIZE))
    count_others(10, 2)
    run("Alltoall", data(3 * SIZE), data(3 * SIZE))
    count_others(6, 2)
    run("Alltoall", MPI.IN_PLACE, data(4 * SIZE))
    count_others(8, 2)
    sizes, mine = list(range(1, SIZE + 1)), [ME + 1] * SIZE
    run("Allgatherv", data(ME + 1), [data(sum(sizes)), sizes])
    count_others(2 * (ME + 1), 2)
    run("Alltoallv", [data(sum(sizes)), sizes], [data(SIZE * (ME + 1)), mine])
    run("Scatterv", [data(sum(sizes)), sizes] if root == ME else None, data(ME + 1), root)
    run("Reduce_scatter", data(sum(sizes)), data(ME + 1), sizes)
    for rank in range(SIZE):
        if rank != ME:
            count("collective", rank, 2 * (rank + 1), 2)
            count("collective", rank, 2 * (rank + 1), 2)
            if root == ME:
                count("collective", rank, 2 * (rank + 1), 2)
    run("Gatherv", data(ME + 1), [data(sum(sizes)), sizes] if root == ME else None, root)
    run("Reduce", data(6), data(6), MPI.SUM, root)
    if root != ME:
        count("collective", root, 2 * (ME + 1), 2)
        count("collective", root, 12, 2)
    run("Reduce_scatter_block", data(2 * SIZE), data(2))
    count_others(4, 2)
    run("Scan", data(8), data(8))
    run("Exscan", data(8), data(8))
    if ME + 1 < SIZE:
        count("collective", ME + 1, 32, 4)


def allreduce() -> None:
    """Each member reduces a part, gets the others' contributions to it and sends them the result."""
    sizes = (1, 8, 1000, 4096)
    for size in sizes:
        WORLD.Allreduce(data(size), data(size))
    WORLD.Iallreduce(MPI.IN_PLACE, data(5)).Wait()
    total = sum(sizes) + 5
    parts = [total // SIZE + (rank < total % SIZE) for rank in range(SIZE)]
    for rank in range(SIZE):
        if rank != ME:
            count("collective", rank, parts[rank] + parts[ME], 2 * (len(sizes) + 1))


def averager() -> None:
    """Averages of gradients as hidl's training makes them: pieces of 4 MiB, several buffers under way."""
    from hidl_workloads.training.data_parallel.allreduce import Allreduce

    average = Allreduce(WORLD, 1 / SIZE)
    sizes = (1, 1000, 3_000_001)
    buffers = [average.buffer(size, "float32") for size in sizes]
    for buffer in buffers:
        buffer[:] = ME
        average.start(buffer)
    average.finish()
    assert all(np.allclose(buffer, (SIZE - 1) / 2) for buffer in buffers)
    average.close()
    total = 4 * sum(sizes)
    parts = [total // SIZE + (rank < total % SIZE) for rank in range(SIZE)]
    pieces = sum(-(-4 * size // (4 << 20)) for size in sizes)
    for rank in range(SIZE):
        if rank != ME:
            count("collective", rank, parts[rank] + parts[ME], 2 * pieces)


def neighbours() -> None:
    grid = WORLD.Create_cart([SIZE], [True])
    grid.Neighbor_alltoall(data(2 * 21), data(2 * 21))
    grid.Ineighbor_allgather(data(4), data(2 * 4)).Wait()
    for rank in ((ME - 1) % SIZE, (ME + 1) % SIZE):
        count("collective", rank, 25, 2)
    graph = WORLD.Create_dist_graph_adjacent([(ME - 1) % SIZE], [(ME + 1) % SIZE])
    graph.Neighbor_allgather(data(100), data(100))
    count("collective", (ME + 1) % SIZE, 100)


def one_sided() -> None:
    target = (ME + 1) % SIZE
    memory = np.zeros(1000, np.int64)
    window = MPI.Win.Create(memory, 8, comm=WORLD)
    window.Fence()
    window.Put(np.ones(10, np.int64), target)
    window.Accumulate(np.ones(5, np.int64), target, (100, 5, MPI.LONG))
    window.Fence()
    into = np.zeros(7, np.int64)
    window.Get(into, target)
    window.Fence()
    window.Lock(target)
    window.Rput(np.ones(2, np.int64), target).Wait()
    window.Fetch_and_op(np.ones(1, np.int64), np.zeros(1, np.int64), target, 500)
    window.Compare_and_swap(np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), target, 600)
    window.Get_accumulate(np.ones(3, np.int64), np.zeros(3, np.int64), target, 700)
    window.Unlock(target)
    window.Free()
    count("one-sided", target, 8 * (10 + 5 + 2 + 1 + 2 + 3), 6)
    count("one-sided", (ME - 1) % SIZE, 8 * (7 + 1 + 1 + 3), 4)  # what others fetch from here


def between() -> None:
    """Two groups, and an intercommunicator between them."""
    half = SIZE // 2
    group = WORLD.Split(half > ME, ME)
    bridge = group.Create_intercomm(0, WORLD, half if half > ME else 0)
    others = [rank for rank in range(SIZE) if (rank < half) != (half > ME)]
    request = bridge.Irecv(data(30), MPI.ANY_SOURCE)
    first = group.rank == 0
    if first:
        bridge.Send(data(30), 0)
        count("point-to-point", others[0], 30)
        request.Wait()
    else:
        request.Cancel()
        request.Wait()
    bridge.Allgather(data(6), data(6 * len(others)))
    for rank in others:
        count("collective", rank, 6)
    root = (MPI.ROOT if first else MPI.PROC_NULL) if half > ME else 0
    bridge.Bcast(data(12), root)
    if half > ME and first:
        for rank in others:
            count("collective", rank, 12)


def drawn() -> None:
    """Messages of a random order, size and kind that all ranks draw alike."""
    draw = random.Random(int(sys.argv[3]))
    comms = [WORLD, WORLD.Dup(), WORLD.Split(0, -ME)]
    pending: list[MPI.Request] = []
    for number in range(300):
        source, target, which = draw.randrange(SIZE), draw.randrange(SIZE), draw.randrange(3)
        size = draw.choice((0, 1, 7, 64, 1023, 5000, 100_000))
        how, typed = draw.randrange(3), draw.random() < 0.3
        comm = comms[which]
        kind = MPI.BYTE.Create_vector(size, 1, 2).Commit() if typed else MPI.BYTE
        buffer = [data(2 * size + 1), 1 if typed else size, kind]
        place = (lambda rank: SIZE - 1 - rank) if which == 2 else (lambda rank: rank)
        if source == ME:
            count("point-to-point", target, size)
            pending.append((comm.Isend, comm.Issend, comm.Isend)[how](buffer, place(target), number))
        if target == ME:
            pending.append(comm.Irecv([data(2 * size + 1), size, MPI.BYTE], place(source), number))
        if draw.random() < 0.1:
            (waitall, waitsome, testany)[how](pending)
            pending = []
        if typed:
            kind.Free()
    waitall(pending)


PATTERNS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        *(ring, tree, nonblocking, boundaries, persistent, split, threads, collectives, allreduce, averager),
        *(neighbours, one_sided, between, drawn),
    )
}


if __name__ == "__main__":
    PATTERNS[sys.argv[1]]()
    WORLD.Barrier()
    (Path(sys.argv[2]) / f"{ME}.json").write_text(json.dumps(sent))

"""Large messages within a node: the sender copies too, every byte comes once, and nobody waits for a busy sender."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import random
import threading

import numpy as np
from distributed.comm import Comm
from distributed.protocol import to_serialize
from mpi4dask import counters, memory
from mpi4dask.memory import Counts, Pull, Push, Span, piece_size
from mpi4dask.peer import Peer
from pair import WORLD, Pair

SIZE = 2_000_000  # of 8 bytes


class Watched(memory.Neighbour):
    """This process as its own neighbour; it notes what is copied, and fails from some copy on."""

    def __init__(self, copies: int = 10**9) -> None:
        super().__init__(memory.place())
        self.copied: list[tuple[int, int]] = []
        self.copies = copies

    def read(self, source: int, target: int, size: int) -> bool:
        """As it does, and remember it, but for a look at a count."""
        if target != ctypes.addressof(self._few):
            self.copied.append((target, size))
        return super().read(source, target, size)

    def write(self, target: int, source: int, size: int) -> bool:
        """As it does, and remember it; no more than so often."""
        self.copies -= 1
        if self.copies < 0:
            return False
        self.copied.append((target, size))
        return super().write(target, source, size)


class Failing(memory.Neighbour):
    """A neighbour whose memory cannot be read, or written, any more after so many calls."""

    def __init__(self, peer: Peer, reads: int, writes: int) -> None:
        assert isinstance(peer.neighbour, memory.Neighbour)
        self.__dict__.update(peer.neighbour.__dict__)
        self.reads, self.writes = reads, writes

    def read(self, source: int, target: int, size: int) -> bool:
        """As it does, so often."""
        self.reads -= 1
        return self.reads >= 0 and super().read(source, target, size)

    def write(self, target: int, source: int, size: int) -> bool:
        """As it does, so often."""
        self.writes -= 1
        return self.writes >= 0 and super().write(target, source, size)


async def no_byte_is_copied_twice_or_not_at_all(pair: Pair) -> None:
    """Both ends in this process, each in a thread of its own, which start and stop at any moment."""
    chance = random.Random(WORLD.rank)
    for _ in range(150):
        sizes = [chance.randrange(1, 1 << chance.randrange(1, 22)) for _ in range(chance.randrange(1, 6))]
        source, target = np.random.default_rng(0).bytes(sum(sizes)), bytearray(sum(sizes))
        spans: list[Span] = []
        at = 0
        for size in sizes:
            spans.append((memory.address(source) + at, memory.address(target) + at, size))
            at += size
        piece = chance.choice([piece_size(at), -(-at // 254), max(at // 7, -(-at // 254))])
        reader, writer = Watched(), Watched(chance.choice([0, 1, 5, 10**9]))
        pull = Pull(spans, piece, target)
        counts = Counts()
        push = Push(spans, piece, counts, pull.counts.address)
        pull.expect_help(counts.address)
        thread = threading.Thread(target=_push_on, args=(push, writer))
        thread.start()
        while not pull.complete:
            pull.advance(reader)
        thread.join()
        assert bytes(target) == source
        copied = sorted(reader.copied + writer.copied)
        after_failure = writer.copies < 0  # a piece of several spans may have been written in part
        assert after_failure or sum(size for _, size in copied) == at
        assert after_failure or all(here + size <= there for (here, size), (there, _) in itertools.pairwise(copied))


def _push_on(push: Push, writer: Watched) -> None:
    while not push.done:
        push.advance(writer)


async def the_sender_of_a_large_message_helps_to_copy_it(pair: Pair) -> None:
    comm = await pair.comm()
    before = counters.transfers_helped
    for turn in range(10):
        await _exchange(comm, turn)
    can = _peer(comm).neighbour is not None and _peer(comm).spins
    helped = await asyncio.to_thread(WORLD.allgather, counters.transfers_helped - before)  # allreduce: see pair.py
    assert any(helped) == can


async def a_sender_that_is_busy_is_not_waited_for(pair: Pair) -> None:
    comm = await pair.comm()
    can = _peer(comm).neighbour is not None
    for turn in range(3):
        if pair.serves:
            assert (await comm.read())[-1] == turn
            if can:
                WORLD.send("it is here", 1)
        else:
            await comm.write(to_serialize(np.full(SIZE, turn)))
            if can:  # nobody runs this loop until the message has arrived
                assert WORLD.recv() == "it is here"
        await pair.meet()


async def a_sender_that_cannot_write_leaves_the_rest_to_the_receiver(pair: Pair) -> None:
    comm = await pair.comm()
    peer = _peer(comm)
    if peer.neighbour is None:
        return
    for writes in (0, 1, 3):
        peer.neighbour = Failing(peer, reads=10**9, writes=writes)
        await _exchange(comm, writes)


async def a_receiver_that_cannot_read_on_leaves_the_rest_to_mpi(pair: Pair) -> None:
    """What the sender still writes goes into memory that nobody else has got."""
    comm = await pair.comm()
    engine = comm._engine
    for reads in (1, 2, 5, 9):
        if engine.neighbour(_peer(comm).rank) is None:
            return
        if pair.serves:
            _peer(comm).neighbour = Failing(_peer(comm), reads=reads, writes=10**9)
        await _exchange(comm, reads)
        while _peer(comm).helping:  # its last word is on its way
            await asyncio.sleep(0.001)
        await pair.meet()
        _peer(comm).neighbour = engine.neighbour(_peer(comm).rank)


async def _exchange(comm: Comm, number: int) -> None:
    """Send and read a message of several frames, some of them large."""
    sizes = (SIZE, 10 + number, 70_000, SIZE // 3)
    await comm.write([to_serialize(np.arange(number, number + size)) for size in sizes])
    parts = await comm.read()
    for part, size in zip(parts, sizes, strict=True):
        assert np.array_equal(part, np.arange(number, number + size))


def _peer(comm: Comm) -> Peer:
    peer: Peer = comm._link.peer
    return peer

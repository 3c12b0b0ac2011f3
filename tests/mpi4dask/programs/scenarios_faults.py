"""Closes, cancels, aborts and full queues: nothing is lost, and what is not concerned goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time

import numpy as np
from distributed.comm import Comm, CommClosedError
from distributed.protocol import to_serialize
from mpi4dask import counters
from mpi4dask.authentication import PROOF_SIZE
from mpi4dask.endpoint import current_world, endpoint
from mpi4dask.peer import FRESH, SAFETY, SOON
from pair import WORLD, Pair


async def is_closed(comm: Comm) -> None:
    """Read until the end, which must come."""
    try:
        heard = await comm.read()
    except CommClosedError:
        assert comm.closed()
    else:
        raise AssertionError(f"read {heard!r} from a closed connection")


async def works(comm: Comm) -> None:
    """Both ends send and read a small and a large message."""
    await comm.write({"small": 1})
    await comm.write({"large": to_serialize(np.arange(300_000))})
    assert await comm.read() == {"small": 1}
    assert (await comm.read())["large"][-1] == 299_999


async def wait_for_large(free: int) -> None:
    """Return when as many tags are free again."""
    world = current_world()
    assert world is not None
    while world.free_transfer_tags < free:
        await asyncio.sleep(0.001)


async def a_close_tells_the_peer(pair: Pair) -> None:
    comm = await pair.comm()
    if pair.serves:
        await is_closed(comm)
        try:
            await comm.write(1)
        except CommClosedError:
            return
        raise AssertionError("wrote to a closed connection")
    await comm.close()
    assert comm.closed()


async def a_close_does_not_wait_for_a_peer_that_has_closed_and_is_held_up(pair: Pair) -> None:
    comm = await pair.comm()
    if pair.serves:
        await asyncio.to_thread(WORLD.recv, None, 1, 7)
        await comm.close()
        WORLD.recv(None, 1, 8)  # its loop stands still
    else:
        WORLD.send(None, 0, 7)
        time.sleep(0.5)  # no turn of this loop hears of the close
        await comm.write(to_serialize(np.arange(100_000)))
        try:
            await asyncio.wait_for(comm.close(), 10)
        finally:
            WORLD.send(None, 0, 8)


async def a_pending_read_ends_with_its_own_close(pair: Pair) -> None:
    comm = await pair.comm()
    reading = asyncio.ensure_future(comm.read())
    await pair.meet()
    if pair.serves:
        await comm.close()
    try:
        await reading
    except CommClosedError:
        return
    raise AssertionError("read from a closed connection")


async def what_was_sent_before_the_close_is_read(pair: Pair) -> None:
    comm = await pair.comm()
    if pair.serves:
        assert [len(await comm.read()) for _ in range(6)] == [1, 5_000_000, 2, 400_000, 3, 4]
        await is_closed(comm)
    else:
        for size in (1, 5_000_000, 2, 400_000, 3, 4):
            await comm.write(to_serialize(np.zeros(size, dtype="u1")))
        await comm.close()


async def a_comm_that_is_forgotten_closes(pair: Pair) -> None:
    comms = await pair.comms(1)
    if pair.serves:
        await is_closed(comms[0])
    else:
        pair._comms.clear()
        comms.clear()
        gc.collect()


async def a_cancelled_read_loses_nothing(pair: Pair) -> None:
    comm = await pair.comm()
    if pair.serves:
        for _ in range(3):
            reading = asyncio.ensure_future(comm.read())
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()
        await pair.meet()
        reading = asyncio.ensure_future(comm.read())  # in the middle of a large frame
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        if reading.cancelled():
            assert len(await comm.read()) == 20_000_000
    else:
        await pair.meet()
        await comm.write(to_serialize(np.zeros(20_000_000, dtype="u1")))
    await works(comm)


async def a_cancelled_write_leaves_both_ends_whole(pair: Pair) -> None:
    comm = await pair.comm()
    if not pair.serves:
        writing = asyncio.ensure_future(comm.write({"x": to_serialize(b"x" * 20_000_000)}))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        await comm.write("next")
    else:
        heard = await comm.read()
        assert heard == "next" or (len(heard["x"]) == 20_000_000 and await comm.read() == "next")
    await works(comm)


async def an_abort_in_the_middle_of_frames_leaves_others_whole(pair: Pair) -> None:
    world = current_world()
    assert world is not None
    free = world.free_transfer_tags
    comms = await pair.comms(2)
    if pair.serves:
        names = {await comm.read(): comm for comm in comms}
        with contextlib.suppress(CommClosedError):  # the other end may have been quicker
            for _ in range(20):
                await names["victim"].write(to_serialize(np.zeros(3_000_000, dtype="u1")))
        await is_closed(names["victim"])
        await works(names["other"])
    else:
        await comms[0].write("victim")
        await comms[1].write("other")
        await comms[0].read()
        comms[0].abort()
        await works(comms[1])
    await wait_for_large(free)


async def an_end_that_gives_up_in_the_handshake_leaves_nothing_open(pair: Pair) -> None:
    engine = endpoint().engine
    assert engine is not None
    open_before = engine.open_channels
    address = await pair.share(await pair.listen() if pair.serves else None)
    if pair.serves:
        listener = pair._listeners[0]
        while not any(link.handshake.awaited == PROOF_SIZE for link in listener._handshaking):
            await asyncio.sleep(0.001)
        WORLD.Barrier()
        WORLD.Barrier()  # the other end has given up meanwhile
        engine._poll()  # its word by MPI is there before those on the socket are heard
        await asyncio.sleep(0)
        while listener._handshaking or engine.open_channels > open_before:
            await asyncio.sleep(0.001)
    else:
        link = endpoint().client(may_use_mpi=True)
        host, port = address.removeprefix("mpi://").split(":")
        await asyncio.get_running_loop().create_connection(lambda: link, host, int(port))
        link.transport.pause_reading()
        await asyncio.to_thread(WORLD.Barrier)
        link.transport.resume_reading()
        while not link.handshake.verified:
            await asyncio.sleep(0)
        link.abort()
        await asyncio.to_thread(WORLD.Barrier)


async def tags_are_used_again(pair: Pair) -> None:
    world = current_world()
    assert world is not None
    spare = [world.take_transfer_tag() for _ in range(world.free_transfer_tags - 3)]
    comms = await pair.comms(10)
    for turn in range(10):
        for comm in comms:
            await comm.write(to_serialize(np.full(50_000, turn)))
        assert {int((await comm.read())[-1]) for comm in comms} == {turn}
    await wait_for_large(3)
    for tag in spare:
        assert tag is not None
        world.give_transfer_tag(tag)


async def connections_one_after_another_leave_nothing_behind(pair: Pair) -> None:
    engine = endpoint().engine
    assert engine is not None
    open_before = engine.open_channels
    address = await pair.share(await pair.listen() if pair.serves else None)
    for number in range(150):
        comm = await pair.accepted.get() if pair.serves else await pair.connect(address)
        await comm.write(number)
        assert await comm.read() == number
        if pair.serves:
            await is_closed(comm)
        else:
            await comm.close()
        pair._comms.clear()
    assert engine.open_channels <= open_before + 1


async def a_reader_that_lags_holds_large_messages_back(pair: Pair) -> None:
    engine = endpoint().engine
    assert engine is not None
    settings = engine.settings
    object.__setattr__(settings, "backlog", 2_000_000)
    comm = await pair.comm()
    if pair.serves:
        for number in range(30):
            await comm.write(to_serialize(np.full(1_000_000, number, dtype="u1")))
        await pair.meet()
    else:
        await comm.write("go")
        while len(comm._channel.inbox) < 30:
            await asyncio.sleep(0.001)
        assert comm._channel.unread <= 3_100_000
        await pair.meet()
        assert [(await comm.read())[0] for _ in range(30)] == list(range(30))
        assert comm._channel.unread == 0
    object.__setattr__(settings, "backlog", 256 << 20)


async def a_full_socket_drops_no_wake_up(pair: Pair) -> None:
    comm = await pair.comm()
    if pair.serves:
        comm._link.transport.pause_reading()
        await pair.meet()  # nobody hears the doorbell now
        await pair.meet()
        comm._link.transport.resume_reading()
        assert await comm.read() == "at last"
    else:
        await pair.meet()
        link = comm._link
        while not link._paused:
            link.ring(link.peer.sent)
        await comm.write("at last")
        await pair.meet()


async def doorbells_into_a_closed_socket_kill_nobody(pair: Pair) -> None:
    first, second = await pair.comm(), await pair.comm()
    if pair.serves:
        await second.close()
        for _ in range(3):  # the loop has closed what it can close without the peer
            await asyncio.sleep(0)
        WORLD.Barrier()
    else:
        WORLD.Barrier()  # this rank's loop has heard nothing yet
        peer = second._link.peer
        for _ in range(3):
            second._link.ring(peer.sent)
    await works(first)


async def doorbells_take_a_connection_that_stays(pair: Pair) -> None:
    first, second = await pair.comm(), await pair.comm()
    await pair.meet()
    if pair.serves:
        await second.close()
        first._link.peer.ring()
        assert first._link.peer.rung_over is first._link
    await works(first)


async def closes_of_both_ends_cross_without_harm(pair: Pair) -> None:
    comm = await pair.comm()
    for _ in range(20):
        comms = await pair.comms(10)
        await pair.meet()
        for one in comms:
            with contextlib.suppress(CommClosedError):  # the other end may have been quicker
                await one.write("never read")
            await one.close()
        pair._comms.clear()
        await works(comm)
    await comm.close()


async def a_message_is_read_while_the_loop_of_its_sender_is_held_up(pair: Pair) -> None:
    engine = endpoint().engine
    assert engine is not None
    comm = await pair.comm()
    await works(comm)  # both believe each other to be awake
    await pair.meet()
    if pair.serves:
        WORLD.Barrier()  # the reader has fallen asleep, and this loop has not heard of it
        time.sleep(2 * FRESH)
        await comm.write("now")
        WORLD.Barrier()  # the reader has read it
    else:
        while engine._awake or engine._lookout._delay == SOON:  # its first look is still to come
            await asyncio.sleep(0.001)
        engine._lookout.close()  # no other look comes
        reading = asyncio.ensure_future(comm.read())
        await asyncio.to_thread(WORLD.Barrier)
        assert await reading == "now"
        await asyncio.to_thread(WORLD.Barrier)
        engine._lookout._look()


async def a_message_without_its_doorbell_is_found_and_the_doorbell_comes_later(pair: Pair) -> None:
    engine = endpoint().engine
    assert engine is not None
    comm = await pair.comm()
    await works(comm)
    await pair.meet()
    peer = comm._link.peer
    if pair.serves:
        WORLD.Barrier()
        engine._learn_who_sleeps = lambda: None  # as though this process were held up between its poll and the sending
        peer.asleep = peer.fresh = False
        await comm.write("now")
        WORLD.Barrier()  # the reader has read it
        del engine._learn_who_sleeps
    else:
        while engine._awake:
            await asyncio.sleep(0.001)
        reading = asyncio.ensure_future(comm.read())
        await asyncio.to_thread(WORLD.Barrier)
        assert await reading == "now"
        if engine.spin:  # else every message has its doorbell at once
            assert peer.announced < peer.received
        await asyncio.to_thread(WORLD.Barrier)
        while peer.announced < peer.received:
            await asyncio.sleep(0.001)


async def looks_become_rare_and_begin_anew_with_each_sleep(pair: Pair) -> None:
    engine = endpoint().engine
    assert engine is not None
    lookout = engine._lookout
    lookout.fell_asleep()
    delays = []
    while lookout._delay < SAFETY:
        delays.append(lookout._delay)
        lookout._timer.cancel()
        lookout._look()
    assert delays == [SOON * 2**n for n in range(9)]
    lookout.fell_asleep()
    assert lookout._delay == SOON


async def frames_that_cannot_be_read_from_memory_go_by_mpi(pair: Pair) -> None:
    comm = await pair.comm()
    peer = comm._link.peer
    before = counters.direct_bytes_received
    if peer.neighbour is not None:
        peer.neighbour._expected = b"another process."
    await comm.write([to_serialize(np.full(size, size)) for size in (600_000, 50_000, 3_000_000)])
    assert [int(part[-1]) for part in await comm.read()] == [600_000, 50_000, 3_000_000]
    await comm.write([to_serialize(np.full(300, size)) for size in range(200)] + [to_serialize(np.ones(600_000))])
    assert len(await comm.read()) == 201
    await works(comm)
    assert counters.direct_bytes_received == before
    peer.neighbour = comm._engine.neighbour(peer.rank)


async def large_frames_are_read_from_the_memory_of_a_neighbour(pair: Pair) -> None:
    comm = await pair.comm()
    before = counters.direct_bytes_received
    await comm.write(to_serialize(np.arange(2_000_000)))
    assert np.array_equal(await comm.read(), np.arange(2_000_000))
    can = comm._engine.neighbour(comm._link.peer.rank) is not None
    assert (counters.direct_bytes_received > before + 16_000_000) == can


async def a_sleeping_engine_is_woken_by_the_doorbell_alone(pair: Pair) -> None:
    engine = endpoint().engine
    assert engine is not None
    comm = await pair.comm()
    peer = comm._link.peer
    for _ in range(20):
        while engine._awake:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(WORLD.Barrier)
        if pair.serves:
            await comm.write(1)
        else:
            assert await comm.read() == 1
            async with asyncio.timeout(10):
                while peer.announced < peer.received:
                    await asyncio.sleep(0.001)

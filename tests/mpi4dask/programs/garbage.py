"""Random and mutated bytes for all that reads what came from a peer, without sockets and MPI.

    python garbage.py COUNT

What comes is understood, or refused by an error of mpi4dask's own; anything else ends the program with a traceback.
"""

from __future__ import annotations

import contextlib
import random
import sys

from mpi4dask import HandshakeError, ProtocolError, authentication, wire
from mpi4dask.authentication import WANTS_MPI, ClientHandshake, Handshake, Hello, ServerHandshake

TOKEN = b"the job's token"


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The same number of bytes, at least one of them another."""
    changed = bytearray(data if rng.random() < 0.5 else rng.randbytes(len(data)))
    for at in rng.sample(range(len(data)), rng.randint(1, min(8, len(data)))):
        changed[at] = data[at] ^ rng.randrange(1, 256)
    return bytes(changed)


def side(kind: type[Handshake], token: bytes = TOKEN) -> Handshake:
    """One end, as it begins."""
    hello = Hello(WANTS_MPI, authentication.fresh_nonce(), bytes(16), 1, 0, 0, 4096, 1)
    return kind(token, hello, 1.0)


def shakes_hands(rng: random.Random, spoilt: int) -> bool:
    """Let both ends talk, with the message of that number spoilt; return whether both are content."""
    client, server = side(ClientHandshake), side(ServerHandshake)
    words, hearer, other = client.first_words(), server, client
    server.first_words()
    for number in range(4):
        assert len(words) == hearer.awaited
        if number == spoilt:
            words = mutated(rng, words)
        words = hearer.hear(words)
        hearer, other = other, hearer
    return client.done and server.done


def spoilt_handshake(rng: random.Random) -> None:
    """Whichever message is changed, one end finds out."""
    with contextlib.suppress(HandshakeError):
        assert not shakes_hands(rng, rng.randrange(4)), "a handshake succeeded that somebody had changed"


def same_frames(rng: random.Random) -> None:
    """Frames that are laid out and read again are the same."""
    sizes = [rng.choice((0, 1, 7, 1000, wire.ALONE - 1, wire.ALONE, 70_000)) for _ in range(rng.randint(1, 6))]
    frames = [rng.randbytes(size) for size in sizes]
    layout = wire.lay_out(frames, rng.choice((4096, 65_536)))
    block = memoryview(b"".join(layout.packed))
    assert len(block) == layout.packed_size
    if layout.nframes == 0:
        assert [bytes(block)] == frames
        return
    entries = wire.read_table(block, layout.nframes)
    assert [bytes(frame) for frame in wire.unpack(block, entries, layout.alone)] == frames


def spoilt_table(rng: random.Random) -> None:
    """A table that does not fit its block is refused; one that does gives frames of the sizes it names."""
    layout = wire.lay_out([rng.randbytes(rng.randrange(60)) for _ in range(rng.randint(2, 5))], 4096)
    data = b"".join(layout.packed)
    block = memoryview(mutated(rng, data) if rng.random() < 0.5 else rng.randbytes(rng.randrange(100)))
    nframes = rng.choice((layout.nframes, rng.randrange(2**32)))
    with contextlib.suppress(ProtocolError):
        entries = wire.read_table(block, nframes)
        alone = [bytes(0) for entry in entries if entry.is_alone]
        frames = wire.unpack(block, entries, alone)
        assert all(entry.is_alone or len(frame) == entry.size for entry, frame in zip(entries, frames, strict=True))


def main(count: int) -> None:
    """Try each of them `count` times, always the same."""
    rng = random.Random(0)
    assert shakes_hands(rng, -1), "an honest handshake failed"
    for _ in range(count):
        spoilt_handshake(rng)
        same_frames(rng)
        spoilt_table(rng)


main(int(sys.argv[1]))

"""The two sides of the handshake, without any input or output: words in, words out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpi4dask import authentication
from mpi4dask.authentication import HAS_GPU, HELLO_SIZE, PROOF_SIZE, SPINS, WANTS_MPI, WELCOME, Hello
from mpi4dask.errors import HandshakeError

if TYPE_CHECKING:
    from mpi4dask.engine import Engine
    from mpi4dask.peer import Peer


class Handshake:
    """What one end says and expects. `hear` is given exactly the `awaited` bytes."""

    def __init__(self, token: bytes, hello: Hello, engine: Engine | None, timeout: float) -> None:
        self.timeout = timeout
        self.verified = False  # the other end has proved itself
        self.done = False
        self.awaited = 0
        self.engine = engine
        self.channel = hello.channel
        self._token = token
        self._own = hello
        self._own_words = hello.pack()
        self._other: Hello | None = None
        self._other_words = b""
        self._next: Callable[[bytes], bytes] = self._hear_nothing

    def hear(self, words: bytes) -> bytes:
        """Take the next words and return the answer; raise HandshakeError where the peer must not be talked to."""
        return self._next(words)

    def first_words(self) -> bytes:
        """What is said before anything was heard."""
        raise NotImplementedError

    def meet(self) -> Peer:
        """The engine at the other end, once it has proved what it said."""
        assert self.engine is not None
        assert self._other is not None
        other = self._other
        return self.engine.meet(other.engine, other.rank, other.tag, other.eager_size, bool(other.flags & SPINS))

    @property
    def over_mpi(self) -> bool:
        """Whether both ends are ranks of one MPI job and want MPI to carry the data."""
        return bool(self._both(WANTS_MPI)) and self._other is not None and self._own.job == self._other.job

    @property
    def gpu_frames(self) -> bool:
        """Whether both ends can hold frames on a GPU."""
        return bool(self._both(HAS_GPU))

    @property
    def remote_channel(self) -> int:
        """The other end's number for this connection."""
        assert self._other is not None
        return self._other.channel

    @property
    def remote_rank(self) -> int:
        """The other end's rank in its MPI job, -1 where it has none."""
        return self._other.rank if self._other is not None else -1

    def _both(self, flag: int) -> int:
        return self._own.flags & self._other.flags & flag if self._other is not None else 0

    def _hear_nothing(self, words: bytes) -> bytes:
        raise HandshakeError("words were not expected here")


class ClientHandshake(Handshake):
    """Of the end that connects."""

    def first_words(self) -> bytes:
        self.awaited, self._next = HELLO_SIZE + PROOF_SIZE, self._hear_server
        return self._own_words

    def _hear_server(self, words: bytes) -> bytes:
        self._other_words, shown = words[:HELLO_SIZE], words[HELLO_SIZE:]
        self._other = authentication.unpack_hello(self._other_words)
        authentication.check_proof(self._token, b"server", self._own_words, self._other_words, shown)
        self.verified = True
        self.awaited, self._next = len(WELCOME), self._hear_welcome
        return authentication.proof(self._token, b"client", self._own_words, self._other_words)

    def _hear_welcome(self, words: bytes) -> bytes:
        if words != WELCOME:
            raise HandshakeError("the server did not welcome this end")
        self.done = True
        return b""


class ServerHandshake(Handshake):
    """Of the end that listens."""

    def first_words(self) -> bytes:
        self.awaited, self._next = HELLO_SIZE, self._hear_client
        return b""

    def _hear_client(self, words: bytes) -> bytes:
        self._other_words = words
        self._other = authentication.unpack_hello(words)
        self.awaited, self._next = PROOF_SIZE, self._hear_proof
        return self._own_words + authentication.proof(self._token, b"server", words, self._own_words)

    def _hear_proof(self, words: bytes) -> bytes:
        authentication.check_proof(self._token, b"client", self._other_words, self._own_words, words)
        self.verified = self.done = True
        return WELCOME

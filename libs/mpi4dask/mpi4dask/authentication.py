"""Who may connect: both ends of a socket prove that they hold the job's token before anything else is read.

The client says hello, the server answers with a hello and a proof, the client answers with its proof, and the server
with one byte once it is ready for messages. A proof is
HMAC-SHA256 over both hellos, keyed with the token, so it holds for this one connection (both carry a random nonce)
and binds what the hellos say of ranks and keys. All pieces have a fixed size; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass

from mpi4dask.errors import ConfigurationError, HandshakeError

MAGIC = b"mpi4dask"
VERSION = 4  # of the handshake and of what travels over MPI
TOKEN_VARIABLE = "MPI4DASK_TOKEN"
LEAST_TOKEN = 32  # characters: 128 random bits as hexadecimal digits; those made here have twice as many

_HELLO = struct.Struct("<8sHH32s16sQiiIQ")
HELLO_SIZE = _HELLO.size
PROOF_SIZE = hashlib.sha256().digest_size

WELCOME = b"\x06"

WANTS_MPI = 1
SPINS = 2
HAS_GPU = 4


@dataclass(frozen=True)
class Hello:
    """What one end tells of itself.

    `engine` names a progress engine for all time; `rank` and `tag` say where its envelopes go; `channel` is what the
    other end shall write on messages that are meant for this connection.
    """

    flags: int
    nonce: bytes
    job: bytes
    engine: int
    rank: int
    tag: int
    eager_size: int
    channel: int

    def pack(self) -> bytes:
        """The bytes that travel."""
        return _HELLO.pack(
            MAGIC,
            VERSION,
            self.flags,
            self.nonce,
            self.job,
            self.engine,
            self.rank,
            self.tag,
            self.eager_size,
            self.channel,
        )


def unpack_hello(data: bytes) -> Hello:
    """Read `HELLO_SIZE` bytes; raise HandshakeError where they are something else."""
    magic, version, *rest = _HELLO.unpack(data)
    if magic != MAGIC:
        raise HandshakeError("the peer does not speak the mpi:// protocol")
    if version != VERSION:
        raise HandshakeError(f"the peer speaks version {version} of the mpi:// protocol, this end version {VERSION}")
    return Hello(*rest)


def fresh_nonce() -> bytes:
    """32 random bytes."""
    return secrets.token_bytes(32)


def proof(token: bytes, role: bytes, client_hello: bytes, server_hello: bytes) -> bytes:
    """What `role` (b"client" or b"server") shows to prove that it holds the token."""
    return hmac.new(token, b"|".join((MAGIC, role, client_hello, server_hello)), hashlib.sha256).digest()


def check_proof(token: bytes, role: bytes, client_hello: bytes, server_hello: bytes, shown: bytes) -> None:
    """Raise HandshakeError where the proof is not that of the token."""
    if not hmac.compare_digest(proof(token, role, client_hello, server_hello), shown):
        raise HandshakeError("the peer does not hold this job's token")


def process_token() -> bytes:
    """This process's token: from the environment, which children inherit, else a new one that is put there.

    Neither command lines nor Dask's configuration hold it: both are shown to others (ps, cluster dumps). Raise
    ConfigurationError where the one in the environment is empty or short enough to be guessed.
    """
    known = os.environ.get(TOKEN_VARIABLE)
    if known is None:
        known = secrets.token_hex(32)
        set_process_token(known)
    if len(known) < LEAST_TOKEN:
        raise ConfigurationError(
            f"invalid {TOKEN_VARIABLE} of {len(known)} characters: must have at least {LEAST_TOKEN}; "
            "unset it, or set it to the job's token (for a new one: openssl rand -hex 32)"
        )
    return known.encode()


def set_process_token(token: str) -> None:
    """Make `token` the one that this process and its children show."""
    os.environ[TOKEN_VARIABLE] = token


class Handshake:
    """What one end says and expects. `hear` is given exactly the `awaited` bytes."""

    def __init__(self, token: bytes, hello: Hello, timeout: float) -> None:
        self.timeout = timeout
        self.verified = False  # the other end has proved itself
        self.done = False
        self.awaited = 0
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

    @property
    def other(self) -> Hello:
        """The hello of the other end, which must have been heard."""
        assert self._other is not None
        return self._other

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
        return self.other.channel

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
        self._other = unpack_hello(self._other_words)
        check_proof(self._token, b"server", self._own_words, self._other_words, shown)
        self.verified = True
        self.awaited, self._next = len(WELCOME), self._hear_welcome
        return proof(self._token, b"client", self._own_words, self._other_words)

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
        self._other = unpack_hello(words)
        self.awaited, self._next = PROOF_SIZE, self._hear_proof
        return self._own_words + proof(self._token, b"server", words, self._own_words)

    def _hear_proof(self, words: bytes) -> bytes:
        check_proof(self._token, b"client", self._other_words, self._own_words, words)
        self.verified = self.done = True
        return WELCOME

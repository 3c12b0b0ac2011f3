"""Authentication of connections with the job's token.

Both ends of a socket prove that they hold the token before anything else is read. The client sends its hello, the
server replies with its own hello and a proof, the client sends its proof, and the server confirms with one byte once it
is ready for messages.

A proof is an HMAC-SHA256 over both hellos, keyed with the token. It is valid for one connection only, because both
hellos contain a random nonce, and it covers the ranks and identifiers in the hellos. All parts have a fixed size;
nothing is unpickled.
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
VERSION = 4  # version of the handshake and of the format over MPI
TOKEN_VARIABLE = "MPI4DASK_TOKEN"
LEAST_TOKEN = 32  # characters, 128 random bits in hexadecimal; generated tokens are twice as long

_HELLO = struct.Struct("<8sHH32s16sQiiIQ")
HELLO_SIZE = _HELLO.size
PROOF_SIZE = hashlib.sha256().digest_size

WELCOME = b"\x06"

WANTS_MPI = 1
SPINS = 2
HAS_GPU = 4


@dataclass(frozen=True)
class Hello:
    """The introduction that each end of a connection sends.

    `engine` identifies a progress engine and is never reused. `rank` and `tag` are the destination of its envelopes.
    `channel` is the number that the other end puts on messages for this connection.
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
        """Return the bytes to send."""
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
    """Unpack `HELLO_SIZE` bytes; raise HandshakeError if they are not a hello."""
    magic, version, *rest = _HELLO.unpack(data)
    if magic != MAGIC:
        raise HandshakeError("the peer does not speak the mpi:// protocol")
    if version != VERSION:
        raise HandshakeError(f"the peer speaks version {version} of the mpi:// protocol, this end version {VERSION}")
    return Hello(*rest)


def fresh_nonce() -> bytes:
    """Return 32 random bytes."""
    return secrets.token_bytes(32)


def proof(token: bytes, role: bytes, client_hello: bytes, server_hello: bytes) -> bytes:
    """Return the proof that `role` (b"client" or b"server") holds the token.

    Args:
        token: The token of the job.
        role: The end that proves itself.
        client_hello: The packed hello of the client.
        server_hello: The packed hello of the server.
    """
    return hmac.new(token, b"|".join((MAGIC, role, client_hello, server_hello)), hashlib.sha256).digest()


def check_proof(token: bytes, role: bytes, client_hello: bytes, server_hello: bytes, shown: bytes) -> None:
    """Raise HandshakeError if `shown` is not the proof of the token."""
    if not hmac.compare_digest(proof(token, role, client_hello, server_hello), shown):
        raise HandshakeError("the peer does not hold this job's token")


def process_token() -> bytes:
    """Return the token of this process, generating one if the environment has none.

    The token is kept in the environment, which children inherit. Command lines and Dask's configuration would expose it
    (ps, cluster dumps).

    Raises:
        ConfigurationError: The token is empty or short enough to be guessed.
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
    """Set the token of this process and its children."""
    os.environ[TOKEN_VARIABLE] = token


class Handshake:
    """One side of the handshake: its messages and the replies that it expects.

    `hear` must be called with exactly `awaited` bytes.
    """

    def __init__(self, token: bytes, hello: Hello, timeout: float) -> None:
        self.timeout = timeout
        self.verified = False  # True once the other end has proved that it holds the token
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
        """Process the next bytes and return the reply; raise HandshakeError if the peer must be rejected."""
        return self._next(words)

    def first_words(self) -> bytes:
        """Return the bytes to send before anything is received."""
        raise NotImplementedError

    @property
    def other(self) -> Hello:
        """The hello of the other end, which must have been heard."""
        assert self._other is not None
        return self._other

    @property
    def over_mpi(self) -> bool:
        """True if both ends are ranks of one MPI job and want MPI to carry the data."""
        return bool(self._both(WANTS_MPI)) and self._other is not None and self._own.job == self._other.job

    @property
    def gpu_frames(self) -> bool:
        """True if both ends can receive frames in GPU memory."""
        return bool(self._both(HAS_GPU))

    @property
    def remote_channel(self) -> int:
        """The other end's number for this connection."""
        return self.other.channel

    @property
    def remote_rank(self) -> int:
        """The other end's rank in its MPI job, -1 if it has none."""
        return self._other.rank if self._other is not None else -1

    def _both(self, flag: int) -> int:
        return self._own.flags & self._other.flags & flag if self._other is not None else 0

    def _hear_nothing(self, words: bytes) -> bytes:
        raise HandshakeError("unexpected data in the handshake")


class ClientHandshake(Handshake):
    """The handshake of the end that connects."""

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
    """The handshake of the end that listens."""

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

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

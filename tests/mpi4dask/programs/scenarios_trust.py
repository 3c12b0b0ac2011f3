"""Who may talk, and over what: tokens, garbage, TLS, and programs outside the job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import subprocess
import sys
from pathlib import Path

from distributed.comm import Comm, CommClosedError, connect
from mpi4dask import ConfigurationError, authentication, counters, world
from mpi4dask.endpoint import endpoint
from pair import WORLD, Pair
from scenarios_faults import works

OUTSIDER = Path(__file__).with_name("outsider.py")


async def live_comm_to_self(ends: Pair) -> tuple[str, Comm, Comm]:
    """A listener's address, and both ends of a connection that must stay whole."""
    address = await ends.listen()
    return address, await ends.connect(address), await ends.accepted.get()


def both_contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's and the client's TLS context, of one self-signed certificate."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "cert.pem"))
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(directory / "cert.pem"))
    for context in (server, client):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    return server, client


async def a_wrong_token_is_refused(pair: Pair) -> None:
    address, one, other = await live_comm_to_self(pair)
    right = authentication.process_token().decode()
    refused = counters.handshakes_refused
    link = endpoint().client(may_use_mpi=True)
    link.handshake._token = b"wrong"
    host, port = address.removeprefix("mpi://").split(":")
    await asyncio.get_running_loop().create_connection(lambda: link, host, int(port))
    with contextlib.suppress(CommClosedError):
        await link.established
        raise AssertionError("a peer with a wrong token was welcomed")
    link.abort()
    while counters.handshakes_refused == refused:
        await asyncio.sleep(0.001)
    assert authentication.process_token().decode() == right
    await asyncio.gather(works(one), works(other))


async def an_empty_or_short_token_is_an_error(pair: Pair) -> None:
    address, one, other = await live_comm_to_self(pair)
    right = authentication.process_token().decode()
    for token in ("", "x" * (authentication.LEAST_TOKEN - 1)):
        for attempt in (pair.listen, lambda: pair.connect(address), joins_again):
            if attempt is not joins_again or pair.serves:  # ranks learn it from rank 0
                authentication.set_process_token(token)
            try:
                with contextlib.suppress(ConfigurationError):
                    await attempt()
                    raise AssertionError(f"a token of {len(token)} characters was accepted")
            finally:
                authentication.set_process_token(right)
    await asyncio.gather(works(one), works(other))


async def joins_again() -> None:
    """Join the ranks once more."""
    await asyncio.to_thread(world.join, WORLD, None, False)


async def garbage_on_the_socket_has_no_effect(pair: Pair) -> None:
    address, one, other = await live_comm_to_self(pair)
    host, port = address.removeprefix("mpi://").split(":")
    rng = random.Random(WORLD.rank)
    hello = endpoint()._hello(endpoint().engine).pack()
    for number in range(int(os.environ.get("MPI4DASK_GARBAGE", "400"))):
        kind = number % 3
        data = bytearray(rng.randbytes(rng.randrange(300)) if kind == 0 else hello + rng.randbytes(rng.randrange(99)))
        if kind == 1:
            for _ in range(rng.randrange(1, 9)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(data)
        if number % 50 == 0:
            await asyncio.gather(works(one), works(other))
    await asyncio.gather(works(one), works(other))
    assert pair.accepted.empty()


async def tls_protects_the_socket_and_mpi_carries_the_data(pair: Pair) -> None:
    server, client = both_contexts(pair.directory)
    comm = await pair.comm(listen_args={"ssl_context": server}, ssl_context=client)
    assert comm.extra_info["transport"] == "mpi"
    assert "cipher" in comm.extra_info
    await works(comm)


async def require_encryption_refuses_mpi_data(pair: Pair) -> None:
    server, client = both_contexts(pair.directory)
    listen_args = {"ssl_context": server, "require_encryption": True}
    comm = await pair.comm(listen_args=listen_args, ssl_context=client, require_encryption=True)
    assert comm.extra_info["transport"] == "socket"
    assert "cipher" in comm.extra_info
    await works(comm)
    await works(comm)


async def require_encryption_without_certificates_is_refused(pair: Pair) -> None:
    refusals = []
    for attempt in (pair.listen(require_encryption=True), connect("mpi://127.0.0.1:1", require_encryption=True)):
        try:
            await attempt
        except RuntimeError as exc:
            refusals.append(str(exc))
    assert ["encryption required" in refusal for refusal in refusals] == [True, True]


async def a_client_without_tls_is_refused(pair: Pair) -> None:
    server, _ = both_contexts(pair.directory)
    address = await pair.listen(ssl_context=server)
    try:
        await connect(address, timeout=1)
    except OSError:
        return
    raise AssertionError("connected without TLS")


async def a_program_outside_the_job_talks_over_the_socket(pair: Pair) -> None:
    if pair.serves:
        address = await pair.listen()
        outside = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PMI", "OMPI_", "PRTE", "PMIX", "HYDRA", "MPI_"))
        }
        program = await asyncio.create_subprocess_exec(
            sys.executable, str(OUTSIDER), address, env=outside, stdout=subprocess.PIPE
        )
        comm = await pair.accepted.get()
        assert comm.extra_info["transport"] == "socket"
        for _ in range(4):
            await comm.write(await comm.read())
        said, _ = await program.communicate()
        assert said == b"all came back\n"

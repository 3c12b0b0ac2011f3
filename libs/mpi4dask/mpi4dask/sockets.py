"""Options of a connection's socket."""

from __future__ import annotations

import asyncio
import logging
import socket

import dask.config
from dask.utils import parse_timedelta

logger = logging.getLogger("mpi4dask")

_PROBES = 10


def set_options(transport: asyncio.BaseTransport) -> None:
    """No delay for doorbells, and an end to hosts that vanished, after `distributed.comm.timeouts.tcp`."""
    sock = transport.get_extra_info("socket")
    seconds = int(parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp"), default="seconds"))
    idle = max(2, seconds // 4)
    interval = max(1, (seconds - idle) // _PROBES)
    options = [
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", _PROBES),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", idle),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", interval),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", seconds * 1000),
    ]
    for level, name, value in options:
        if hasattr(socket, name):
            try:
                sock.setsockopt(level, getattr(socket, name), value)
            except OSError as exc:
                logger.info("Could not set %s on a socket: %s", name, exc)

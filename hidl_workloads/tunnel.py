"""The ssh line by which a browser at home reaches a server that a command starts on a compute node."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Sequence

#: Server programs, with their default ports.
_PORTS = {"jupyter": 8888, "jupyter-lab": 8888, "jupyter-notebook": 8888, "tensorboard": 6006, "http.server": 8000}
_JUPYTER = ("jupyter", "jupyter-lab", "jupyter-notebook")
_TRIES = 50


def line(command: Sequence[str], *, user: str, login: str) -> str:
    """Return what to type at home, with the address for the browser; empty if the command starts no known server.

    Jupyter without ``--port`` gets a port that is free, by ``JUPYTER_PORT``. ``login``: the login host; empty: this
    host is reached without one.
    """
    port = _port(command)
    if port is None:
        return ""
    tunnel = ssh(port, user, login, _listens(command))
    return f"to reach port {port} here, run on your own computer: {tunnel} and open http://localhost:{port}"


def ssh(port: int, user: str, login: str, listens_everywhere: bool) -> str:
    """Return the ssh line. A server that listens on its own host only is reached by a login to that host."""
    node, at = socket.gethostname(), f"{user}@" if user else ""
    if not login or login == node:
        words = ["-L", f"{port}:localhost:{port}", f"{at}{node}"]
    elif listens_everywhere:
        words = ["-L", f"{port}:{node}:{port}", f"{at}{login}"]
    else:
        words = ["-L", f"{port}:localhost:{port}", "-J", f"{at}{login}", f"{at}{node}"]
    return shlex.join(["ssh", "-N", *words])


def _port(command: Sequence[str]) -> int | None:
    for index, word in enumerate(command):
        named = re.fullmatch(r"(?:--(?:[\w.]+\.)?port|-p)(?:=(\d+))?", word)
        after = command[index + 1] if index + 1 < len(command) else ""
        if named and (named[1] or after.isdecimal()):
            return int(named[1] or after)
    for index, word in enumerate(command):
        name = word.rpartition("/")[2]
        if name in _JUPYTER and (index == 0 or command[index - 1] == "-m"):
            os.environ["JUPYTER_PORT"] = str(port := _free(_PORTS[name]))
            return port
        if name in _PORTS and (index == 0 or command[index - 1] == "-m"):
            after = command[index + 1] if index + 1 < len(command) else ""
            return int(after) if after.isdecimal() else _PORTS[name]
    return None


def _listens(command: Sequence[str]) -> bool:
    """Return True if the server accepts connections from other hosts."""
    text = " ".join(command)
    if re.search(r"http\.server", text):
        return not re.search(r"(--bind|-b)[ =](127|localhost)", text)
    return bool(re.search(r"--([\w.]+\.)?(ip|host|bind)[ =](?!127\.|localhost)\S|--bind_all", text))


def _free(first: int) -> int:
    """Return the first free port from ``first`` on; ``first`` if all are taken."""
    for port in range(first, first + _TRIES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return first

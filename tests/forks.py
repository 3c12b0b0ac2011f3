"""hidl by ``fork``: each command is a process of its own, as ever, but what all of them import is imported once.

``python -m hidl_cli`` takes up to a second of a processor before it does anything, and the tests start it thousands of
times. So one process of each session has imported it, and forks for each command that a test waits for; the child takes
the test's variables, directory and files, and goes on as ``python -m hidl_cli`` does. ``make test-all`` starts each
anew instead, and so does all that hidl and the tests start by themselves.
"""

from __future__ import annotations

import atexit
import itertools
import json
import locale
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tools.run_tests import ANEW

REPOSITORY = Path(__file__).parent.parent
#: Variables that an interpreter, the C library or an import reads once, by how they begin.
_READ_ONCE = (
    *("PYTHON", "LD_", "LC_", "LANG", "TZ", "OPENBLAS_", "OMP_", "MALLOC_", "GLIBC_"),
    *("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH", "_TYPER"),
)
#: Imported late by what hidl imports.
_LATE = ("rich.progress", "rich.table", "typer.rich_utils")
#: Programs rather than modules: to import one does its work.
_PROGRAMS = ("hidl_cli.__main__", "hidl_twin.standins", "hidl_twin.batch.programs")
#: Commands that are started anew in any case: the server starts where it saves more than it takes.
_FEW = 3
_commands = itertools.count(1)
_MOST_BYTES = 1 << 20


def possible(environment: Mapping[str, str]) -> bool:
    """Whether a child of the server is what a new process with these variables would be."""
    if next(_commands) <= _FEW:
        return False
    usual = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return ANEW not in os.environ and hasattr(os, "pidfd_open") and _read_once(environment) == _read_once(usual)


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    # The server has no OPENBLAS_NUM_THREADS, as hidl has none; see tests/conftest.py.
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_ONCE) and not name.startswith("OPENBLAS_")
    }


def run(
    command: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """hidl with these arguments, to its end, as ``subprocess.run`` does; ``command`` is what it would have been."""
    deadline = time.monotonic() + timeout
    out, child_out = os.pipe()
    err, child_err = os.pipe()
    answer, child_answer = os.pipe()
    given = (0, child_out, child_err, child_answer)
    request = {"arguments": list(arguments), "environment": dict(environment), "directory": str(Path.cwd())}
    try:
        socket.send_fds(_server(os.getpid()), [json.dumps(request).encode()], given)
    finally:
        for file in given[1:]:
            os.close(file)
    told: dict[int, bytearray] = {file: bytearray() for file in (out, err, answer)}
    ended = False
    try:
        ended = _read(told, deadline)
    finally:  # late, or this test is ended
        if not ended:
            _kill(answer, told[answer])
        for file in told:
            os.close(file)
    output, errors = (_text(told[file]) for file in (out, err))
    if not ended:
        raise subprocess.TimeoutExpired(list(command), timeout, output, errors)
    _, status = told[answer].split()
    return subprocess.CompletedProcess(list(command), int(status), output, errors)


def _read(told: dict[int, bytearray], deadline: float) -> bool:
    """Read these files to their ends; whether that was before the deadline."""
    with selectors.DefaultSelector() as ready:
        for file in told:
            ready.register(file, selectors.EVENT_READ)
        while ready.get_map() and (seconds := deadline - time.monotonic()) > 0:
            for key, _ in ready.select(seconds):
                data = os.read(key.fd, 1 << 16)
                told[key.fd] += data
                if not data:
                    ready.unregister(key.fd)
        return not ready.get_map()


def _kill(answer: int, told: bytearray) -> None:
    """End the child; the server may only just have started, and has not told its number."""
    while b"\n" not in told and (data := os.read(answer, 64)):
        told += data
    with suppress(ProcessLookupError):
        os.kill(int(told.split()[0]), signal.SIGKILL)


def _text(data: bytearray) -> str:
    text = data.decode(locale.getpreferredencoding(False))
    return text.replace("\r\n", "\n").replace("\r", "\n")


@cache
def _server(_pid: int) -> socket.socket:
    """The link to this process's server, which ends when the link is closed: with this process at the latest."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, its):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    with its:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(its.fileno())],
            cwd=REPOSITORY,
            env=environment | {"PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )
    atexit.register(_close, os.getpid(), ours, server)
    return ours


def _close(owner: int, link: socket.socket, server: subprocess.Popen[bytes]) -> None:
    if os.getpid() == owner:
        link.close()
        server.wait()


def serve(link: socket.socket) -> None:
    """Fork for each request; return in the children, each ready to be hidl, and leave when the link is closed."""
    prepare()
    children: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(link, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not link:
                    _bury(ready, key.fd, *children.pop(key.fd))
                    continue
                message, files, *_ = socket.recv_fds(link, _MOST_BYTES, 4)
                if not message:
                    os._exit(0)
                *streams, answer = files
                if (pid := os.fork()) == 0:
                    for file in (answer, *children, *(told for _, told in children.values())):
                        os.close(file)
                    link.close()
                    _become(json.loads(message), streams)
                    return
                for file in streams:
                    os.close(file)
                os.write(answer, b"%d\n" % pid)
                ended = os.pidfd_open(pid)
                children[ended] = (pid, answer)
                ready.register(ended, selectors.EVENT_READ)


def prepare() -> None:
    """Import what commands import when they are called, and make what depends on nothing that they are given."""
    import hidl_cli

    for module in pkgutil.walk_packages(hidl_cli.__path__, "hidl_cli."):
        if not module.name.startswith(_PROGRAMS):
            import_module(module.name)
    for name in _LATE:
        import_module(name)
    from pydantic import BaseModel

    models = [BaseModel]
    while models:
        models += (found := models.pop()).__subclasses__()
        if found.__module__.startswith("hidl_cli."):
            found.model_rebuild()
    from hidl_cli import paths, quoting, templates

    scripts = templates.environment(paths.shipped() / "templates", quoting.sh)
    for name in scripts.list_templates(filter_func=lambda name: name.endswith(".sh.j2")):
        scripts.get_template(name)


def _bury(ready: selectors.BaseSelector, ended: int, pid: int, answer: int) -> None:
    """Tell how a child has ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ready.unregister(ended)
    os.close(ended)
    with suppress(BrokenPipeError):  # the test has ended before
        os.write(answer, b"%d\n" % status)
    os.close(answer)


def _become(request: dict[str, object], streams: Sequence[int]) -> None:
    """Take what a new process would be started with."""
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    directory, arguments, environment = (request[name] for name in ("directory", "arguments", "environment"))
    assert isinstance(directory, str)
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = directory
    sys.argv = [str(REPOSITORY / "hidl_cli" / "__main__.py"), *arguments]


def main() -> NoReturn:
    """The server, and then, in each of its children, hidl."""
    serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("hidl_cli", run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main()

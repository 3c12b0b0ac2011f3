"""What happens on a job's first host: run it, end it at its run limit or when it is cancelled, and report."""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType

from hidl_cli import process
from hidl_cli.documents import write_json, write_text
from hidl_cli.errors import ProcessFailed
from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import Job, Store
from hidl_twin.batch.system import System

BEATS = 0.5  # seconds between two signs of life
_PAUSE = 0.02
_CLEANING = 20.0
_AT_ONCE = 8
#: The variable by which the processes of a job are found on its hosts.
MARK = "HIDL_STANDIN_JOB"
#: Ends all processes of a job on a host: each has its number in its environment, and belongs to this user.
_CLEAN = (
    "find /proc -maxdepth 1 -name '[0-9]*' -uid \"$(id -u)\" -printf '%%p/environ\\n' "
    "| xargs -r grep -lszx %s=%s | cut -d/ -f3 | xargs -r kill -KILL 2> /dev/null; true"
)


def mark(store: Store, job: Job) -> str:
    """What ``MARK`` is in the environment of a job's processes."""
    return f"{store.directory}:{job.id}"


def command(system: str, store: Store, job: Job, settings: Settings, *, terminal: Sequence[str] = ()) -> list[str]:
    """Return the command that runs the job on its first host; ``system``: the name of the batch system."""
    words = [sys.executable, "-IS", str(store[f"{system}.py"]), "host", job.id]
    if not settings.remote:
        return words
    return [*settings.remote, *terminal, job.first_host, shlex.join(words)]


def run(system: System, store: Store, arguments: Sequence[str]) -> None:
    """Run the job of that number here, and end with its status."""
    job = store.job(arguments[0])
    assert job is not None
    settings, directory = store.settings, store.job_directory(job.id)
    interactive = system.is_interactive(job)
    cwd = system.directory(job)
    if not cwd.is_dir():
        reason = f"TERM_CWD_NOTEXIST: current working directory is not accessible or does not exist on {job.first_host}"
        write_json(directory / "ended.json", {"status": 2, "reason": reason})
        return
    login = {"PATH": os.defpath, **settings.login}
    environment = login | store.environment(job.id) | system.environment(store, job) | {MARK: mark(store, job)}
    script = [str(directory / "command"), *shlex.split(job.options.get("arguments", ""))]
    if interactive:
        _end_with_the_client(store, job)
        child = process.start_attached(script, cwd=cwd, env=environment)
    else:
        out, err = system.files(store, job)
        try:
            child = process.start_detached(script, cwd=cwd, env=environment, stdout=out, stderr=err)
        except OSError as error:
            write_json(directory / "ended.json", {"status": 1, "reason": f"{error.filename}: {error.strerror}"})
            return
    write_text(directory / "pid", str(child.pid))
    reason = _watch(system, store, job, settings, child, alone=not interactive)
    status = child.returncode if child.returncode >= 0 else 128 - child.returncode
    _clean(store, job, settings)
    if not interactive:
        system.concluded(store, job, status, reason)
    write_json(directory / "ended.json", {"status": status, "reason": reason})
    sys.exit(status)


def _end_with_the_client(store: Store, job: Job) -> None:
    """End an interactive job whose client is ended or loses its terminal, and live on to report it.

    Ctrl-C is the job's, which shares the terminal.
    """

    def end(_: int, __: FrameType | None) -> None:
        store.give_order(job.id, "TERM_OWNER")

    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, end)
    signal.signal(signal.SIGINT, lambda *_: None)


def _watch(
    system: System, store: Store, job: Job, settings: Settings, child: subprocess.Popen[bytes], *, alone: bool
) -> str:
    """Wait for the job's end; end it at its run limit, or when it is cancelled. Returns the reason's word, or ""."""
    alive = store.job_directory(job.id) / "alive"
    limit = math.inf if job.run_limit is None else time.monotonic() + job.run_limit * settings.minute
    beat = 0.0
    while child.poll() is None:
        if time.monotonic() > beat:
            beat = time.monotonic() + BEATS
            alive.touch()
        word = store.order(job.id) or ("TERM_RUNLIMIT" if time.monotonic() > limit else "")
        if word:
            _end(child, store.settings.interval, system.signals(word), alone=alone)
            return word
        time.sleep(_PAUSE)
    return ""


def _end(child: subprocess.Popen[bytes], interval: float, signals: Sequence[signal.Signals], *, alone: bool) -> None:
    """Send the scheduler's signals to all processes of the job here, until it has ended; and kill what is left.

    ``alone``: the job has a process group of its own.
    """
    send = os.killpg if alone else os.kill
    for number in signals:
        with suppress(ProcessLookupError):
            send(child.pid, number)
        deadline = time.monotonic() + interval
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        if child.returncode is not None:
            break
    child.wait()
    with suppress(ProcessLookupError):
        send(child.pid, signal.SIGKILL)


def _clean(store: Store, job: Job, settings: Settings) -> None:
    """End what the job has left on its hosts."""
    if not settings.remote:
        return

    def clean(host: str) -> None:
        with suppress(ProcessFailed):  # a host that is gone
            process.run([*settings.remote, host, _CLEAN % (MARK, mark(store, job))], timeout=_CLEANING, check=False)

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        list(pool.map(clean, {job.first_host, *job.hosts}))

"""One writer at a time, on any file system: a lock file that names its owner, beside the file that it guards.

The lock is a file that is made by ``link(2)``, which succeeds for one of any number of machines, on NFS (where it is
what open(2) recommends) and Lustre as on local disks. ``flock`` is not used: on Lustre it is unknown, or holds on one
machine alone, unless the file system is mounted with ``-o flock``; on NFS it may be local, too (``local_lock``); and
two kinds of locks, one here and one there, would exclude nobody. The price is that a lock can outlive its owner. So

- where the owner is seen to be dead (same boot of the same machine, same PID name space), its lock goes at once;
- elsewhere, it goes when it has stayed the same for ``PATIENCE`` seconds of the waiter's own monotonic clock. A writer
  holds it for one transaction, well under a second, so that no clock of two machines needs to agree for this;
- whoever comes back after such a time finds that the lock is another's, before it commits (``Held.confirm``).
"""

from __future__ import annotations

import glob
import json
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hidl_cli.errors import HidlError

#: Seconds for which a lock of another machine must stay the same to count as left behind.
PATIENCE = 60.0
_TELL_AFTER = 1.0


class Busy(HidlError):
    """Another writer holds the lock for longer than one is ready to wait."""


@dataclass(frozen=True)
class Held:
    """A lock that one has."""

    file: Path
    token: str

    def confirm(self) -> None:
        """Raise ``Busy`` where the lock was taken away, because its owner stood still for so long."""
        if _read(self.file).get("token") != self.token:
            raise Busy(
                f"{self.file} was taken over by {_in_words(_read(self.file))}, as this hidl stood still for long",
                hint="run the command again",
            )


@contextmanager
def held(
    file: Path, *, on_wait: Callable[[str], None] = lambda _: None, at_most: float | None = None
) -> Iterator[Held]:
    """Hold the lock ``file``; ``on_wait`` gets a line for the user where another has it for more than a second.

    Raises ``Busy`` where it is not to be had within ``at_most`` seconds (None: wait on), and ``OSError`` where the
    directory cannot be written.
    """
    lock = _acquire(file, on_wait, at_most)
    try:
        yield lock
    finally:
        if _read(file).get("token") == lock.token:
            file.unlink(missing_ok=True)


def sweep(file: Path) -> None:
    """Remove what processes of this machine left beside the lock ``file`` when they were killed while they waited."""
    for mine in file.parent.glob(f"{glob.escape(file.name)}.*"):
        owner = _read(mine)
        if _is_of_here(owner) and not _is_alive(owner["pid"], owner["started"]):
            mine.unlink(missing_ok=True)


def _acquire(file: Path, on_wait: Callable[[str], None], at_most: float | None) -> Held:
    token = secrets.token_hex(8)
    mine = file.with_name(f"{file.name}.{token}")
    began = time.monotonic()
    waited = _Waited()
    told = False
    try:
        _write(mine, _self(token))
        while not _linked(mine, file):
            owner = _read(file)
            if waited.is_stale(owner):
                _break(file, owner)
                continue
            seconds = time.monotonic() - began
            if at_most is not None and seconds > at_most:
                raise Busy(
                    f"{_in_words(owner)} writes to {file.parent} and does not end",
                    hint="try again later; hidl results reindex waits, and takes over a lock that was left behind",
                )
            if seconds > _TELL_AFTER and not told:
                on_wait(f"waiting for {_in_words(owner)}, which writes to {file.parent}")
                told = True
            time.sleep(random.uniform(0.005, 0.05))
    finally:
        mine.unlink(missing_ok=True)
    return Held(file, token)


def _write(file: Path, owner: dict[str, Any]) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        json.dump(owner, opened)


def _linked(mine: Path, file: Path) -> bool:
    """Was the lock made? The count of links tells, also where the answer to link(2) was lost on its way."""
    with suppress(FileExistsError):
        os.link(mine, file)
    return mine.stat().st_nlink == 2


class _Waited:
    """How long a waiter has seen one and the same lock."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}
        self._since = time.monotonic()

    def is_stale(self, owner: dict[str, Any]) -> bool:
        """Was the lock left behind?"""
        if not owner:
            return False
        if owner != self._seen:
            self._seen, self._since = owner, time.monotonic()
        if _is_of_here(owner):
            return not _is_alive(owner["pid"], owner["started"])
        return time.monotonic() - self._since > PATIENCE


def _break(file: Path, owner: dict[str, Any]) -> None:
    """Remove a lock that was left behind, unless another is about to: one alone gets the right for each token."""
    claim = file.with_name(f"{file.name}.{owner.get('token')}.left")
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        time.sleep(0.05)
        with suppress(FileNotFoundError):  # its maker may have died, too
            if abs(time.time() - claim.stat().st_mtime) > PATIENCE:
                claim.unlink()
        return
    try:
        if _read(file) == owner:
            file.unlink(missing_ok=True)
            file.with_name(f"{file.name}.{owner.get('token')}").unlink(missing_ok=True)
    finally:
        claim.unlink(missing_ok=True)


def _self(token: str) -> dict[str, Any]:
    return {
        "token": token,
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "place": _place(),
        "host": os.uname().nodename,
        "user": os.environ.get("USER") or f"uid {os.getuid()}",
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _read(file: Path) -> dict[str, Any]:
    """The owner in a lock file; empty where there is none."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        document = None
    whole = isinstance(document, dict) and document.keys() >= {"token", "pid", "started", "place"}
    return document if whole else {"token": "unreadable"}


def _in_words(owner: dict[str, Any]) -> str:
    if "pid" not in owner:
        return "another hidl"
    return f"hidl with pid {owner['pid']} of {owner.get('user')} on {owner.get('host')}, since {owner.get('since')}"


def _place() -> str | None:
    """Where process ids mean the same: one boot of one machine, and one name space of them; None: unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _is_of_here(owner: dict[str, Any]) -> bool:
    """Does the owner's process id mean something here?"""
    return owner.get("place") is not None and bool(owner["place"] == _place())


def _is_alive(pid: int, started: str | None) -> bool:
    """Is the process there, and no other with its number? One that ``hidepid`` hides from this user is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started(pid) in (started, None)


def _started(pid: int) -> str | None:
    """When the process started, in clock ticks since the boot; ``ended`` for a zombie, None where it is hidden."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return "ended" if fields[0] in "ZX" else fields[19]

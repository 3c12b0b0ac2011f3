"""One writer at a time on any file system: a lock file beside the file that it guards, with its owner's name.

The lock file is created by ``link(2)``, which succeeds for exactly one of any number of machines, on NFS (as open(2)
recommends) and Lustre as on local disks. ``flock`` is not used: on Lustre it is unsupported or local to one machine
unless mounted with ``-o flock``; on NFS it may be local, too (``local_lock``); and two kinds of locks would exclude
nobody. The drawback is that a lock can outlive its owner. Therefore

- if the owner is known to be dead (same boot of the same machine, same PID namespace), its lock is removed at once;
- otherwise it is removed after ``PATIENCE`` seconds without a change, by the waiter's own monotonic clock. A writer
  holds it for one transaction, well under a second, so clocks of two machines need not agree;
- an owner that was suspended for that long finds, before it commits, that it lost the lock (``HeldLock.confirm``).
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
    """Another writer held the lock for longer than the caller waits."""


@dataclass(frozen=True)
class HeldLock:
    """A lock that this process holds."""

    file: Path
    token: str

    def confirm(self) -> None:
        """Raise ``Busy`` if the lock was taken over because its owner was suspended."""
        if _read(self.file).get("token") != self.token:
            raise Busy(
                f"this hidl was suspended for too long: {_format_owner(_read(self.file))} took over {self.file}",
                hint="run the command again",
            )


@contextmanager
def hold_lock(
    file: Path, *, on_wait: Callable[[str], None] = lambda _: None, at_most: float | None = None
) -> Iterator[HeldLock]:
    """Hold the lock ``file``; ``on_wait`` gets a message if another process holds it for more than a second.

    Raises ``Busy`` after ``at_most`` seconds (None: wait forever), and ``OSError`` if the directory is not writable.
    """
    lock = _acquire(file, on_wait, at_most)
    try:
        yield lock
    finally:
        if _read(file).get("token") == lock.token:
            file.unlink(missing_ok=True)


def sweep(file: Path) -> None:
    """Remove files that killed waiters on this machine left beside the lock ``file``.

    One killed before it had written its name left an empty file, which counts as left behind after ``PATIENCE``.
    """
    for mine in file.parent.glob(f"{glob.escape(file.name)}.*"):
        owner = _read(mine)
        if "pid" not in owner:
            _remove_old(mine)
        elif _is_of_here(owner) and not _is_alive(owner["pid"], owner["started"]):
            mine.unlink(missing_ok=True)


def _acquire(file: Path, on_wait: Callable[[str], None], at_most: float | None) -> HeldLock:
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
                    f"{_format_owner(owner)} is still writing to {file.parent}",
                    hint="try again later; hidl results reindex waits, and takes over a lock that was left behind",
                )
            if seconds > _TELL_AFTER and not told:
                on_wait(f"waiting for {_format_owner(owner)}, which writes to {file.parent}")
                told = True
            time.sleep(random.uniform(0.005, 0.05))
    finally:
        mine.unlink(missing_ok=True)
    return HeldLock(file, token)


def _write(file: Path, owner: dict[str, Any]) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        json.dump(owner, opened)


def _linked(mine: Path, file: Path) -> bool:
    """Was the lock created? The link count shows it, even if the reply to link(2) was lost."""
    with suppress(FileExistsError):
        os.link(mine, file)
    return mine.stat().st_nlink == 2


class _Waited:
    """How long a waiter has seen the same lock."""

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
    """Remove a lock that was left behind; only one process may do so for each token."""
    claim = file.with_name(f"{file.name}.{owner.get('token')}.left")
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        time.sleep(0.05)
        _remove_old(claim)  # its maker may have died, too
        return
    try:
        if _read(file) == owner:
            file.unlink(missing_ok=True)
            file.with_name(f"{file.name}.{owner.get('token')}").unlink(missing_ok=True)
    finally:
        claim.unlink(missing_ok=True)


def _remove_old(file: Path) -> None:
    """Remove a file that nobody has touched for ``PATIENCE``."""
    with suppress(FileNotFoundError):
        if abs(time.time() - file.stat().st_mtime) > PATIENCE:
            file.unlink()


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
    """Return the owner in a lock file; empty if there is none."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        document = None
    whole = isinstance(document, dict) and document.keys() >= {"token", "pid", "started", "place"}
    return document if whole else {"token": "unreadable"}


def _format_owner(owner: dict[str, Any]) -> str:
    if "pid" not in owner:
        return "another hidl"
    return f"hidl with pid {owner['pid']} of {owner.get('user')} on {owner.get('host')}, since {owner.get('since')}"


def _place() -> str | None:
    """Return where process ids are comparable: one boot of one machine and one PID namespace; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _is_of_here(owner: dict[str, Any]) -> bool:
    """Is the owner's process id valid on this machine?"""
    return owner.get("place") is not None and bool(owner["place"] == _place())


def _is_alive(pid: int, started: str | None) -> bool:
    """Does this very process exist? One hidden from this user by ``hidepid`` does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started(pid) in (started, None)


def _started(pid: int) -> str | None:
    """Return the process's start in clock ticks since boot; ``ended`` for a zombie, None if hidden."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return "ended" if fields[0] in "ZX" else fields[19]

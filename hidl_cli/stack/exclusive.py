"""One hidl at a time: a lock that its owner takes along into the grave, and that names its owner to those who wait."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from hidl_cli.errors import HidlError
from hidl_cli.quoting import sh

#: What a file system without locks answers.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_POLL_SECONDS = 0.2
_ATTEMPTS = 100


@contextmanager
def held(file: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock ``file`` (made where it is missing); ``on_wait`` gets one line for the user if another has it.

    Raises ``HidlError`` if it is a link or no file: where others may write, it could lead to a file of this user,
    which would be overwritten.

    The kernel frees the lock when its owner ends in whatever way, so there are no stale ones; the file stays. This is
    ``flock`` itself and not the package filelock, because the locked file carries the owner, and for the 60 ms that
    importing it takes.
    """
    descriptor = _opened(file)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait(f"waiting for {_owner(descriptor)}, which works in {file.parent}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                with _held_by_name(file, on_wait):
                    yield
                return
            if not _was_removed(descriptor, file):
                break
            removed, descriptor = descriptor, _opened(file)
            os.close(removed)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_self()).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _was_removed(descriptor: int, file: Path) -> bool:
    """Return whether the owner removed the file before it freed the lock: another process may lock a new one."""
    try:
        return not os.path.samestat(os.fstat(descriptor), file.lstat())
    except FileNotFoundError:
        return True


def _opened(file: Path) -> int:
    for attempt in range(_ATTEMPTS):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            break
        except (FileNotFoundError, FileExistsError):  # the last owner removed the directory just now
            if attempt == _ATTEMPTS - 1:
                raise
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise _refused(file, "a link") from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise _refused(file, "a second name of another file" if status.st_nlink > 1 else "no file")


def _refused(file: Path, what: str) -> HidlError:
    return HidlError(f"cannot lock {file}: it is {what}", hint=f"see who made it: ls -l {sh(str(file))}")


@contextmanager
def _held_by_name(file: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """The same where the file system knows no locks, as NFS without its lock daemon.

    A directory that holds its owner's name takes the place ``<file>.d``, which succeeds only while that is missing or
    empty. Of an owner that was killed the name is removed: by whoever waits on the same host, elsewhere by hand.
    """
    owner = f"{os.uname().nodename}:{os.getpid()}"
    place, mine = file.with_name(f"{file.name}.d"), file.with_name(f"{file.name}.{owner}")
    shutil.rmtree(mine, ignore_errors=True)  # of a process before this one with its number
    mine.mkdir()
    (mine / owner).touch()
    try:
        _take(place, mine, on_wait)
        yield
    finally:
        (place / owner).unlink(missing_ok=True)
        shutil.rmtree(mine, ignore_errors=True)


def _take(place: Path, mine: Path, on_wait: Callable[[str], None]) -> None:
    told = False
    while True:
        try:
            mine.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
        for name in place.iterdir() if place.is_dir() else ():
            if _is_gone(name.name):
                name.unlink(missing_ok=True)
            elif not told:
                on_wait(f"waiting for hidl on {name.name}; if it has ended: rm {sh(str(name))}")
                told = True
        time.sleep(_POLL_SECONDS)


def _is_gone(owner: str) -> bool:
    """Was it a process of this host, and is there none of its number?"""
    host, _, pid = owner.rpartition(":")
    return host == os.uname().nodename and pid.isdecimal() and not Path("/proc", pid).exists()


def _self() -> dict[str, object]:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    user = os.environ.get("USER") or f"uid {os.getuid()}"
    return {"pid": os.getpid(), "user": user, "host": os.uname().nodename, "since": since}


def _owner(descriptor: int) -> str:
    """Who holds the lock, in words; it may be about to write that down."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"hidl with pid {owner['pid']} of {owner['user']} on {owner['host']}, started {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another hidl"

"""Record a run's input files when it is submitted: standard input, and the files that its command names."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli.documents import sha256
from hidl_cli.errors import HidlError, UsageError, hint_for

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan

SCHEMA = "hidl.inputs/1"

#: Size in bytes up to which files are hashed. Larger files are recorded by size, times and inode, because hashing them
#: would delay the submission.
LARGEST_HASHED = 32 << 20

#: File in a run's directory that contains a copy of standard input if that was a pipe or a file without a path.
PIPED = "stdin"

#: Seconds after which the user is notified that hidl is reading standard input.
QUIET = 2.0

#: Seconds to wait for the first byte of standard input: an unattended job may keep a pipe open without writing to it.
LONGEST_SILENCE = 600.0

#: Directories whose contents differ between nodes.
_OF_THIS_HOST = ("/proc/", "/sys/", "/dev/")

_MEMORY, _NULL = 1, 3  # major number of /dev/null, /dev/zero, /dev/urandom and others, and minor number of /dev/null
_BLOCK = 1 << 20


def find_stdin() -> str | None:
    """Return the absolute path of the file that stdin is redirected from, or ``PIPED`` if the input must be copied.

    The run's directory gets a copy of pipes, of files without a path (here-documents), of files that have been partly
    read, and of files whose path refers to a different file on other nodes. For a terminal, ``/dev/null``, a socket or
    a closed standard input, the result is None, since the program is not expected to read it. Any other device raises
    ``UsageError``.
    """
    if sys.stdin is None:  # it was closed when hidl started, so descriptor 0 may now be another file
        return None
    try:
        status = os.fstat(0)
        flags = fcntl.fcntl(0, fcntl.F_GETFL)
    except OSError:
        return None
    kind = stat.S_IFMT(status.st_mode)
    if flags & os.O_ACCMODE == os.O_WRONLY or kind == stat.S_IFSOCK:
        return None
    if kind == stat.S_IFIFO:
        return PIPED
    if kind == stat.S_IFREG:
        return _path_of_stdin(status) or PIPED
    endless = os.major(status.st_rdev) == _MEMORY and os.minor(status.st_rdev) != _NULL
    if kind == stat.S_IFBLK or (kind == stat.S_IFCHR and endless):
        raise UsageError("standard input is a device", hint="use < FILE, or < /dev/null if the program reads nothing")
    return None


def copy_stdin(target: Path, notify: Callable[[str], object] | None = None) -> None:
    """Copy standard input to a file in a new directory, and remove the directory if that fails.

    A file is copied from its current offset. The offset does not change, so that a shell's ``while read`` can continue.
    ``notify`` receives a message after ``QUIET`` seconds.

    Raises ``UsageError`` if a pipe is silent for the first ``LONGEST_SILENCE`` seconds, and ``HidlError`` if standard
    input cannot be read or the copy cannot be written.
    """
    try:
        target.parent.mkdir(parents=True)
        try:
            with open(target, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                for block in _blocks_of_stdin(notify):
                    file.write(block)
        except BaseException:
            shutil.rmtree(target.parent, ignore_errors=True)
            raise
    except OSError as error:
        hint = hint_for(error, "free some space")
        raise HidlError(f"cannot copy standard input to {target}: {error}", hint=hint) from error


def require_readable(file: Path) -> None:
    """Raise ``UsageError`` unless the file for standard input is a readable regular file."""
    try:
        with file.open("rb"):
            why = None if file.is_file() else "not a regular file"
    except OSError as error:
        why = error.strerror
    if why:
        raise UsageError(f"standard input {file}: {why}", hint="use a file that all nodes can read")


def _path_of_stdin(status: os.stat_result) -> str | None:
    """Return the path of the regular file that is standard input, or None if its contents must be copied."""
    try:
        path = str(Path("/proc/self/fd/0").readlink())
        path.encode()
        is_there = os.path.samestat(Path(path).stat(), status)
    except (OSError, UnicodeEncodeError):
        return None
    is_shared = is_there and not path.startswith(_OF_THIS_HOST)
    return path if is_shared and os.lseek(0, 0, os.SEEK_CUR) == 0 else None


def _blocks_of_stdin(notify: Callable[[str], object] | None) -> Iterator[bytes]:
    if stat.S_ISREG(os.fstat(0).st_mode):
        offset = os.lseek(0, 0, os.SEEK_CUR)
        while block := os.pread(0, _BLOCK, offset):
            offset += len(block)
            yield block
        return
    began, silent = time.monotonic(), True
    while True:
        waited = time.monotonic() - began
        if notify is not None and waited >= QUIET:
            notify(
                "reading the program's standard input from a pipe that is still open (use < /dev/null if it reads none)"
            )
            notify = None
        limit = QUIET if notify is not None else LONGEST_SILENCE if silent else None
        if silent and waited >= LONGEST_SILENCE:
            raise UsageError(
                f"standard input is a pipe that is still open but sent nothing for {LONGEST_SILENCE:.0f} s",
                hint="use < /dev/null if the program reads nothing, or write its input to a file first",
            )
        if not select.select([0], [], [], None if limit is None else max(0.0, limit - waited))[0]:
            continue
        try:
            block = os.read(0, _BLOCK)
        except BlockingIOError:
            continue
        if not block:
            return
        silent = False
        yield block


def input_files(plan: Plan, directory: Path | None = None) -> Iterator[Path]:
    """Yield the input files of a plan: standard input, and the files that the command and the parameters name.

    Each file is yielded once. Files that belong to the stack are omitted. ``directory`` is the run's directory.
    """
    program = plan.workload.program
    base = Path(program.directory) if program.directory else None
    words = [*(program.command or ()), *(program.arguments or ())]
    words += [str(value) for point in plan.points for value in {**plan.parameters, **point}.values()]
    seen = set()
    if plan.stdin is not None and (file := _file(plan.stdin, directory)) is not None:
        seen.add(file)
        yield file
    for word in words:
        for text in (word, word.partition("=")[2]):
            file = _file(text, base)
            if file is None or file in seen or file.is_relative_to(plan.prefix):
                continue
            seen.add(file)
            yield file


def record_inputs(plan: Plan, directory: Path | None = None) -> dict[str, Any]:
    """Return the document ``inputs.json``, which maps the path of each input file to a record of its current state."""
    files = {}
    for file in input_files(plan, directory):
        try:
            status = file.stat()
            hashed = {"sha256": sha256(file)} if status.st_size <= LARGEST_HASHED else {}
        except OSError:
            continue
        files[str(file)] = {**fingerprint(status), **hashed}
    return {"schema": SCHEMA, "files": files}


def fingerprint(status: os.stat_result) -> dict[str, int]:
    """Return the properties of a file that change if it is modified or replaced, even by an older file."""
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def is_unchanged(file: Path, recorded: Mapping[str, Any]) -> bool:
    """Return whether a file still matches its record, by its hash if one was recorded, or else by its fingerprint."""
    try:
        if "sha256" in recorded:
            return bool(sha256(file) == recorded["sha256"])
        found = fingerprint(file.stat())
    except OSError:
        return False
    return all(recorded.get(name) == value for name, value in found.items())


def _file(text: str, base: Path | None) -> Path | None:
    """Return the file that ``text`` names, or None if there is no such file; relative paths require ``base``."""
    if not text or "\0" in text or len(text) > 4096:
        return None
    path = Path(text)
    if not path.is_absolute():
        if base is None:
            return None
        path = base / path
    try:
        return path if path.is_file() else None
    except OSError:
        return None

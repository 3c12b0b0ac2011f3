"""Input files of a run: its standard input and those that its words name, as they were when it was submitted."""

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

from hidl_cli.errors import HidlError, UsageError, hint_for
from hidl_cli.stack.builds.sources import sha256

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan

SCHEMA = "hidl.inputs/1"

#: Larger files are known by size, times and inode alone: hashing them would delay the submission.
LARGEST_HASHED = 32 << 20

#: The file in a run's directory that keeps what was read from standard input: from a pipe, or a file without a path.
PIPED = "stdin"

#: Seconds of reading standard input after which the user gets a message.
QUIET = 2.0

#: Seconds to wait for the first byte of standard input: an unattended job may leave a pipe open and never write to it.
LONGEST_SILENCE = 600.0

#: Below these, a path leads to another file on another node.
_OF_THIS_HOST = ("/proc/", "/sys/", "/dev/")

_MEMORY, _NULL = 1, 3  # numbers of the devices /dev/null, /dev/zero, /dev/urandom, ...
_BLOCK = 1 << 20


def find_stdin() -> str | None:
    """Return the file that a program gets as its standard input, from this process's: its absolute path or ``PIPED``.

    A pipe is copied into the run's directory, and so is a file that has no path (a here-document), that was read in
    part, or whose path leads elsewhere on other nodes. None for a terminal, ``/dev/null``, a socket, and a closed
    standard input: they say nothing about what the program should read. Raises ``UsageError`` for any other device.
    """
    if sys.stdin is None:  # it was closed when hidl started: descriptor 0 may be another file now
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
        raise UsageError("standard input is a device", hint="< FILE, or < /dev/null if the program reads nothing")
    return None


def copy_stdin(target: Path, tell: Callable[[str], object] | None = None) -> None:
    """Copy this process's standard input to ``target``, in a new directory that goes again if that fails.

    A file is read from its current offset on, and its offset does not move, so a shell's ``while read`` goes on. After
    ``QUIET`` seconds ``tell`` gets a message.

    Raises ``UsageError`` if a pipe is silent for ``LONGEST_SILENCE`` seconds from the beginning, and ``HidlError`` if
    it cannot be read or kept.
    """
    try:
        target.parent.mkdir(parents=True)
        try:
            with open(target, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                for block in _blocks_of_stdin(tell):
                    file.write(block)
        except BaseException:
            shutil.rmtree(target.parent, ignore_errors=True)
            raise
    except OSError as error:
        raise HidlError(
            f"cannot keep standard input in {target}: {error}", hint=hint_for(error, "free some space")
        ) from error


def require_readable(file: Path) -> None:
    """Raise ``UsageError`` unless this is a regular file that can be read, as standard input must be."""
    try:
        with file.open("rb"):
            why = None if file.is_file() else "not a regular file"
    except OSError as error:
        why = error.strerror
    if why:
        raise UsageError(f"standard input {file}: {why}", hint="name a file that all nodes can read")


def _path_of_stdin(status: os.stat_result) -> str | None:
    """Return the path of the regular file that is standard input; None if its content must be copied."""
    try:
        path = str(Path("/proc/self/fd/0").readlink())
        path.encode()
        is_there = os.path.samestat(Path(path).stat(), status)
    except (OSError, UnicodeEncodeError):
        return None
    is_shared = is_there and not path.startswith(_OF_THIS_HOST)
    return path if is_shared and os.lseek(0, 0, os.SEEK_CUR) == 0 else None


def _blocks_of_stdin(tell: Callable[[str], object] | None) -> Iterator[bytes]:
    if stat.S_ISREG(os.fstat(0).st_mode):
        offset = os.lseek(0, 0, os.SEEK_CUR)
        while block := os.pread(0, _BLOCK, offset):
            offset += len(block)
            yield block
        return
    began, silent = time.monotonic(), True
    while True:
        waited = time.monotonic() - began
        if tell is not None and waited >= QUIET:
            tell("reading standard input for the program, from a pipe that is still open (none: < /dev/null)")
            tell = None
        limit = QUIET if tell is not None else LONGEST_SILENCE if silent else None
        if silent and waited >= LONGEST_SILENCE:
            raise UsageError(
                f"standard input is a pipe that was silent for {LONGEST_SILENCE:.0f} s and is still open",
                hint="< /dev/null if the program reads nothing, or write its input to a file first",
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
    """Yield the files that the program reads: standard input, and those that its words and parameters name.

    Each comes once, without the stack's own files. ``directory``: the run's.
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
    """Return the document ``inputs.json`` of the run in ``directory``: each input file as it is now, by its path."""
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
    """Return what changes if a file is written to or replaced, even by a file with an older time of change."""
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def is_unchanged(file: Path, recorded: Mapping[str, Any]) -> bool:
    """Is the file the one that was recorded? One without a recorded hash is not if only its inode or times differ."""
    try:
        if "sha256" in recorded:
            return bool(sha256(file) == recorded["sha256"])
        found = fingerprint(file.stat())
    except OSError:
        return False
    return all(recorded.get(name) == value for name, value in found.items())


def _file(text: str, base: Path | None) -> Path | None:
    """Return the file of that name; None if there is none, or the name is relative and the program has no directory."""
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

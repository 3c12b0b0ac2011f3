"""The tree of errors and the exit codes they end the program with.

::

    HidlError                    1  unexpected
    ├── UsageError               2  the command line asks for something that does not exist
    ├── InvalidInput             3  a site, stack or workload file (or a --set value) is wrong
    ├── MissingPrecondition      4  something that must be there first is not
    ├── BuildFailed              5  an installation could not be made or did not verify
    ├── SubmitRefused            6  the scheduler (or the site's limits) would not take the job
    ├── SchedulerUnreachable     7  try again later
    ├── JobFailed                8  the job failed, timed out or was cancelled
    └── MetricMissing            9  the job ended well, but a metric that it must yield is not there
    ProcessFailed is a HidlError that carries the command, its directory, its exit status and its log.

Verdicts are no errors: ``hidl run`` ends with 10 (below target) or 11 (inconclusive) by itself.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar


class ExitCode(IntEnum):
    """The exit status of ``hidl``."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    INVALID_INPUT = 3
    MISSING_PRECONDITION = 4
    BUILD_FAILED = 5
    SUBMIT_REFUSED = 6
    SCHEDULER_UNREACHABLE = 7
    JOB_FAILED = 8
    METRIC_MISSING = 9
    BELOW_TARGET = 10
    INCONCLUSIVE = 11
    INTERRUPTED = 130


class ToldToEnd(KeyboardInterrupt):
    """The terminal is gone (SIGHUP), or the host shuts down (SIGTERM): an interrupt that the user may not want."""


class HidlError(Exception):
    """Something failed: ``message`` says what and why, ``hint`` the next thing to do."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNEXPECTED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Imported here, for most commands raise no error.
        from hidl_cli.redaction import shown

        self.message = shown(message)
        self.hint = shown(hint) if hint else hint
        super().__init__(self.message)


@dataclass(frozen=True)
class Mark:
    """A place in a file: ``line`` and ``column`` count from 1; ``length`` is how many characters it spans.

    ``text`` is the whole line. Line 0 stands for the file as a whole.
    """

    file: Path
    line: int = 0
    column: int = 0
    length: int = 0
    text: str = ""


@dataclass(frozen=True)
class Problem:
    """One problem: what is wrong, where, what was expected there, and the nearest valid word if one is near.

    ``path`` is the place in the document (``("node_types", "gpu", "cores")``), ``mark`` its place in the file, or None
    if there is no file (a value given on the command line).
    """

    message: str
    expected: str
    path: tuple[str | int, ...] = ()
    mark: Mark | None = None
    suggestion: str | None = None


class UsageError(HidlError):
    """The command line names something that does not exist or does not fit together."""

    exit_code = ExitCode.USAGE


class InvalidInput(HidlError):
    """A file or a value that a person wrote is wrong; ``problems`` holds all of them, each with its place."""

    exit_code = ExitCode.INVALID_INPUT

    def __init__(self, message: str, *, problems: Sequence[Problem] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class MissingPrecondition(HidlError):
    """Something that must be there first (a lock, an installation, a tool, the network) is not."""

    exit_code = ExitCode.MISSING_PRECONDITION


class BuildFailed(HidlError):
    """A stack could not be installed, or what was installed did not pass its verification."""

    exit_code = ExitCode.BUILD_FAILED


class SubmitRefused(HidlError):
    """The scheduler, or a limit of the site, does not allow the job."""

    exit_code = ExitCode.SUBMIT_REFUSED


class SchedulerUnreachable(HidlError):
    """The scheduler does not answer; the same command may succeed later."""

    exit_code = ExitCode.SCHEDULER_UNREACHABLE


class JobFailed(HidlError):
    """The job ended with an error, ran out of time, was cancelled or vanished."""

    exit_code = ExitCode.JOB_FAILED


class MetricMissing(HidlError):
    """The job ended well, but did not yield a metric that its workload promises."""

    exit_code = ExitCode.METRIC_MISSING


class ProcessFailed(HidlError):
    """A process that hidl started ended with a non-zero status or could not be started.

    ``status`` is the exit status (negative: the signal), ``output`` the end of what it printed.
    """

    def __init__(self, command: Sequence[str], *, cwd: Path | None, status: int, output: str, log: Path | None) -> None:
        self.command = tuple(command)
        self.cwd = cwd
        self.status = status
        self.output = output
        self.log = log
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        super().__init__(f"{Path(command[0]).name} {how}", hint=f"its output is in {log}" if log else None)


_ROOM = "free some space there, or name another place: XDG_STATE_HOME (runs), XDG_CACHE_HOME, --prefix (installations)"
#: The module tempfile writes so many bytes to a directory that it tries.
_TRIED_BYTES = 4
_RIGHTS = "make it writable, or name another place: XDG_STATE_HOME (runs), XDG_CONFIG_HOME, XDG_CACHE_HOME, TMPDIR"
#: What the machine or its limits refuse, by errno, and the next thing to do.
_OF_THE_SYSTEM = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST), _RIGHTS),
    errno.EFBIG: "raise the limit of the size of files: ulimit -f unlimited",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files: ulimit -n 1024"),
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or end some",
    errno.ENOMEM: "raise the limit of memory (ulimit -v, -d), or end other programs",
    **dict.fromkeys((errno.EIO, errno.ESTALE), "the file system fails: try again, or ask the site's staff"),
}


def hint_for(error: OSError, room: str) -> str:
    """Return the next step after a failed write.

    Args:
        error: The error of the system call.
        room: The next step where the disk is full, and where the error says nothing else.
    """
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return room if is_full else _OF_THE_SYSTEM.get(error.errno or 0, room)


def of_the_system(error: OSError | MemoryError | RuntimeError) -> HidlError | None:
    """Return the error that names what the machine refused and the next step; None if hidl itself may be at fault."""
    if isinstance(error, MemoryError):
        return MissingPrecondition("out of memory", hint=_OF_THE_SYSTEM[errno.ENOMEM])
    if isinstance(error, RuntimeError):
        if str(error) != "can't start new thread":
            return None
        next_step = "raise the limit of processes (ulimit -u), lower that of stacks (ulimit -s), or end other programs"
        return MissingPrecondition("cannot start a thread", hint=next_step)
    hint = _OF_THE_SYSTEM.get(error.errno or 0)
    if error.errno == errno.ENOENT and error.filename is None:
        # Of getcwd, or of the module tempfile, whose text names the directories that it tried.
        hint = "change into a directory that exists"
        if "temporary" in str(error.strerror):
            no_files = resource.getrlimit(resource.RLIMIT_FSIZE)[0] < _TRIED_BYTES
            hint = _OF_THE_SYSTEM[errno.EFBIG] if no_files else _RIGHTS
    if hint is None:
        return None
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    place = error.filename or ("the output cannot be written" if full else None)
    return MissingPrecondition(f"{place}: {error.strerror}" if place else str(error.strerror), hint=hint)

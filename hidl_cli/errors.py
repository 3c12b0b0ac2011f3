"""Error classes and their exit codes.

::

    HidlError                    1  unexpected error
    ├── UsageError               2  invalid command line
    ├── InvalidInput             3  invalid site, stack or workload file, or --set value
    ├── MissingPrecondition      4  something required is missing
    ├── BuildFailed              5  the installation or its verification failed
    ├── SubmitRefused            6  the scheduler (or a limit of the site) rejected the job
    ├── SchedulerUnreachable     7  the scheduler does not respond; try again later
    ├── JobFailed                8  the job failed, timed out or was cancelled
    └── MetricMissing            9  the job succeeded without a metric that it must report
    ProcessFailed is a HidlError that carries the command, its directory, its exit status and its log.

Verdicts are not errors: ``hidl run`` itself exits with 10 (below target) or 11 (inconclusive).
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


class Terminated(KeyboardInterrupt):
    """An interruption by SIGHUP (lost terminal) or SIGTERM (host shutdown), which the user may not have intended."""


class HidlError(Exception):
    """Base class of all errors: ``message`` is what failed and why, and ``hint`` is the next step."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNEXPECTED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Imported here because most commands do not raise an error.
        from hidl_cli.redaction import shown

        self.message = shown(message)
        self.hint = shown(hint) if hint else hint
        super().__init__(self.message)


@dataclass(frozen=True)
class Mark:
    """A position in a file; line 0 stands for the whole file.

    ``line`` and ``column`` count from 1, ``length`` is the number of marked characters, and ``text`` is the whole line.
    """

    file: Path
    line: int = 0
    column: int = 0
    length: int = 0
    text: str = ""


@dataclass(frozen=True)
class Problem:
    """A problem in an input, the expected value, and the closest valid word, if any.

    ``path`` is the location in the document, such as ``("node_types", "gpu", "cores")``. ``mark`` is the position in
    the file, or None for a value from the command line.
    """

    message: str
    expected: str
    path: tuple[str | int, ...] = ()
    mark: Mark | None = None
    suggestion: str | None = None


class UsageError(HidlError):
    """The command line names something that does not exist, or combines options that conflict."""

    exit_code = ExitCode.USAGE


class InvalidInput(HidlError):
    """A file or a value written by the user is invalid; ``problems`` lists every error with its position."""

    exit_code = ExitCode.INVALID_INPUT

    def __init__(self, message: str, *, problems: Sequence[Problem] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class MissingPrecondition(HidlError):
    """Something that must exist first, such as a lockfile, an installation, a tool or the network, is missing."""

    exit_code = ExitCode.MISSING_PRECONDITION


class BuildFailed(HidlError):
    """A stack could not be installed, or the installation failed its verification."""

    exit_code = ExitCode.BUILD_FAILED


class SubmitRefused(HidlError):
    """The scheduler or a limit of the site rejected the job."""

    exit_code = ExitCode.SUBMIT_REFUSED


class SchedulerUnreachable(HidlError):
    """The scheduler does not respond; the same command may succeed later."""

    exit_code = ExitCode.SCHEDULER_UNREACHABLE


class JobFailed(HidlError):
    """The job failed, ran out of time, was cancelled or disappeared."""

    exit_code = ExitCode.JOB_FAILED


class MetricMissing(HidlError):
    """The job succeeded but did not report a metric that its workload requires."""

    exit_code = ExitCode.METRIC_MISSING


class ProcessFailed(HidlError):
    """A process exited with a non-zero status or could not be started.

    ``status`` is the exit status, which is negative if a signal ended the process; ``output`` is the end of its output,
    without secrets.
    """

    def __init__(self, command: Sequence[str], *, cwd: Path | None, status: int, output: str, log: Path | None) -> None:
        self.command = tuple(command)
        self.cwd = cwd
        self.status = status
        self.output = output
        self.log = log
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        super().__init__(f"{Path(command[0]).name} {how}", hint=f"see its output in {log}" if log else None)


_SPACE_HINT = (
    "free some space, or use another directory: XDG_STATE_HOME (runs), XDG_CACHE_HOME, --prefix (installations)"
)
_ACCESS_HINT = (
    "make it writable, or use another directory: XDG_STATE_HOME (runs), XDG_CONFIG_HOME, XDG_CACHE_HOME, TMPDIR"
)
#: Size in bytes of the file that ``tempfile`` writes to test a directory.
_TEST_FILE_BYTES = 4
#: Hints for errors caused by the machine or its limits, by errno.
_SYSTEM_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _SPACE_HINT),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST), _ACCESS_HINT),
    errno.EFBIG: "raise the file size limit: ulimit -f unlimited",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit on open files: ulimit -n 1024"),
    errno.EAGAIN: "raise the limit on processes (ulimit -u), or end some of them",
    errno.ENOMEM: "raise the memory limit (ulimit -v, -d), or end other programs",
    **dict.fromkeys((errno.EIO, errno.ESTALE), "the file system has failed: try again, or contact the site's support"),
}


def hint_for(error: OSError, space: str) -> str:
    """Return a hint about what to do after a failed write.

    Args:
        error: The error raised by the system call.
        space: The hint if the disk is full, or if there is no specific hint for the error.
    """
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return space if is_full else _SYSTEM_HINTS.get(error.errno or 0, space)


def describe_system_error(error: OSError | MemoryError | RuntimeError) -> HidlError | None:
    """Return the error for a failure caused by the machine or its limits, or None if hidl itself may be at fault."""
    if isinstance(error, MemoryError):
        return MissingPrecondition("out of memory", hint=_SYSTEM_HINTS[errno.ENOMEM])
    if isinstance(error, RuntimeError):
        if str(error) != "can't start new thread":
            return None
        advice = "raise the limit on processes (ulimit -u), lower the stack size (ulimit -s), or end other programs"
        return MissingPrecondition("cannot start a thread", hint=advice)
    hint = _SYSTEM_HINTS.get(error.errno or 0)
    if error.errno == errno.ENOENT and error.filename is None:
        # Raised by getcwd, or by tempfile, whose message lists the directories that it tried.
        hint = "change into a directory that exists"
        if "temporary" in str(error.strerror):
            no_files = resource.getrlimit(resource.RLIMIT_FSIZE)[0] < _TEST_FILE_BYTES
            hint = _SYSTEM_HINTS[errno.EFBIG] if no_files else _ACCESS_HINT
    if hint is None:
        return None
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    what = error.filename or ("cannot write the output" if full else None)
    return MissingPrecondition(f"{what}: {error.strerror}" if what else str(error.strerror), hint=hint)

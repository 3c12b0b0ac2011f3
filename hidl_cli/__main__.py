"""The ``hidl`` command's entry."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import stat
import sys

from hidl_cli import __version__

TYPE_CHECKING = False  # the module typing may be another one, from PYTHONPATH
if TYPE_CHECKING:
    from types import TracebackType


def main() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:] == ["--version"]:  # answered before anything is imported
        print(f"hidl {__version__}")
        return
    if sys.argv[1:3] == ["run", "capsule"] and len(sys.argv) > 3 and not sys.argv[3].startswith("-"):
        del sys.argv[1]  # `hidl run capsule RUN` is `hidl capsule RUN`
    if os.environ.pop("PYTHONINSPECT", None):  # with it, Python reads commands at the end, and its status is another
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    if sys.warnoptions:  # PYTHONWARNINGS is about the user's programs; made an error, a warning would end hidl
        import warnings

        warnings.simplefilter("ignore")
    _search_own_modules_first()
    import signal  # PYTHONPATH may name another one

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, every program would seem to end with 0
    _open_closed_streams()
    os.umask(os.umask(0) | 0o002)  # nothing that hidl or its jobs write can be written by everyone
    gc.set_threshold(200_000)  # what imports make stays: to collect among it takes a tenth of the start
    atexit.register(gc.freeze)  # and to collect among it at the end another tenth
    atexit.register(_forget_a_closed_terminal)
    sys.excepthook = _show_traceback
    from hidl_cli.commands import completion

    if completion.asked(os.environ):
        text, status = completion.answer(os.environ)
        sys.stdout.write(text)
        sys.exit(status)
    from hidl_cli.commands.app import command_line

    command_line(sys.argv[1] if len(sys.argv) > 1 else None)()


def _search_own_modules_first() -> None:
    """Move the directories of ``PYTHONPATH`` to the end, so that a user's ``json.py`` replaces no module of hidl."""
    named = {os.path.abspath(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place}  # noqa: PTH100
    sys.path.sort(key=lambda place: place in named)


def _open_closed_streams() -> None:
    """Open standard streams that are closed as ``/dev/null``: a file of hidl's would become a child's output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an unexpected error without secrets."""
    import traceback

    from hidl_cli.redaction import shown

    sys.stderr.write(shown("".join(traceback.format_exception(kind, error, trace))))


def _forget_a_closed_terminal() -> None:
    """Drop what was to be printed on a terminal that is gone, which would change the exit status to 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            lost = stream is sys.stderr and error.errno == errno.ENOSPC  # there is no other place for what it says
            if lost or (error.errno == errno.EIO and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()

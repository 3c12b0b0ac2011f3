"""Entry point of the ``hidl`` command."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import stat
import sys

from hidl_cli import __version__

TYPE_CHECKING = False  # not imported from typing, which a file on PYTHONPATH may shadow
if TYPE_CHECKING:
    from types import TracebackType


def main() -> None:
    """Run the command line and exit with its exit code."""
    if sys.argv[1:] == ["--version"]:  # handled before the slow imports
        print(f"hidl {__version__}")
        return
    if sys.argv[1:3] == ["run", "capsule"] and len(sys.argv) > 3 and not sys.argv[3].startswith("-"):
        del sys.argv[1]  # `hidl run capsule RUN` is `hidl capsule RUN`
    if os.environ.pop("PYTHONINSPECT", None):  # Python would open a prompt on exit and change the exit status
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    if sys.warnoptions:  # PYTHONWARNINGS=error, meant for the user's programs, must not make hidl crash
        import warnings

        warnings.simplefilter("ignore")
    _search_own_modules_first()
    import signal  # imported here because a file on PYTHONPATH may shadow it

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, every child seems to exit with 0
    _open_closed_streams()
    os.umask(os.umask(0) | 0o002)  # files of hidl and its jobs are never world-writable
    gc.set_threshold(200_000)  # collecting the objects that imports create takes a tenth of the start-up time
    atexit.register(gc.freeze)  # and collecting them again on exit takes another tenth
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
    """Search the directories in ``PYTHONPATH`` last, so that a user's ``json.py`` cannot shadow hidl's imports."""
    named = {os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}  # noqa: PTH100
    sys.path.sort(key=lambda path: path in named)


def _open_closed_streams() -> None:
    """Open closed standard streams on ``/dev/null``.

    Otherwise the next file that hidl opens would take the descriptor and become the output of its child processes.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an unexpected error with secrets redacted."""
    import traceback

    from hidl_cli.redaction import shown

    sys.stderr.write(shown("".join(traceback.format_exception(kind, error, trace))))


def _forget_a_closed_terminal() -> None:
    """Discard buffered output if the terminal is gone; Python would change the exit status to 120 otherwise."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            lost = stream is sys.stderr and error.errno == errno.ENOSPC  # a full disk, and nowhere else to report it
            if lost or (error.errno == errno.EIO and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()

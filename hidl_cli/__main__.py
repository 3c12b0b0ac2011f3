"""The ``hidl`` command's entry."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import stat
import sys
from typing import TYPE_CHECKING

from hidl_cli import __version__

if TYPE_CHECKING:
    from types import TracebackType


def main() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:] == ["--version"]:  # answered before anything is imported
        print(f"hidl {__version__}")
        return
    if sys.argv[1:3] == ["run", "capsule"] and len(sys.argv) > 3 and not sys.argv[3].startswith("-"):
        del sys.argv[1]  # `hidl run capsule RUN` is `hidl capsule RUN`
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
            if error.errno == errno.EIO and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()

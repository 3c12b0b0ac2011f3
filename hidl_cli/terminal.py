"""The terminal on which hidl was started: its foreground process group and its modes."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: The file descriptor of the terminal's input.
_INPUT = 0


def attached() -> bool:
    """Return whether standard input and standard output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def in_foreground() -> bool:
    """Return whether standard input is this session's terminal and this process may read from it."""
    try:
        return os.tcgetpgrp(_INPUT) == os.getpgrp()
    except OSError:
        return False


def take() -> None:
    """Move this process's group to the foreground of the terminal, or do nothing if the terminal is gone."""
    with suppress(OSError), _without_stop():
        os.tcsetpgrp(_INPUT, os.getpgrp())


@contextmanager
def lent() -> Iterator[Callable[[], None]]:
    """Provide a function that moves a child in its own group to the foreground, and restore the terminal afterwards.

    Does nothing if standard input is not a terminal or if this process is in the background.
    """
    if not in_foreground():
        yield lambda: None
        return
    modes = termios.tcgetattr(_INPUT)
    try:
        yield take
    finally:
        take()
        with suppress(termios.error), _without_stop():
            termios.tcsetattr(_INPUT, termios.TCSADRAIN, modes)


@contextmanager
def _without_stop() -> Iterator[None]:
    """Block SIGTTOU, which would stop a background process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

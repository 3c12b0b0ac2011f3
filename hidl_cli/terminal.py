"""The terminal that hidl was started on: its foreground process group and its modes."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: The descriptor by which a terminal is known: what is typed comes from there.
_INPUT = 0


def attached() -> bool:
    """Whether a person can type: standard input and standard output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def in_foreground() -> bool:
    """Whether standard input is the terminal of this session, and this process may read from it."""
    try:
        return os.tcgetpgrp(_INPUT) == os.getpgrp()
    except OSError:
        return False


def take() -> None:
    """Make this process's group the terminal's foreground group; nothing if the terminal is gone."""
    with suppress(OSError), _without_stop():
        os.tcsetpgrp(_INPUT, os.getpgrp())


@contextmanager
def lent() -> Iterator[Callable[[], None]]:
    """Give what a child calls, in a group of its own, to come to the foreground; afterwards all is as before.

    Nothing happens if standard input is no terminal, or this process is in the background.
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
    """Let no SIGTTOU stop a process that is in the background for now."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

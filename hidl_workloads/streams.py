"""Output of a rank that reaches the user even if another rank ends all of them a moment later."""

from __future__ import annotations

import os
import time

_PATIENCE_SECONDS = 1.0
_NAP_SECONDS = 0.001


def wait_until_read(descriptor: int) -> None:
    """Let the launcher read what is in this pipe, for a second at most: on an abort MPICH's drops what is unread.

    Raises ``OSError`` where the descriptor is closed.
    """
    import fcntl
    import stat
    import struct
    import termios

    until = time.monotonic() + _PATIENCE_SECONDS
    while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and time.monotonic() < until:
        (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
        if not unread:
            return
        time.sleep(_NAP_SECONDS)

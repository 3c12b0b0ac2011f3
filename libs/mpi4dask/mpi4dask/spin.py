"""When polling pays: while this process has a core to itself."""

from __future__ import annotations

import os
import time

LARGE_BYTES_PER_SECOND = 2e9  # how fast the other end gets a large message, at the least
PREEMPTED = 0.0005  # seconds between two polls that found nothing: the core was given to somebody else
LONGER = 10  # times as long as usual, at the most, where that has lately caught the next message
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


class Spinner:
    """Says how long to poll after the last message: `most` seconds, or not at all while others want the core.

    A process that polls uses up its time slice, and is then made to wait just when its message comes; one that
    sleeps is woken at once. So after every poll that was interrupted by others, polling pauses, for longer each time.

    Where the other end takes longer for its answers than `most`, as it does for objects that are pickled, each would
    find a sleeper, and waking one costs as much as a small message over a socket. So polling lasts a little longer than
    the last of such waits did, unless messages come too seldom for that.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._longer = most
        self._last = 0.0
        self._pause = _FIRST_PAUSE
        self._paused_until = 0.0
        self._busy_until = 0.0

    def until(self) -> float:
        """The time (of `time.perf_counter`) up to which polling pays from now on; a time in the past for not at all."""
        now = time.perf_counter()
        gap = now - self._last
        self._last = now
        if gap > self.most:
            self._longer = 1.5 * gap if gap < LONGER * self.most / 1.5 else max(self.most, self._longer / 2)
        return max(now + self._longer, self._busy_until) if now >= self._paused_until else 0.0

    def sent(self, size: int) -> None:
        """A message of so many bytes has gone out: an answer cannot come before the other end has got them."""
        if self.most:
            self._busy_until = time.perf_counter() + self.most + size / LARGE_BYTES_PER_SECOND

    def polled(self, before: float, now: float) -> None:
        """Two polls found nothing at these times, and nothing else was done between them."""
        if now - before > PREEMPTED:
            self._paused_until = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    @property
    def crowded(self) -> bool:
        """Whether others took the core not long ago, for longer than a message takes."""
        return time.perf_counter() < self._paused_until

    def give_way(self) -> bool:
        """Let others have the core; return whether it came back soon, so that this is not worse than a pause."""
        if self.crowded:
            return False
        before = time.perf_counter()
        os.sched_yield()
        self.polled(before, time.perf_counter())
        if self.crowded:
            return False
        self.calm()
        return True

    def calm(self) -> None:
        """A whole spell of polling was not interrupted."""
        self._pause = max(self._pause / 2, _FIRST_PAUSE)

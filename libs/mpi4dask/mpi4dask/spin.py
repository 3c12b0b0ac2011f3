"""The time for which polling is worthwhile: while this process has a core to itself."""

from __future__ import annotations

import os
import time

LARGE_BYTES_PER_SECOND = 2e9  # lower bound of the rate at which the other end receives a large message
PREEMPTED = 0.0005  # seconds between two idle polls; after longer ones the core was given to another process
LONGER = 10  # maximum factor by which polling is extended if that has recently caught the next message
SAVED = 0.0001  # seconds that a message takes less if polling finds it, because nothing has to be woken
SHARE = 0.01  # of the time, which may be polled in vain beyond what polling has saved
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


class Spinner:
    """Time limits for polling: `most` seconds after the last message, or none while other processes need the core.

    A process that polls uses up its time slice and then has to wait just when its message arrives, while a sleeping one
    is woken at once. After every poll that other processes interrupted, polling therefore pauses, each time for longer.

    If the other end takes longer than `most` to answer, as for pickled objects, each answer would find a sleeping
    engine, and waking it costs as much as a small message over a socket. Polling therefore lasts a little longer than
    the last such wait, unless messages are too rare for that.

    Polling that ends before the message comes delays the work between messages if cores are scarce, although nothing
    interrupts it: it is shorter than a time slice. The time that was polled in vain is therefore charged to a budget,
    to which messages that polling finds add `SAVED`, and time adds its `SHARE`. Polling stops when nothing is left,
    and starts again when a message comes so soon that polling would have found it.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._longer = most
        self._last = 0.0
        self._pause = _FIRST_PAUSE
        self._paused_until = 0.0
        self._busy_until = 0.0
        self._budget = LONGER * most
        self._granted = 0.0
        self._waiting_since = 0.0
        self._was_woken = False

    def until(self) -> float:
        """Return the time (of `time.perf_counter`) until which polling is worthwhile; 0 if it is not."""
        now = time.perf_counter()
        gap = now - self._last
        self._last = now
        if gap > self.most:
            self._longer = 1.5 * gap if gap < LONGER * self.most / 1.5 else max(self.most, self._longer / 2)
        self._budget = min(self._budget + SHARE * gap, LONGER * self.most)
        if now < self._paused_until or (self.most and self._budget <= 0):
            self._granted = 0.0
            return 0.0
        until = max(now + self._longer, self._busy_until)
        self._granted = until - now
        return until

    def sent(self, size: int = 0) -> None:
        """Note that a message was sent. If it is large, no answer can come before the other end has received it."""
        self._waiting_since = time.perf_counter()
        if self.most and size:
            self._busy_until = self._waiting_since + self.most + size / LARGE_BYTES_PER_SECOND

    def woken(self) -> None:
        """Note that the next message was announced by a doorbell, not found by polling."""
        self._was_woken = True

    def arrived(self) -> None:
        """Note that a message has arrived."""
        now = time.perf_counter()
        if not self._was_woken:
            self._budget += SAVED
        elif now - self._waiting_since <= 2 * self.most:  # half of it for the waking
            self._budget = max(self._budget, self.most)
        self._was_woken = False
        self._waiting_since = now

    def missed(self) -> None:
        """Note that polling has ended without a message."""
        self._budget -= self._granted

    def polled(self, before: float, now: float) -> None:
        """Note the times of two consecutive polls that found nothing."""
        if now - before > PREEMPTED:
            self._paused_until = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    @property
    def crowded(self) -> bool:
        """True if other processes recently held the core for longer than a message takes."""
        return time.perf_counter() < self._paused_until

    def give_way(self) -> bool:
        """Yield the core to other processes; return whether it came back soon enough to keep polling."""
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
        """Shorten the next pause after a period of uninterrupted polling."""
        self._pause = max(self._pause / 2, _FIRST_PAUSE)

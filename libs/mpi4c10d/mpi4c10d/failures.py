"""Failures that ranks report to each other, by messages on a communicator of their own."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from mpi4py import MPI

from mpi4c10d.recorder import Recorder

#: Seconds between two looks for the processes of this host's ranks.
_LOOK_SECONDS = 0.5
_MOST_BYTES, _MOST_CHARACTERS = 8192, 1000  # JSON writes a character in up to 6 bytes


class Failures:
    """Reports of the ranks of the world: ranks that leave with an error, collectives that ranks gave up.

    Args:
        communicator: one whose messages only this class sends and receives.

    Attributes:
        rank: of this process in the world.
        recorder: of its last calls.
    """

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self.rank = communicator.Get_rank()
        self.recorder = Recorder()
        self._lock = threading.Lock()
        self._sent: list[Any] = []
        self._gone: dict[int, str] = {}
        self._given_up: dict[str, tuple[int, str]] = {}
        self._stopped = False
        self._processes: dict[int, int] = {}
        self._suspected: dict[int, float] = {}
        self._looked = 0.0
        self._listen()

    def _listen(self) -> None:
        self._buffer = bytearray(_MOST_BYTES)
        self._request = self._communicator.Irecv([self._buffer, MPI.BYTE])

    def watch(self, processes: dict[int, int]) -> None:
        """Look for the processes of these ranks from time to time, except those that are not visible from here."""
        self._processes = {rank: process for rank, process in processes.items() if _runs(process)}

    @property
    def any(self) -> bool:
        """True if a rank, perhaps this one, has reported a failure."""
        self._look()
        return bool(self._gone or self._given_up or self._sent)

    def of(self, group: Any, number: int | None) -> str | None:
        """Return why an operation of the group that is not complete will never be, or None.

        Args:
            group: has ``key`` and ``ranks`` (of the world).
            number: of a collective; None for point-to-point.
        """
        self._look()
        self._look_for_processes()
        reason = self.given_up(group, number, look=False) if number is not None else None
        return reason or next((text for rank, text in self._gone.items() if rank in group.ranks), None)

    def given_up(self, group: Any, number: int, *, look: bool = True) -> str | None:
        """Return why another rank gave up this collective or an earlier one of the group, or None."""
        if look:
            self._look()
        found = self._given_up.get(group.key)
        return found[1] if found is not None and found[0] <= number else None

    def broken(self, group: Any) -> str | None:
        """Return why the group cannot be used any more, or None."""
        found = self._given_up.get(group.key)
        return found[1] if found is not None else None

    def give_up(self, group: Any, number: int, reason: str) -> None:
        """Report that this rank stops waiting for a collective; the group cannot be used after that."""
        if group.key in self._given_up:
            return
        me = self.rank
        text = f"rank {me} gave up {reason}"
        self._given_up[group.key] = (number, text)
        others = [rank for rank in group.ranks if rank != me]
        self._send({"group": group.key, "number": number, "text": text}, others)

    def leave(self, text: str) -> None:
        """Report to all ranks that this one ends with an error."""
        me, size = self.rank, self._communicator.Get_size()
        self._send({"rank": me, "text": f"rank {me} {text}"}, [rank for rank in range(size) if rank != me])

    def wait_for_others(self, seconds: float) -> None:
        """Wait until every other rank has left too, at most that long."""
        deadline = time.monotonic() + seconds
        while len(self._gone) < self._communicator.Get_size() - 1 and time.monotonic() < deadline:
            self._look()
            time.sleep(0.002)

    def stop(self) -> None:
        """Cancel the receive that waits for reports."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._request.Cancel()
                self._request.Wait()

    def _send(self, report: dict[str, Any], ranks: list[int]) -> None:
        message = json.dumps(report | {"text": report["text"][:_MOST_CHARACTERS]}).encode()
        with self._lock:
            self._sent += [(self._communicator.Isend([message, MPI.BYTE], rank), message) for rank in ranks]

    def _look_for_processes(self) -> None:
        """Report the ranks whose processes have ended.

        What such a rank sent before may still arrive: it is reported at the second look, after further polls.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        for rank in [rank for rank, process in self._processes.items() if not _runs(process)]:
            if now - self._suspected.setdefault(rank, now) >= _LOOK_SECONDS:
                self._gone.setdefault(rank, f"rank {rank} has ended (process {self._processes.pop(rank)} on this host)")

    def _look(self) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            status = MPI.Status()
            while not self._stopped and self._request.Test(status):
                report = json.loads(bytes(self._buffer[: status.Get_count(MPI.BYTE)]))
                self._listen()
                self.recorder.dump(self.rank)
                if "group" in report:
                    self._given_up.setdefault(report["group"], (report["number"], report["text"]))
                else:
                    self._gone.setdefault(report["rank"], report["text"])
        finally:
            self._lock.release()


def _runs(process: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"

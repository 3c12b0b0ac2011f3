"""The transport's counters for dashboards and tests, one object per process."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Totals since the process started, over all engines of the process.

    Bytes are those of messages as `distributed` sees them, frames without this library's headers.
    """

    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    mpi_bytes_sent: int = 0
    mpi_bytes_received: int = 0
    socket_bytes_sent: int = 0
    socket_bytes_received: int = 0
    envelopes_sent: int = 0  # MPI messages with small messages and control records
    envelopes_received: int = 0
    large_transfers_sent: int = 0
    large_transfers_received: int = 0
    direct_bytes_received: int = 0  # part of mpi_bytes_received: read directly from the memory of another rank
    transfers_helped: int = 0  # large messages that this end, the sender, helped to copy
    wakeups_sent: int = 0  # doorbells rung
    wakeups_received: int = 0
    spins: int = 0  # polls that found nothing
    sleeps: int = 0
    rescues: int = 0  # messages found by a scheduled look, without a doorbell within `peer.SAFETY` after it
    connections_opened: int = 0
    connections_closed: int = 0
    handshakes_refused: int = 0
    staged_gpu_bytes: int = 0  # bytes of GPU frames copied through host memory

    def as_dict(self) -> dict[str, int]:
        """Return the totals by name."""
        return asdict(self)


counters = Counters()

"""What the transport counts, for dashboards and tests: one object per process."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Totals since the process started. Every engine of the process adds to the same object.

    Bytes are those of messages as `distributed` sees them (frames, without our headers).
    """

    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    mpi_bytes_sent: int = 0
    mpi_bytes_received: int = 0
    socket_bytes_sent: int = 0
    socket_bytes_received: int = 0
    envelopes_sent: int = 0  # MPI messages that carried small messages and control records
    envelopes_received: int = 0
    large_transfers_sent: int = 0
    large_transfers_received: int = 0
    direct_bytes_received: int = 0  # of mpi_bytes_received, those that came straight from the memory of another rank
    transfers_helped: int = 0  # large ones of which this end, the sender, has copied a part
    wakeups_sent: int = 0  # doorbells rung
    wakeups_received: int = 0
    spins: int = 0  # polls that found nothing
    sleeps: int = 0
    rescues: int = 0  # messages that an own look found and that had no doorbell for `peer.SAFETY` after it
    connections_opened: int = 0
    connections_closed: int = 0
    handshakes_refused: int = 0
    staged_gpu_bytes: int = 0  # bytes of GPU frames that went through host memory

    def as_dict(self) -> dict[str, int]:
        """The totals by name."""
        return asdict(self)


counters = Counters()

"""Processors that a node reports."""

from __future__ import annotations

from dataclasses import dataclass

from hidl_cli.errors import UsageError

MAX_CPUS = 1024  # of cpu_set_t, and of affinity.c


@dataclass(frozen=True)
class Processors:
    """The processors of a node: ``cores`` physical ones in all, spread over ``sockets``.

    They are numbered as Linux numbers them on most machines: the first threads of all cores, socket by socket, then
    the second threads in the same order. Each socket is a NUMA node. Raises ``UsageError`` for what cannot be claimed.
    """

    cores: int
    sockets: int = 1
    threads_per_core: int = 1
    model: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.sockets <= self.cores or self.threads_per_core < 1:
            raise UsageError(
                f"invalid node: {self.cores} cores in {self.sockets} sockets, {self.threads_per_core} threads per core"
            )
        if self.cpus > MAX_CPUS:
            raise UsageError(f"invalid node: {self.cpus} logical processors; must be at most {MAX_CPUS}")

    @property
    def cpus(self) -> int:
        """Logical processors."""
        return self.cores * self.threads_per_core

    @property
    def largest_socket(self) -> int:
        """Cores of the first socket; if they do not divide evenly, the last sockets have one less."""
        return -(-self.cores // self.sockets)

    def core(self, cpu: int) -> int:
        """The core of a logical processor, counted over all sockets."""
        return cpu % self.cores

    def socket(self, cpu: int) -> int:
        """The socket of a logical processor."""
        return self._socket_of_core[self.core(cpu)]

    def core_in_socket(self, cpu: int) -> int:
        """The core of a logical processor, counted in its socket."""
        core = self.core(cpu)
        return core - self._socket_of_core.index(self._socket_of_core[core])

    @property
    def _socket_of_core(self) -> tuple[int, ...]:
        small, larger = divmod(self.cores, self.sockets)
        return tuple(socket for socket in range(self.sockets) for _ in range(small + (1 if socket < larger else 0)))

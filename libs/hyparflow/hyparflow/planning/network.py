"""Messages and allreduces over a network: latency and bandwidth (alpha-beta model), rails, shared links."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Algorithm = Literal["ring", "recursive-doubling", "rabenseifner", "hierarchical", "best"]


@dataclass(frozen=True)
class Network:
    """The performance of a machine's communication. Times are in seconds, rates in bytes per second.

    Between nodes, a message of b bytes takes `latency` + b / `bandwidth` (one rail); within a node, `local_latency` + b
    / `local_bandwidth`. `rails` is the number of adapters per node that work in parallel; ranks of a node that send at
    the same time share them. `reduce_bandwidth` is the rate at which one rank adds vectors.
    """

    latency: float = 2e-6
    bandwidth: float = 12.5e9  # 100 Gb/s: InfiniBand EDR, Omni-Path, HDR100
    rails: int = 1
    local_latency: float = 1e-6
    local_bandwidth: float = 5e9
    message_seconds: float = 20e-6  # cost of a message for its sender and for its receiver
    reduce_bandwidth: float = 8e9

    def message(self, size: float, *, local: bool = True, sharing: int = 1) -> float:
        """Return the seconds from the start of a send until the message arrives.

        Args:
            size: Bytes of the message.
            local: Both ranks are on the same node (default: True).
            sharing: Ranks of the node that send at the same time (default: 1).
        """
        if local:
            return self.local_latency + size / self.local_bandwidth
        return self.latency + size * max(1.0, sharing / self.rails) / self.bandwidth

    def shared(self, ranks: float) -> Network:
        """Return the network as seen by one rank if `ranks` of its node use the rails at once."""
        return replace(self, bandwidth=self.bandwidth * min(1.0, self.rails / ranks), rails=1)

    def allreduce(self, size: float, nodes: int, ranks_per_node: int = 1, algorithm: Algorithm = "best") -> float:
        """Return the seconds of an allreduce that all ranks start at once.

        Sources of the formulas: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
        MPICH" (IJHPCA 2005): ring 2(n-1) steps of size/n; recursive doubling log2(n) steps of the whole vector;
        Rabenseifner 2 log2(n) steps that move 2(n-1)/n of it. Hierarchical: over shared memory to a leader, the fastest
        of the others between the leaders, and back.

        Args:
            size: Bytes of the vector.
            nodes: Nodes with members of this allreduce.
            ranks_per_node: Members of this allreduce on one node (default: 1).
            algorithm: The algorithm; ``best`` (default) selects the fastest, like the tuning tables of MPI libraries.
        """
        ranks = nodes * ranks_per_node
        if ranks <= 1 or size <= 0:
            return 0.0
        if algorithm == "hierarchical":
            return self._hierarchical(size, nodes, ranks_per_node)
        flat = {
            "ring": self._ring(size, ranks, nodes),
            "recursive-doubling": self._doubling(size, ranks, nodes),
            "rabenseifner": self._rabenseifner(size, ranks, nodes),
        }
        if algorithm != "best":
            return flat[algorithm]
        return min(*flat.values(), self._hierarchical(size, nodes, ranks_per_node))

    def _link(self, ranks: int, nodes: int) -> tuple[float, float]:
        """Return seconds per message and per byte of a step on the slowest link, which the node's members share."""
        if nodes == 1:
            return self.local_latency, 1 / self.local_bandwidth
        sharing = max(1.0, ranks / nodes / self.rails)
        return self.latency, sharing / self.bandwidth

    def _ring(self, size: float, ranks: int, nodes: int) -> float:
        latency, _ = self._link(ranks, nodes)
        # In a ring, only one member of a node sends to another node.
        byte = 1 / self.local_bandwidth if nodes == 1 else max(1 / self.bandwidth, 1 / self.local_bandwidth)
        share = (ranks - 1) / ranks
        return 2 * (ranks - 1) * latency + 2 * share * size * byte + share * size / self.reduce_bandwidth

    def _doubling(self, size: float, ranks: int, nodes: int) -> float:
        latency, byte = self._link(ranks, nodes)
        # A number of ranks that is not a power of two needs one more step on either side.
        steps = math.floor(math.log2(ranks)) + (0 if ranks & (ranks - 1) == 0 else 2)
        return steps * (latency + size * byte + size / self.reduce_bandwidth)

    def _rabenseifner(self, size: float, ranks: int, nodes: int) -> float:
        latency, byte = self._link(ranks, nodes)
        share = (ranks - 1) / ranks
        steps = 2 * math.floor(math.log2(ranks))
        extra = 0.0 if ranks & (ranks - 1) == 0 else 2 * latency + 2 * size * byte + size / self.reduce_bandwidth
        return steps * latency + 2 * share * size * byte + share * size / self.reduce_bandwidth + extra

    def _hierarchical(self, size: float, nodes: int, ranks_per_node: int) -> float:
        within = 0.0
        if ranks_per_node > 1:
            steps = math.ceil(math.log2(ranks_per_node))
            within = steps * (2 * (self.local_latency + size / self.local_bandwidth) + size / self.reduce_bandwidth)
        if nodes == 1:
            return within
        return within + min(
            self._ring(size, nodes, nodes), self._doubling(size, nodes, nodes), self._rabenseifner(size, nodes, nodes)
        )


#: One machine each. Source of the interconnects: the sites' user guides (see the documentation).
NETWORKS = {
    "shared-memory": Network(),
    "omni-path": Network(latency=1.5e-6, bandwidth=12.5e9, local_bandwidth=8e9, message_seconds=5e-6),
    "infiniband-edr": Network(latency=1.2e-6, bandwidth=12.1e9, local_bandwidth=8e9, message_seconds=5e-6),
    "infiniband-hdr100": Network(latency=1.1e-6, bandwidth=12.3e9, local_bandwidth=8e9, message_seconds=5e-6),
    "infiniband-hdr": Network(latency=1.0e-6, bandwidth=24.6e9, local_bandwidth=8e9, message_seconds=5e-6),
    "ethernet-10g": Network(latency=30e-6, bandwidth=1.2e9, local_bandwidth=5e9),
}

"""Simulation of a plan on a cluster: messages between nodes, allreduces, and stragglers.

Some nodes are slow now and then, and a step ends with the slowest of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.errors import PlanError
from hyparflow.planning.network import Algorithm, Network
from hyparflow.planning.prediction import UPDATE_BANDWIDTH, Timeline, owners, timeline, traffic

if TYPE_CHECKING:
    from hyparflow.planning.plan import Plan


@dataclass(frozen=True)
class Stragglers:
    """The variation of one node's step time, as fractions of it.

    `jitter` is the standard deviation of a normal variation of every node in every step. With `probability`, a node is
    also hit by a rare event (kernel, file system, hot processor) that takes `delay` of a step.
    """

    jitter: float = 0.0
    probability: float = 0.0
    delay: float = 0.0

    def expected_maximum(self, nodes: int) -> float:
        """Return the expected time of the slowest of `nodes` independent nodes, in units of an undisturbed step.

        This is the integral of 1 - F(x)^nodes, where F is the distribution of one node's time.
        """
        rare = self.probability * self.delay
        if self.jitter <= 0:
            return 1.0 + self.delay * (1 - (1 - self.probability) ** nodes) if rare else 1.0
        low, high = 1 - 12 * self.jitter, 1 + self.delay + 12 * self.jitter
        x = np.linspace(low, high, 20_001)
        one = (1 - self.probability) * _normal((x - 1) / self.jitter)
        one += self.probability * _normal((x - 1 - self.delay) / self.jitter)
        beyond = 1 - one**nodes
        step = (high - low) / (len(x) - 1)
        return float(low + step * (beyond.sum() - (beyond[0] + beyond[-1]) / 2))


def _normal(x: Any) -> Any:
    """Return the normal distribution function, computed by formula 7.1.26 of Abramowitz and Stegun."""
    z = np.abs(x) / np.sqrt(2.0)
    t = 1 / (1 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    upper = series * np.exp(-z * z) / 2
    return np.where(x < 0, upper, 1 - upper)


@dataclass(frozen=True)
class Cluster:
    """A cluster of identical nodes. World rank r is on node r // ranks_per_node."""

    ranks_per_node: int
    network: Network = field(default_factory=Network)
    stragglers: Stragglers = field(default_factory=Stragglers)
    algorithm: Algorithm = "best"

    def nodes(self, ranks: int) -> int:
        """Return the number of nodes for a number of ranks."""
        return -(-ranks // self.ranks_per_node)


@dataclass(frozen=True)
class Simulation:
    """One simulated step.

    `step_seconds` is the sum of the other three: the pipeline with its bubble and messages, the part of the gradients'
    sum and the update that does not overlap with it, and the wait for the slowest node.
    """

    step_seconds: float
    pipeline_seconds: float
    tail_seconds: float
    straggler_seconds: float
    busy_seconds: tuple[float, ...]  # computing, per partition
    samples: int

    @property
    def samples_per_second(self) -> float:
        """The rate over all replicas."""
        return self.samples / self.step_seconds


def simulate(plan: Plan, cluster: Cluster, *, overlap: bool = True) -> Simulation:
    """Simulate a step of a plan on a cluster.

    All replicas are placed on their nodes in the same way, so one replica's timeline is valid for all.

    Args:
        plan: A plan; the costs of its stages are those of a rank of the cluster.
        cluster: The cluster.
        overlap: Start the sum of a partition after its last backward pass (default), not after that of all.

    Raises:
        PlanError: Replicas would be placed on nodes in different ways.
    """
    partitions, per_node = plan.partitions, cluster.ranks_per_node
    if partitions % per_node and per_node % partitions:
        raise PlanError(
            f"{partitions} partitions and {per_node} ranks per node: one must be a multiple of the other, so that all "
            f"replicas are placed on nodes in the same way"
        )
    spans = _timeline(plan, cluster)
    ends, tails = [], []
    for partition, done in enumerate(spans.partitions):
        ends.append(done[-1].end)
        tails.append(_tail(plan, cluster, partition))
    pipeline = max(ends)
    together = max(end + tail for end, tail in zip(ends, tails, strict=True)) if overlap else pipeline + max(tails)
    slowest = cluster.stragglers.expected_maximum(cluster.nodes(plan.ranks))
    return Simulation(
        step_seconds=together * slowest,
        pipeline_seconds=pipeline,
        tail_seconds=together - pipeline,
        straggler_seconds=together * (slowest - 1),
        busy_seconds=spans.busy,
        samples=plan.batch_size,
    )


def _timeline(plan: Plan, cluster: Cluster) -> Timeline:
    """Return the pipeline of one replica, with each message over memory or the network."""
    network, per_node = cluster.network, cluster.ranks_per_node
    pairs = traffic(plan.stages, plan.tensors)

    def remote(producer: int, consumer: int) -> bool:
        return plan.owner(producer) // per_node != plan.owner(consumer) // per_node

    leaving = Counter(plan.owner(producer) // per_node for producer, consumer in pairs if remote(producer, consumer))
    sharing = max(1, *leaving.values()) if leaving else 1
    messages: Counter[int] = Counter()
    transfers = {}
    for (producer, consumer), (count, size) in pairs.items():
        messages[producer] += count
        messages[consumer] += count
        far = remote(producer, consumer)
        transfers[producer, consumer] = network.message(plan.micro_batch_size * size, local=not far, sharing=sharing)
    own = [messages[stage.index] * network.message_seconds for stage in plan.stages]
    forward = [stage.forward_seconds + own[stage.index] for stage in plan.stages]
    backward = [stage.backward_seconds + own[stage.index] for stage in plan.stages]
    return timeline(plan.actions, forward, backward, transfers)


def _tail(plan: Plan, cluster: Cluster, partition: int) -> float:
    """Return the time of the sum of a partition's gradients, with those of the node's other ranks, and the update."""
    actions, per_node = plan.actions[partition], cluster.ranks_per_node
    size = sum(plan.stages[stage].parameter_bytes for stage in {action.stage for action in actions})
    summing = owners(actions, plan.partitions)
    apart = len({each // per_node for each in summing})  # number of nodes with the owners within one replica
    together = len(summing) // apart
    alike = min(max(1, per_node // plan.partitions), plan.replicas)  # replicas on a node
    nodes = -(-plan.replicas // alike) * apart
    # All sums with members on a node run at the same time.
    sums = min(per_node, plan.partitions) / together
    network = cluster.network.shared(max(1, sums)) if nodes > 1 else cluster.network
    return network.allreduce(size, nodes, alike * together, cluster.algorithm) + size / UPDATE_BANDWIDTH

"""A plan on a cluster: which messages leave a node, what the sums cost there, what the slowest node costs.

Nodes that are slow now and then: a step ends with the slowest of them.
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
    """How the time of one node's step varies, as shares of it.

    `jitter` is the standard deviation of a normal variation that every node has in every step. With `probability` a
    node is hit besides by something rare (the kernel, a file system, a hot processor) that takes `delay` of a step.
    """

    jitter: float = 0.0
    probability: float = 0.0
    delay: float = 0.0

    def expected_maximum(self, nodes: int) -> float:
        """The expected time of the slowest of `nodes` independent nodes, in units of an undisturbed step.

        The integral of 1 - F(x)^nodes, F the distribution of one node's time.
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
    """The normal distribution function, by the complementary error function of Abramowitz and Stegun 7.1.26."""
    z = np.abs(x) / np.sqrt(2.0)
    t = 1 / (1 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    upper = series * np.exp(-z * z) / 2
    return np.where(x < 0, upper, 1 - upper)


@dataclass(frozen=True)
class Cluster:
    """Nodes alike. World rank r lives on node r // ranks_per_node."""

    ranks_per_node: int
    network: Network = field(default_factory=Network)
    stragglers: Stragglers = field(default_factory=Stragglers)
    algorithm: Algorithm = "best"

    def nodes(self, ranks: int) -> int:
        """The nodes that so many ranks take."""
        return -(-ranks // self.ranks_per_node)


@dataclass(frozen=True)
class Simulation:
    """One step. `step_seconds` is the sum of the three: what the pipeline takes with its bubble and messages, what of
    the sums of gradients and the update nothing hides, and the wait for the slowest node."""

    step_seconds: float
    pipeline_seconds: float
    tail_seconds: float
    straggler_seconds: float
    busy_seconds: tuple[float, ...]  # computing, per partition
    samples: int

    @property
    def samples_per_second(self) -> float:
        """Samples of all replicas."""
        return self.samples / self.step_seconds


def simulate(plan: Plan, cluster: Cluster, *, overlap: bool = True) -> Simulation:
    """A step of a plan on a cluster.

    All replicas lie alike on their nodes, so one replica's timeline stands for all.

    :param plan: its stages' costs are those of one of the cluster's ranks.
    :param overlap: the sums of a partition begin when its last backward pass has ended; else when all have.
    :raises PlanError: if replicas lie on the nodes in ways that differ.
    """
    partitions, per_node = plan.partitions, cluster.ranks_per_node
    if partitions % per_node and per_node % partitions:
        raise PlanError(
            f"{partitions} partitions and {per_node} ranks per node: one must be a multiple of the other, so that all "
            f"replicas lie on the nodes alike"
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
    """The pipeline of one replica, each message by memory or by the network."""
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
    """The update, and before it the sum of a partition's gradients, while the node's other ranks have theirs."""
    actions, per_node = plan.actions[partition], cluster.ranks_per_node
    size = sum(plan.stages[stage].parameter_bytes for stage in {action.stage for action in actions})
    summing = owners(actions, plan.partitions)
    apart = len({each // per_node for each in summing})  # nodes that hold those of one replica
    together = len(summing) // apart
    alike = min(max(1, per_node // plan.partitions), plan.replicas)  # replicas on a node
    nodes = -(-plan.replicas // alike) * apart
    # All sums that a node's partitions have a part in go on at the same time.
    sums = min(per_node, plan.partitions) / together
    network = cluster.network.shared(max(1, sums)) if nodes > 1 else cluster.network
    return network.allreduce(size, nodes, alike * together, cluster.algorithm) + size / UPDATE_BANDWIDTH

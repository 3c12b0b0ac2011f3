"""Estimates at any scale, from a model, partitions x replicas and a cluster: step time, rate and efficiency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hyparflow.errors import PlanError
from hyparflow.planning.network import NETWORKS, Network
from hyparflow.planning.plan import Plan
from hyparflow.planning.planner import plan
from hyparflow.simulate.library import load
from hyparflow.simulate.simulation import Cluster, Simulation, Stragglers, simulate

#: One in 10,000 steps of a node takes twice as long. This is the only parameter that is fitted to published results,
#: see docs/explanation/hyparflow-simulator.md; they determine only probability * delay.
STRAGGLERS = Stragglers(probability=1e-4, delay=1.0)


@dataclass(frozen=True)
class Estimate:
    """A training at scale, relative to the same training on one node (or as many as one replica needs)."""

    step_seconds: float
    samples_per_second: float
    efficiency: float  # rate / (nodes / baseline nodes * the baseline's rate)
    speedup: float  # rate / the baseline's rate
    nodes: int
    baseline_nodes: int
    partitions: int
    replicas: int
    micro_batches: int
    batch_size: int
    bubble: float  # fraction of the step in which the ranks wait within the pipeline
    tail_seconds: float
    straggler_seconds: float


def estimate(
    model: str | Path | tuple[Any, Any],
    *,
    partitions: int,
    nodes: int,
    ranks_per_node: int,
    replica_batch: int,
    replicas: int | None = None,
    micro_batches: int | Literal["auto"] = "auto",
    schedule: str = "1f1b",
    chunks: int = 1,
    network: str | Network = "infiniband-hdr100",
    stragglers: Stragglers = STRAGGLERS,
    core_speed: float = 1.0,
    overlap: bool = True,
) -> Estimate:
    """Estimate a training on a number of nodes (weak scaling: the batch grows with the replicas).

    Args:
        model: A name (`resnet1001v2`), a file of `hyparflow costs`, or (graph, costs).
        partitions: Ranks that share one model.
        nodes: Nodes of the cluster.
        ranks_per_node: Ranks on each node.
        replica_batch: Samples of one replica's step.
        replicas: Copies of the model (default: as many as fit on the nodes).
        micro_batches: Micro-batches of a replica's step, or ``auto``.
        schedule: The schedule (default: ``1f1b``).
        chunks: Stages per partition (default: 1).
        network: A `Network`, or the name of one of `NETWORKS`.
        stragglers: The variation of nodes (default: `STRAGGLERS`).
        core_speed: Speed of a core of the cluster relative to the measured one (default: 1).
        overlap: Sum the gradients of a partition while others still compute (default: True).

    Raises:
        PlanError: The request is invalid, or the ranks do not fit on the nodes.
    """
    if isinstance(network, str):
        if network not in NETWORKS:
            raise PlanError(f"there is no network {network!r}; there are {', '.join(NETWORKS)}")
        network = NETWORKS[network]
    cluster = Cluster(ranks_per_node, network, stragglers)
    replicas = nodes * ranks_per_node // partitions if replicas is None else replicas
    if replicas < 1 or partitions * replicas > nodes * ranks_per_node:
        raise PlanError(
            f"{partitions} partitions x {max(replicas, 1)} replicas do not fit on {nodes} nodes of "
            f"{ranks_per_node} ranks"
        )
    graph, costs = load(model) if isinstance(model, str | Path) else model
    if core_speed != 1.0:
        slower = 1 / core_speed
        costs = replace(costs.scaled(slower, slower, costs.source), action_seconds=costs.action_seconds * slower)
    one = plan(
        graph, partitions=partitions, batch_size=replica_batch, micro_batches=micro_batches, schedule=schedule,
        chunks=chunks, recompute=False, costs=costs, network=network,
    )  # fmt: skip
    few = max(1, ranks_per_node // partitions)
    baseline = simulate(replace(one, replicas=min(few, replicas)), cluster, overlap=overlap)
    whole = simulate(replace(one, replicas=replicas), cluster, overlap=overlap)
    return _compared(whole, baseline, replace(one, replicas=replicas), nodes, cluster.nodes(partitions * few))


def _compared(whole: Simulation, baseline: Simulation, one: Plan, nodes: int, baseline_nodes: int) -> Estimate:
    speedup = whole.samples_per_second / baseline.samples_per_second
    busy = sum(whole.busy_seconds) / len(whole.busy_seconds)
    return Estimate(
        step_seconds=whole.step_seconds,
        samples_per_second=whole.samples_per_second,
        efficiency=speedup * baseline_nodes / nodes,
        speedup=speedup,
        nodes=nodes,
        baseline_nodes=baseline_nodes,
        partitions=one.partitions,
        replicas=one.replicas,
        micro_batches=one.micro_batches,
        batch_size=one.batch_size,
        bubble=1 - busy / whole.pipeline_seconds,
        tail_seconds=whole.tail_seconds,
        straggler_seconds=whole.straggler_seconds,
    )

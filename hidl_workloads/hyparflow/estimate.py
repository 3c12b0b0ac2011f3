"""Tell how fast a program of this package will be on any number of nodes: it is planned and simulated, not run.

::

    HIDL_PLACEMENTS='{"interconnect": "...", "placements": [...]}' HIDL_FORECAST=FILE \\
        python -m hidl_workloads.hyparflow.estimate hidl_workloads.hyparflow.resnet --mode=data ...

The document in FILE is ``hidl.forecast/1``. One process does it, without MPI; the model is built, and with
``costs=measured`` each of its different nodes runs once on the machine at hand.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hidl_workloads import arguments
from hidl_workloads.hyparflow.layout import divide_ranks
from hidl_workloads.hyparflow.networks import network_of
from hidl_workloads.metrics import write_json
from hidl_workloads.parameters import Hyparflow

SCHEMA = "hidl.forecast/1"

#: A rank with t threads is t**_THREADS times as fast as with one: 1.59 times with two (ResNet-56, batch 256).
_THREADS = 0.67


def main(words: Sequence[str]) -> None:
    """``words``: the program's module, and its arguments. Ends with a message where these are wrong."""
    asked = json.loads(os.environ["HIDL_PLACEMENTS"])
    program = importlib.import_module(words[0])
    try:
        parameters = arguments.parse(program.Parameters, words[1:])
    except ValueError as error:
        sys.exit(str(error))
    write_json(Path(os.environ["HIDL_FORECAST"]), forecast(program, parameters, asked))


def forecast(program: Any, parameters: Hyparflow, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The document for ``asked``: placements (nodes, ranks, ...), and the network in the words of the site's file."""
    graph, costs = _model(program, parameters)
    network, said = network_of(asked["interconnect"])
    threads = asked["placements"][0]["threads_per_rank"]
    return {
        "schema": SCHEMA,
        "expected": [_expected(graph, costs, parameters, network, placement) for placement in asked["placements"]],
        "assumptions": {
            "model": f"{graph.name}, {sum(node.parameters for node in graph.nodes):,} parameters",
            "compute": f"costs {costs.source} for one core of this machine; the nodes' cores are assumed to be as fast",
            "threads": f"{threads} per rank, together {_speed(threads):.3g} times as fast as one",
            "network": said,
            "efficiency": "relative to one node, or to as many as one replica needs; each replica has its own batch",
        },
        "known_errors": list(_KNOWN_ERRORS),
    }


#: See docs/explanation/hyparflow-simulator.md.
_KNOWN_ERRORS = (
    "efficiency: within 1.4 % of HyPar-Flow's published ResNet-1001 on 256 and 512 nodes of Frontera, but 15 % too "
    "high on 128 nodes of Stampede2",
    "seconds: more than 2 threads are extrapolated, a node's ranks share its memory and clock, and processors differ",
)


def _model(program: Any, parameters: Hyparflow) -> tuple[Any, Any]:
    """The graph and its costs on a processor."""
    import hyparflow
    import tensorflow as tf
    from hyparflow.planning.costs import estimated
    from hyparflow.planning.measure import LARGEST, measured

    from hidl_workloads.hyparflow.model import build_model

    tf.config.set_visible_devices([], "GPU")
    model = build_model(parameters, lambda: program.make(parameters))
    graph = hyparflow.graph_of(model)
    if parameters.costs == "estimated":
        return graph, estimated(graph)
    return graph, measured(model, graph, (1, LARGEST))


def _expected(
    graph: Any, costs: Any, parameters: Hyparflow, network: Any, placement: Mapping[str, Any]
) -> dict[str, Any]:
    """Figures for one placement, or the problem with it."""
    import hyparflow
    from hyparflow.simulate import estimate

    if parameters.spatial > 1:
        return {"problem": f"spatial={parameters.spatial}: trainings on parts of the images cannot be estimated"}
    try:
        partitions, replicas = divide_ranks(parameters, placement["ranks"])
        found = estimate(
            (graph, costs),
            partitions=partitions,
            replicas=replicas,
            nodes=placement["nodes"],
            ranks_per_node=placement["ranks_per_node"],
            replica_batch=parameters.batch,
            micro_batches=parameters.micro_batches or "auto",
            schedule=parameters.schedule,
            chunks=parameters.chunks,
            network=network,
            core_speed=_speed(placement["threads_per_rank"]),
        )
    except (ValueError, hyparflow.HyparflowError) as error:
        return {"problem": str(error)}
    figures = [
        ("images_per_second", found.samples_per_second, "images/s"),
        ("step_time", found.step_seconds, "s"),
        ("bubble", found.bubble, "share"),
    ]
    if parameters.mode != "model":  # a single replica cannot be compared with anything
        figures += [("efficiency", found.efficiency, "share"), ("speedup", found.speedup, "times")]
    return {"figures": [{"name": name, "value": value, "unit": unit} for name, value, unit in figures]}


def _speed(threads: int) -> float:
    """Return the speed of a rank of ``threads`` threads relative to one thread."""
    return float(threads**_THREADS)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Build the models and estimate one; write what they are as JSON: ``python builds_models.py FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hidl_workloads.hyparflow import resnet
from hidl_workloads.hyparflow.estimate import forecast
from hidl_workloads.hyparflow.model import build_model
from hidl_workloads.hyparflow.models.amoebanet import amoebanet
from hidl_workloads.hyparflow.models.resnet import resnet as make_resnet
from hidl_workloads.hyparflow.models.vgg import vgg
from hidl_workloads.parameters import Hyparflow

MAKERS = {
    "resnet20v1": lambda: make_resnet(1, 20),
    "resnet56v1": lambda: make_resnet(1, 56),
    "resnet20v2": lambda: make_resnet(2, 20),
    "vgg16": lambda: vgg(16),
    "amoebanet3x8": lambda: amoebanet(3, 8),
}
PLACEMENTS = [{"nodes": nodes, "ranks_per_node": 2, "ranks": 2 * nodes, "threads_per_rank": 1} for nodes in (1, 8, 512)]


def described(model: Any) -> dict[str, Any]:
    """What the tests look at; the variables were never given memory."""
    import hyparflow

    graph = hyparflow.graph_of(model)
    return {
        "name": model.name,
        "parameters": model.count_params(),
        "output": list(model.output_shape),
        "dtype": model.output.dtype,
        "nodes": len(graph.nodes),
        "most_consumers": max(len(tensor.consumers) for tensor in graph.tensors),
        "in_memory": sum(variable._value is not None for variable in model.variables),
    }


def estimated(words: dict[str, Any]) -> dict[str, Any]:
    asked = {"interconnect": "InfiniBand HDR", "placements": PLACEMENTS}
    return forecast(resnet, resnet.Parameters(costs="estimated", **words), asked)


if __name__ == "__main__":
    document: dict[str, Any] = {name: described(build_model(Hyparflow(), make)) for name, make in MAKERS.items()}
    document["resnet20v1 in float64"] = described(build_model(Hyparflow(precision="float64"), MAKERS["resnet20v1"]))
    document["data"] = estimated({"mode": "data"})
    document["hybrid"] = estimated({"mode": "hybrid", "micro_batches": 8})
    document["model"] = estimated({"mode": "model"})
    Path(sys.argv[1]).write_text(json.dumps(document))

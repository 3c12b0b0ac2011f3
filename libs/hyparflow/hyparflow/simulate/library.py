"""Models for the simulator, by name with estimated costs, or from a file with measured costs; no framework is needed.

`hyparflow costs` writes the files: the graph without names and weights, and the costs of each different node.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hyparflow.errors import PlanError
from hyparflow.graph.types import Graph, Node, Tensor
from hyparflow.planning.costs import Costs, estimated
from hyparflow.simulate.models import NAMES, model

SCHEMA = "hyparflow.model/1"


def load(name: str | Path) -> tuple[Graph, Costs]:
    """Load a well-known model by its name (`hyparflow.simulate.models`), or a file of `hyparflow costs`.

    Raises:
        PlanError: There is no such model, or the file has other contents.
    """
    if (known := model(str(name))) is not None:
        return known, estimated(known)
    if not Path(name).is_file():
        raise PlanError(f"there is no model {str(name)!r}; known are {NAMES}; or use a file of `hyparflow costs`")
    text = Path(name).read_text(encoding="utf-8")
    try:
        document = json.loads(text)
        if document["schema"] != SCHEMA:
            raise PlanError(f"{name} does not have the schema {SCHEMA}")
        return _graph(document), _costs(document)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PlanError(f"{name} is not a model of hyparflow: {error}") from error


def dump(graph: Graph, costs: Costs, origin: str) -> str:
    """Return the document of a model, in which nodes of equal signature share one kind.

    Args:
        graph: The model.
        costs: Its costs.
        origin: Where and how the costs were measured.
    """
    kinds: dict[str, int] = {}
    described: list[dict[str, Any]] = []
    for node in graph.nodes:
        if node.signature in kinds:
            continue
        kinds[node.signature] = len(described)
        costs_of = (costs.forward_fixed, costs.forward_each, costs.backward_fixed, costs.backward_each)
        described.append(
            {
                "kind": node.kind,
                "parameters": node.parameters,
                "outputs": [
                    [list(graph.tensors[tensor].shape), graph.tensors[tensor].dtype] for tensor in node.outputs
                ],
                "seconds": [float(f"{values[node.index]:.4g}") for values in costs_of],
            }
        )
    layers: dict[str, int] = {}
    document = {
        "schema": SCHEMA,
        "name": graph.name,
        "fingerprint": graph.fingerprint,
        "origin": origin,
        "source": costs.source,
        "action_seconds": float(f"{costs.action_seconds:.4g}"),
        "inputs": [[index, list(graph.tensors[index].shape), graph.tensors[index].dtype] for index in graph.inputs],
        "outputs": list(graph.outputs),
        "kinds": described,
    }
    # Each node has a kind, a layer, received tensors and produced tensors.
    nodes = [
        [kinds[node.signature], layers.setdefault(node.layer, len(layers)), list(node.inputs), list(node.outputs)]
        for node in graph.nodes
    ]
    head = json.dumps(document, indent=1).removesuffix("\n}")
    rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in nodes)
    return f'{head},\n "nodes": [\n  {rows}\n ]\n}}\n'


def _graph(document: dict[str, Any]) -> Graph:
    shapes = {index: (tuple(shape), dtype) for index, shape, dtype in document["inputs"]}
    producers: dict[int, int] = {}
    consumers: dict[int, list[int]] = {}
    nodes = []
    for index, (kind, layer, inputs, outputs) in enumerate(document["nodes"]):
        described = document["kinds"][kind]
        for tensor, (shape, dtype) in zip(outputs, described["outputs"], strict=True):
            shapes[tensor] = (tuple(shape), dtype)
            producers[tensor] = index
        for tensor in dict.fromkeys(inputs):
            consumers.setdefault(tensor, []).append(index)
        name = f"{described['kind'].lower()}_{index}"
        nodes.append(
            Node(index, name, described["kind"], f"layer_{layer}", tuple(inputs), tuple(outputs), (),
                 described["parameters"], str(kind))
        )  # fmt: skip
    tensors = tuple(
        Tensor(index, f"tensor_{index}", *shapes[index], producers.get(index), tuple(consumers.get(index, ())))
        for index in range(len(shapes))
    )
    inputs = tuple(index for index, _, _ in document["inputs"])
    return Graph(document["name"], tuple(nodes), tensors, inputs, tuple(document["outputs"]), document["fingerprint"])


def _costs(document: dict[str, Any]) -> Costs:
    rows = np.array([document["kinds"][kind]["seconds"] for kind, *_ in document["nodes"]])
    ahead, each_ahead, back, each_back = rows.T
    return Costs(ahead, each_ahead, back, each_back, document["action_seconds"], document["source"])

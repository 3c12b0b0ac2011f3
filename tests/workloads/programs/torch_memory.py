"""Compare the memory that a training step needs by ``training_memory`` with what autograd keeps for the whole batch."""

import json
import sys
from dataclasses import replace
from typing import Any

import torch

from hidl_workloads.gpt import GPT
from hidl_workloads.parameters import Gpt, Resnet50
from hidl_workloads.resnet50 import ResNet50
from hidl_workloads.training.model import Model, rank_batch
from hidl_workloads.training.torch_trainer import training_memory


def kept(network: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> int:
    own = {tensor.data_ptr() for tensor in (*network.parameters(), inputs)}
    storages: dict[int, Any] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: storages.setdefault(tensor.untyped_storage().data_ptr(), tensor), lambda tensor: tensor
    ):
        loss = torch.nn.functional.cross_entropy(network(inputs).flatten(0, -2), targets)
    del loss
    return sum(each.untyped_storage().nbytes() for at, each in storages.items() if at not in own)


found = {}
models: dict[str, tuple[type[Model], Any]] = {
    "resnet50": (ResNet50, Resnet50(batch=6, image_size=64)),
    "gpt": (GPT, Gpt(batch=6, layers=2, vocabulary=1000, context=32)),
}
for name, (kind, parameters) in models.items():
    model = kind(parameters)
    batch = rank_batch(model, 0, 0)
    network, inputs = model.torch_network(), model.torch_inputs(batch.inputs)
    targets = torch.from_numpy(batch.targets).flatten()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    state = torch.get_rng_state()
    estimated = training_memory(network, inputs, targets, parameters)
    untouched = all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    weights = sum(weight.numel() * 4 for weight in network.parameters())
    states = 2 if parameters.optimizer == "adam" else 0
    actual = weights * (2 + states) + inputs.numel() * inputs.element_size() + kept(network, inputs, targets)
    twice = replace(parameters, batch=2 * parameters.batch)
    larger = rank_batch(kind(twice), 0, 0)
    doubled = training_memory(
        network, model.torch_inputs(larger.inputs), torch.from_numpy(larger.targets).flatten(), twice
    )
    found[name] = {
        "doubled": doubled / estimated,
        "ratio": estimated / actual,
        "untouched": untouched and torch.equal(state, torch.get_rng_state()),
    }
print(json.dumps(found), file=sys.stdout)

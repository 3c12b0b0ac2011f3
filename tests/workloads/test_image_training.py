"""The networks for images: of the published sizes in both frameworks, and trained on two ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_workloads.image_training import NETWORKS, Images
from hidl_workloads.parameters import ImageTraining
from tests.tiers import deep
from tests.workloads import ranks

pytestmark = [pytest.mark.real, pytest.mark.exact]

#: Parameters of torchvision's networks (Inception-v3 without its auxiliary classifier) and of timm's mobilenetv1_100.
TORCH = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg16": 138_357_544,
    "inception3": 23_834_568,
    "mobilenet": 4_231_976,
}
#: Parameters of keras.applications', with the moving statistics of batch normalisation.
KERAS = {
    "resnet50": 25_636_712,
    "resnet101": 44_707_176,
    "resnet152": 60_419_944,
    "vgg16": 138_357_544,
    "inception3": 23_851_784,
    "mobilenet": 4_253_864,
}
COUNT_TORCH = """
import json, torch
from hidl_workloads import image_networks
found = {}
with torch.device("meta"):
    for name, side in %r:
        network = getattr(image_networks, name)()
        count = sum(weight.numel() for weight in network.parameters())
        found[name] = [count, *[list(network(torch.empty(2, 3, each, each)).shape) for each in side]]
print(json.dumps(found))
"""
COUNT_KERAS = """
import json
from hidl_workloads.image_training import Images
from hidl_workloads.parameters import ImageTraining
print(json.dumps({name: Images(ImageTraining(model=name)).keras_network().count_params() for name in %r}))
"""
WAYS = [
    ("mobilenet", "torch", 32),
    deep("resnet101", "torch", 32),
    deep("resnet152", "torch", 32),
    deep("vgg16", "torch", 32),
    deep("inception3", "torch", 75),
    deep("mobilenet", "tensorflow", 32),
    deep("inception3", "tensorflow", 75),
]


def train(prefix: Path, number: int, directory: Path, module: str, *words: str) -> dict[str, Any]:
    """Train on ``number`` ranks and return the metrics by name."""
    file = directory / f"{module}.json"
    program = ("-m", "hidl_workloads.world", f"hidl_workloads.{module}", "--batch=2", "--steps=2", "--warmup=1")
    completed = ranks.run(prefix, number, *program, "--learning_rate=1e-3", *words, HIDL_METRICS=str(file))
    assert completed.status == 0, completed.stderr
    return {each["name"]: each for each in json.loads(file.read_text())["metrics"]}


def test_the_networks_of_pytorch_have_the_published_sizes(stack_prefix: Callable[[str], Path]) -> None:
    sides = [(name, [network.smallest, network.side]) for name, network in NETWORKS.items()]
    counted = ranks.run(stack_prefix("pytorch"), 1, "-c", COUNT_TORCH % (sides,))
    assert counted.status == 0, counted.stderr
    assert json.loads(counted.stdout) == {name: [count, [2, 1000], [2, 1000]] for name, count in TORCH.items()}


@pytest.mark.deep
def test_the_networks_of_keras_have_the_published_sizes(stack_prefix: Callable[[str], Path]) -> None:
    counted = ranks.run(stack_prefix("tensorflow"), 1, "-c", COUNT_KERAS % (tuple(NETWORKS),))
    assert counted.status == 0, counted.stderr
    assert json.loads(counted.stdout.splitlines()[-1]) == KERAS


@pytest.mark.parametrize(("model", "framework", "side"), WAYS)
def test_a_network_trains_with_equal_weights_on_all_ranks(
    stack_prefix: Callable[[str], Path], tmp_path: Path, model: str, framework: str, side: int
) -> None:
    prefix = stack_prefix({"torch": "pytorch"}.get(framework, framework))
    words = (f"--model={model}", f"--framework={framework}", f"--image_size={side}")
    found = train(prefix, 2, tmp_path, "image_training", *words)
    assert found["weight_checksum"]["samples"] == 2 * [found["weight_checksum"]["value"]]
    assert found["images_per_second"]["value"] > 0
    assert 0 < found["loss"]["value"] < 15  # guessing one of 1000 classes: ln(1000) = 6.9


def test_resnet50_is_the_same_under_both_names(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    prefix = stack_prefix("pytorch")
    old = train(prefix, 1, tmp_path, "resnet50", "--image_size=32")
    new = train(prefix, 1, tmp_path, "image_training", "--model=resnet50", "--image_size=32")
    assert new["weight_checksum"]["value"] == old["weight_checksum"]["value"]
    assert new["loss"]["value"] == old["loss"]["value"]


@pytest.mark.parametrize(("model", "side"), [("inception3", 299), ("vgg16", 224)])
def test_images_have_the_published_size_by_default(model: Any, side: int) -> None:
    assert f"images of {side} x {side} pixels" in Images(ImageTraining(model=model)).describe_batch()


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="image_size must be at least 75 for inception3, not 74"):
        Images(ImageTraining(model="inception3", image_size=74))

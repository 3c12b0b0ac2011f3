"""The memory of a training step: predicted before the first one, refused if it is too much, and measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_workloads.parameters import Resnet50
from hidl_workloads.training import strategy
from tests.tiers import deep
from tests.workloads import ranks

#: A network whose weights and activations are much larger than what libraries need for themselves.
GPT = "gpt,layers=6,width=320,context=128,vocabulary=6000,heads=4,batch=8"
_UNLIMITED = "memory_limit=1000000"
ON_1 = (GPT, f"{GPT},recompute=always")
ON_2 = (
    f"{GPT},backend=mpi",
    f"{GPT},backend=mpi,recompute=always",
    f"{GPT},backend=mpi,parallel=fsdp",
    f"{GPT},backend=mpi,parallel=fsdp,recompute=always",
    f"{GPT},backend=mpi,parallel=tp",
    f"{GPT},backend=mpi,parallel=pp,batch=16",
)
OTHERS_ON_2 = (
    f"{GPT},optimizer=sgd,micro_batches=4",
    f"{GPT},backend=gloo,precision=bfloat16",
    f"{GPT},backend=mpi,parallel=pp,batch=16,recompute=always",
    "resnet50,image_size=96,batch=16,backend=mpi",
    "resnet50,image_size=96,batch=16,optimizer=adam",
)
ON_4 = (
    f"{GPT},backend=mpi,parallel=fsdp,recompute=always,micro_batches=4",
    f"{GPT},backend=mpi,parallel=hsdp,partitions=2",
    f"{GPT},backend=mpi,parallel=tp,partitions=2,batch=4",
    f"{GPT},backend=mpi,parallel=pp,partitions=2,batch=16",
)


@pytest.fixture
def measure(stack_prefix: Callable[[str], Path], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``measure(2, *ways)``: the memory of trainings on so many ranks; see programs/training_memory.py."""

    def run(number: int, *ways: str) -> dict[str, Any]:
        return ranks.results(stack_prefix("pytorch"), number, tmp_path, "training_memory", *ways, timeout=900)

    return run


@pytest.mark.parametrize(("number", "ways"), [deep(1, ON_1), (2, ON_2), deep(2, OTHERS_ON_2), deep(4, ON_4)])
def test_the_memory_of_a_step_is_what_was_predicted(
    measure: Callable[..., dict[str, Any]], number: int, ways: tuple[str, ...]
) -> None:
    found = measure(number, *(f"{way},{_UNLIMITED}" for way in ways))
    ratios = {
        way: [one / other for one, other in zip(memory["peak_memory"], memory["predicted_memory"], strict=True)]
        for way, memory in found.items()
    }
    assert len(ratios) == len(ways)
    assert all(len(each) == number for each in ratios.values())
    wrong = {way: each for way, each in ratios.items() if not all(0.8 <= ratio <= 1.25 for ratio in each)}
    assert not wrong, found


def test_shards_and_recomputation_fit_where_replicas_do_not(measure: Callable[..., dict[str, Any]]) -> None:
    ways = [f"{GPT},backend=mpi,parallel={way},recompute=never,{_UNLIMITED}" for way in ("ddp", "fsdp")]
    needs = [max(each["predicted_memory"]) for each in measure(2, *ways).values()]
    limit = int(needs[0]) - 1
    never = f"{GPT},backend=mpi,recompute=never,memory_limit={limit}"
    ways = [never, never.replace("never", "auto"), f"{never},parallel=fsdp", f"{never},memory_limit=10"]
    refused, recomputed, sharded, tiny = measure(2, *ways).values()
    assert refused["refused"] == (
        f"a step needs {needs[0]:.0f} MiB, but memory_limit is {limit} MiB: "
        "choose recompute=always, a smaller batch, more micro_batches or parallel=fsdp"
    )
    assert recomputed["recompute"] == ["always"] * 2
    assert sharded["recompute"] == ["never"] * 2
    for each in (recomputed, sharded):
        assert max(each["predicted_memory"]) < limit
        assert max(each["peak_memory"]) < 1.25 * limit
    assert "memory_limit is 10 MiB" in tiny["refused"]


def test_tensorflow_has_no_prediction() -> None:
    with pytest.raises(ValueError, match="memory_limit requires framework=torch"):
        strategy.check(Resnet50(framework="tensorflow", memory_limit=1))

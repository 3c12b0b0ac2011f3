"""Whole training programs: on ranks with their parts of each batch they see what one process with all of it sees."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import deep
from tests.workloads import ranks
from tests.workloads.deviations import BY_HOROVOD, BY_HYPARFLOW, BY_TORCH, NEVER_ENDS, UNTRIED_BY_HOROVOD

pytestmark = pytest.mark.exact

#: Each with the largest difference of anything that it can see: float32's rounding, which steps amplify.
TORCH = {
    "accumulated to an uneven end": 1e-5,
    "accumulations begun again": 1e-5,
    "adversaries": 1e-5,
    "amp with overflow": 1e-6,
    "assigned gradients": 1e-5,
    "averaged weights": 1e-5,
    "batches left out": 1e-5,
    "buffers changed alike": 1e-5,
    "checkpoints and hooks": 1e-5,
    "clipped": 1e-5,
    "compiled": 1e-5,
    "compiled steps": 1e-5,
    "compiled whole steps": 1e-5,
    "converted models": 1e-5,
    "epochs that end with the shortest": 1e-5,
    "everything is given to all": 1e-5,
    "expanded gradients": 1e-5,
    "frozen in mid training": 1e-5,
    "functions with gradients of their own": 1e-5,
    "gradient penalty": 1e-12,
    "gradients changed by tensor hooks": 1e-5,
    "gradients in other memory": 1e-5,
    "gradients written in place": 1e-5,
    "hooks of any order": 1e-5,
    "hooks on sparse gradients": 1e-5,
    "kept gradients": 1e-5,
    "layers shared by checkpoints": 1e-5,
    "line searches": 1e-4,
    "low rank adapters": 1e-5,
    "offloaded gradients": 1e-5,
    "orders in memory of each rank": 1e-5,
    "parameters outside of the model": 1e-5,
    "schedule by the mean loss": 1e-4,
    "second module with buffers": 1e-5,
    "slices": 1e-5,
    "smaller last batch": 1e-5,
    "sparse embeddings": 1e-5,
    "sparse gradients changed in place": 1e-5,
    "statistics of averaged weights": 1e-12,
    "synchronized normalization": 1e-12,
    "two optimizers of one model": 1e-5,
    "unfrozen later": 1e-5,
    "unused layers": 1e-5,
    "used on rank 0 alone": 1e-5,
}


@pytest.fixture(scope="module", params=[deep(1), 2, deep(3), deep(4)], ids=["1 rank", "2 ranks", "3 ranks", "4 ranks"])
def torch_results(
    request: pytest.FixtureRequest,
    stack_prefix: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    return ranks.results(stack_prefix("pytorch"), request.param, tmp_path_factory.mktemp("oracle"), "torch_oracle")


@pytest.mark.parametrize("program", TORCH)
def test_torch_programs_see_what_one_process_sees(torch_results: dict[str, Any], program: str) -> None:
    assert isinstance(torch_results[program], float), torch_results[program]
    assert torch_results[program] < TORCH[program]


def test_programs_that_are_drawn_see_what_one_process_sees(torch_results: dict[str, Any]) -> None:
    _expect_equal({name: result for name, result in torch_results.items() if name.isdigit()}, 10)


def test_programs_drawn_of_memory_and_hooks_see_it_too(torch_results: dict[str, Any]) -> None:
    _expect_equal({name: result for name, result in torch_results.items() if name.startswith("memory:")}, 40)


@pytest.mark.deep
@pytest.mark.parametrize(("number", "count"), [(2, 500), (3, 100), (4, 100)])
def test_many_programs_drawn_of_memory_and_hooks_do_so(
    stack_prefix: Callable[[str], Path], tmp_path: Path, number: int, count: int
) -> None:
    seeds = [f"memory:{seed}" for seed in range(1000 * number, 1000 * number + count)]
    _expect_equal(ranks.results(stack_prefix("pytorch"), number, tmp_path, "torch_oracle", *seeds), count)


@pytest.mark.deep
def test_a_drawn_program_finds_that_other_memory_is_not_noticed(
    stack_prefix: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "hidl_workloads"
    shutil.copytree(ranks.REPOSITORY / "hidl_workloads", package)
    file = package / "training" / "data_parallel" / "torch_buffers.py"
    part = "mark[0]() is grad and mark[1] == _memory_of(grad)"
    text = file.read_text()
    assert text.count(part) == 1
    file.write_text(text.replace(part, "mark[0]() is grad"))
    monkeypatch.chdir(tmp_path)  # python -m imports from there first
    (result,) = ranks.results(stack_prefix("pytorch"), 2, tmp_path, "torch_oracle", "memory:0").values()
    assert result > 1e-4


@pytest.mark.deep
@pytest.mark.parametrize("number", [2, 3, 4])
def test_many_programs_that_are_drawn_do_so(stack_prefix: Callable[[str], Path], tmp_path: Path, number: int) -> None:
    seeds = map(str, range(1000 * number, 1000 * number + 100))
    _expect_equal(ranks.results(stack_prefix("pytorch"), number, tmp_path, "torch_oracle", *seeds), 100)


def _expect_equal(results: dict[str, Any], count: int) -> None:
    assert len(results) == count
    apart = {seed: result for seed, result in results.items() if not isinstance(result, float) or result > 1e-4}
    assert not apart


def test_every_torch_program_is_held(torch_results: dict[str, Any]) -> None:
    names = [name for name in torch_results if not name.isdigit() and not name.startswith("memory:")]
    assert sorted(names) == sorted([*TORCH, "compressed", "failure", "narrow", "rebuilt", "refused", "statistics"])


#: What cannot be as in one process, and what is said on all ranks before a weight changes.
REFUSED = {
    "averaged by torch before": "ValueError: DistributedDataParallel already averages the gradient of module.0.weight",
    "averaged by torch too": "ValueError: DistributedDataParallel already averages the gradient of 0.weight",
    "buffers of a second module": "ValueError: the optimizer has parameters of modules outside of the model",
    "buffers changed by each batch": "ValueError: ranks {others} of {ranks} differ from rank 0 in 0.code: these",
    "compiled backward passes": "RuntimeError: compiled autograd calls hooks where gradients are not there yet",
    "complex weights": "TypeError: the gradient of 0 is complex64, which MPI cannot sum: keep weights as pairs",
    "copies of the optimizer": "TypeError: an optimizer that averages over ranks cannot be copied or pickled",
    "exchanged parameters": "RuntimeError: 0.weight was replaced by another tensor",
    "gradients in a graph": "RuntimeError: the gradient of 4.bias is part of a graph",
    "grown with other values": "ValueError: ranks {others} of {ranks} differ from rank 0 in 5.weight: these parameters",
    "other buffers": "ValueError: ranks {others} of {ranks} differ from rank 0 in table: all ranks must have the same",
    "optimizers with values outside of their state": "ValueError: ranks {others} of {ranks} differ from rank 0 in",
    "optimizers without hooks": "TypeError: Around never called torch.optim.Optimizer.__init__",
    "other options for one model": "ValueError: another optimizer already averages the gradient of 0.weight",
    "pickles of the optimizer": "TypeError: an optimizer that averages over ranks cannot be copied or pickled",
    "pruned at random": "ValueError: ranks {others} of {ranks} differ from rank 0 in 2.weight_mask: these buffers were",
    "rows rescaled where they are read": "ValueError: max_norm of Embedding rescales rows on the rank that reads them",
    "schedule by own loss": "ValueError: ranks {others} of {ranks} differ from rank 0 in the optimizer's settings",
    "shapeless": "ValueError: 0.weight has no shape yet: call the model once before",
    "sharded": "ValueError: 0.weight is sharded over ranks",
    "shapes changed after the wrap": "RuntimeError: the gradient of 0.weight has the shape (1, 5), but had (3, 5) when",
    "sparse gradients of no embedding": "TypeError: the gradient of 0 is sparse",
    "steps in hooks": "RuntimeError: step was called in a backward pass",
    "sums changed by each rank": "RuntimeError: gradients were changed in place differently on the ranks",
    "sums of sparse gradients": "ValueError: average=False does not support sparse gradients: 0.weight",
    "sums that are not cleared": "RuntimeError: a gradient that is summed over the ranks (average=False) was not",
    "sums that are replaced": "RuntimeError: gradients were replaced after they were summed over the ranks",
    "types changed after the wrap": "TypeError: the gradient of 4.bias is torch.float64, but was torch.float32 when",
    "weights changed by an optimizer in a hook": "ValueError: ranks {others} of {ranks} differ from rank 0 in 0.weight",
    "weights changed through their data": "ValueError: ranks {others} of {ranks} differ from rank 0 in 0.weight",
    "weights rescaled by a function": "ValueError: ranks {others} of {ranks} differ from rank 0 in 0: weights were",
    "unequal numbers of batches": "ValueError: ranks {others} of {ranks} differ from rank 0 in the number of batches",
}


@pytest.mark.parametrize("program", REFUSED)
def test_what_cannot_be_equal_is_refused_on_all_ranks(torch_results: dict[str, Any], program: str) -> None:
    if not torch_results["refused"]:
        pytest.skip("on one rank nothing is averaged, so nothing is refused")
    errors = torch_results["refused"][program]
    expected = REFUSED[program].format(others=list(range(1, len(errors))), ranks=len(errors))
    for error in errors:
        assert error.startswith(expected)


def test_a_backward_pass_that_fails_on_one_rank_fails_on_all(
    torch_results: dict[str, Any],
) -> None:
    *others, failed = torch_results["failure"]["errors"]
    told = "RuntimeError: the backward pass failed on another rank: these gradients are not averages"
    assert others == [["no error", told, "no error", "no error"]] * len(others)
    assert failed == ["no error", "ArithmeticError: no gradient", "no error", "no error"]
    assert len(set(torch_results["failure"]["checksums"])) == 1


def test_an_overflow_on_the_way_is_a_skipped_step_of_a_scaler_on_all_ranks(torch_results: dict[str, Any]) -> None:
    compressed = torch_results["compressed"]
    assert all(each == compressed["checksums"][0] for each in compressed["checksums"])
    if len(compressed["checksums"]) > 1:  # else nothing travels
        assert compressed["skipped"]
        assert compressed["scale"] == 1


def test_narrow_numbers_are_normalized_by_wider_sums(torch_results: dict[str, Any]) -> None:
    """70,000 samples are more than float16 can count, and bfloat16 is none of MPI's types."""
    narrow = torch_results["narrow"]
    assert narrow == {"torch.bfloat16": pytest.approx(0, abs=0.05), "torch.float16": pytest.approx(0, abs=0.01)}


def test_optimizers_made_again_leave_nothing(torch_results: dict[str, Any]) -> None:
    assert torch_results["rebuilt"] == {"averagers": 0, "hooks": 0, "averagers that share": 1}


def test_running_statistics_are_averaged_by_choice(torch_results: dict[str, Any]) -> None:
    averaged, local = torch_results["statistics"]["average"], torch_results["statistics"]["local"]
    assert averaged["difference"] < 1e-6
    assert len(set(averaged["checksums"])) == 1
    assert len(set(local["checksums"])) == len(local["checksums"])


#: As ``TORCH``, of keras_oracle.
KERAS = {
    "adapted on rank 0": 1e-5,
    "adversaries": 1e-5,
    "averaged weights": 1e-5,
    "built late": 1e-5,
    "built late, eagerly": 1e-5,
    "clipped": 1e-5,
    "frozen and unfrozen": 1e-5,
    "metrics by their states": 1e-5,
    "named optimizer": 1e-5,
    "other gradients in each step": 1e-5,
    "restored on rank 0": 1e-5,
    "scaled with overflow": 1e-3,  # it computes in half precision
    "schedule by a metric": 1e-5,
    "smaller last batch": 1e-5,
    "unused weights": 1e-4,
    "unused weights, eagerly": 1e-4,
    "weights in bfloat16": 2e-2,  # the last of its 8 bits
}
_DIFFER = "ranks {others} of {ranks} differ from rank 0 in"
#: As ``REFUSED``, of keras_oracle.
REFUSED_BY_KERAS = {
    "adapted to own samples": f"ValueError: {_DIFFER} what own was adapted to: adapt layers to the same samples",
    "begun with other weights": f"ValueError: {_DIFFER} sequential/only/kernel: all ranks must start with the same",
    "changed by each batch": f"ValueError: {_DIFFER} sequential/book/code: at the end of the training, all ranks must",
    "compiled by XLA": "ValueError: XLA does not support sums over ranks: use tf.function(jit_compile=False)",
    "unequal learning rates": f"ValueError: {_DIFFER} sgd/learning_rate: at the start of epoch 1, these must be equal",
    "unequal learning rates in a step": f"ValueError: {_DIFFER} the learning rate: all ranks must change",
    "other functions": f"ValueError: {_DIFFER} the model: all ranks must train the same model",
    "other models": f"ValueError: {_DIFFER} the model: all ranks must train the same model",
    "other models, built late": f"ValueError: {_DIFFER} own/part/kernel, own/part/bias: all ranks must train the same",
    "other optimizers": f"ValueError: {_DIFFER} the optimizer's settings: all ranks must train the same model",
    "other vocabularies": f"ValueError: {_DIFFER} the model: all ranks must train the same model",
    "saved to one file": "ValueError: several ranks would write the same checkpoint, ModelCheckpoint to ",
    "a metric of one's own": "ValueError: these metrics cannot be combined from those of the ranks: largest",
    "correlations": "ValueError: these metrics cannot be combined from those of the ranks: pearson_correlation",
    "evaluated before": "ValueError: another callback evaluated loss before AverageMetrics",
    "logs of one's own": "ValueError: ranks {others} of {ranks} differ from rank 0 in rank: put callbacks that add",
    "other metrics": "ValueError: ranks {others} of {ranks} differ from rank 0 in mae: all ranks must have the same",
    "other numbers of steps": "ValueError: ranks {others} of {ranks} differ from rank 0 in steps: all ranks must take",
    "steps of two kinds": "ValueError: some steps have no gradient for",
    "synchronized normalization": "ValueError: synchronized=True has no effect over MPI: norm",
    "unfrozen with the same optimizer": "ValueError: the trainable variables have changed: compile the model again",
}


@pytest.fixture(scope="module", params=[2, 3, 4], ids=["2 ranks", "3 ranks", "4 ranks"])
def keras_results(
    request: pytest.FixtureRequest,
    stack_prefix: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    return ranks.results(stack_prefix("tensorflow"), request.param, tmp_path_factory.mktemp("oracle"), "keras_oracle")


@pytest.mark.deep
@pytest.mark.parametrize("program", KERAS)
def test_keras_programs_see_what_one_process_sees(keras_results: dict[str, Any], program: str) -> None:
    assert keras_results[program] < KERAS[program]


@pytest.mark.deep
@pytest.mark.parametrize("program", REFUSED_BY_KERAS)
def test_what_cannot_be_equal_is_refused_by_keras_on_all_ranks(keras_results: dict[str, Any], program: str) -> None:
    errors = keras_results["refused"][program]
    expected = REFUSED_BY_KERAS[program].format(others=list(range(1, len(errors))), ranks=len(errors))
    for error in errors:
        assert expected in error


@pytest.mark.deep
def test_moving_statistics_are_averaged_by_choice(keras_results: dict[str, Any]) -> None:
    averaged, local = keras_results["statistics"]["average"], keras_results["statistics"]["local"]
    assert averaged["difference"] < 1e-6
    assert len(set(averaged["checksums"])) == len(set(averaged["losses"])) == 1
    assert len(set(local["checksums"])) == len(local["checksums"])


@pytest.mark.deep
def test_every_keras_program_is_held(keras_results: dict[str, Any]) -> None:
    assert sorted(keras_results) == sorted([*KERAS, "refused", "statistics"])
    assert sorted(keras_results["refused"]) == sorted(REFUSED_BY_KERAS)


#: Partitions and replicas of the model.
LAYOUTS = {"2 partitions": (2, 1), "2 replicas": (1, 2)}
#: hyparflow takes no part in steps that a program makes by itself.
THROUGH_HYPARFLOW = sorted(set(KERAS) - {"other gradients in each step"})


@pytest.mark.deep
@pytest.mark.parametrize("layout", LAYOUTS)
def test_hyparflow_trains_the_same_programs_or_refuses_them(
    stack_prefix: Callable[[str], Path], tmp_path: Path, layout: str
) -> None:
    path = ":".join(map(str, (ranks.REPOSITORY, ranks.REPOSITORY / "libs" / "hyparflow", ranks.PROGRAMS)))
    file = tmp_path / "results.json"
    words = ("-m", "hidl_workloads.world", "hyparflow_oracle", file, *map(str, LAYOUTS[layout]))
    completed = ranks.run(stack_prefix("tensorflow"), 2, *words, PYTHONPATH=path)
    assert completed.status == 0, completed.stderr
    results = json.loads(file.read_text())
    assert sorted(results) == THROUGH_HYPARFLOW
    for program, result in results.items():
        deviation = BY_HYPARFLOW[layout].get(program)
        if deviation is None:
            assert isinstance(result, float), (program, result)
            assert result < KERAS[program], program
        else:
            assert [error.startswith(deviation.error) for error in result] == [True, True], result


def _by_torch(prefix: Path, directory: Path, *programs: str) -> dict[str, Any]:
    path = ":".join(map(str, (ranks.REPOSITORY, ranks.PROGRAMS, ranks.REPOSITORY / "libs" / "mpi4c10d")))
    return ranks.results(prefix, 2, directory, "torch_oracle", *programs, ORACLE_AVERAGER="torch", PYTHONPATH=path)


@pytest.mark.deep
def test_what_torch_distributed_trains_alike_is_as_the_how_to_says(
    stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    results = _by_torch(stack_prefix("pytorch"), tmp_path, *(name for name in TORCH if name not in BY_TORCH))
    assert not {name: result for name, result in results.items() if not isinstance(result, float)}
    assert not {name: result for name, result in results.items() if result >= TORCH[name]}


@pytest.mark.deep
@pytest.mark.parametrize("program", [name for name in BY_TORCH if BY_TORCH[name].error != NEVER_ENDS])
def test_what_torch_distributed_makes_of_other_programs_is_as_the_how_to_says(
    stack_prefix: Callable[[str], Path], tmp_path: Path, program: str
) -> None:
    (result,) = _by_torch(stack_prefix("pytorch"), tmp_path, program).values()
    if BY_TORCH[program].error:
        assert result.startswith(BY_TORCH[program].error)
    else:
        assert result == "different" or result > 100 * TORCH[program]


def _tables() -> str:
    """Return what docs/how-to/train-data-parallel.md shows of this module."""
    torch = [
        f"| {name} | equal, to {bound:.0e} | {_by_horovod(name)} | {BY_TORCH.get(name, 'equal')} |"
        for name, bound in sorted(TORCH.items())
    ]
    keras = [
        f"| {name} | equal, to {bound:.0e} | {_through_hyparflow(name)} |" for name, bound in sorted(KERAS.items())
    ]
    refused = [
        f"| {framework}: {name} | `{error.format(others=[1], ranks=2)} ...` |"
        for framework, errors in (("PyTorch", REFUSED), ("Keras", REFUSED_BY_KERAS))
        for name, error in sorted(errors.items())
    ]
    lines = (
        "| PyTorch | hidl | Horovod | `torch.distributed` |",
        "|---|---|---|---|",
        *torch,
        "",
        "| Keras | hidl | hyparflow |",
        "|---|---|---|",
        *keras,
        "",
        "These raise an error on all ranks, before a weight changes:",
        "",
        "| program | error |",
        "|---|---|",
        *refused,
    )
    return "\n".join(lines) + "\n"


def _by_horovod(program: str) -> str:
    if program in UNTRIED_BY_HOROVOD:
        return "not tried: the program is newer than the last run with Horovod"
    return str(BY_HOROVOD.get(program, "equal"))


def _through_hyparflow(program: str) -> str:
    if program not in THROUGH_HYPARFLOW:
        return "not concerned: the program makes its steps by itself"
    found = {layout: str(BY_HYPARFLOW[layout].get(program, "equal")) for layout in LAYOUTS}
    if len(set(found.values())) == 1:
        return found[next(iter(found))]
    return "; ".join(f"{layout}: {result}" for layout, result in found.items())


@pytest.mark.pure
def test_the_how_to_shows_what_is_compared() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "train-data-parallel.md"
    text = page.read_text()
    marker = "<!-- tests/workloads/test_oracle.py writes this -->\n"
    before, rest = text.split(marker, 1)
    shown, after = rest.split("<!-- end -->", 1)
    if os.environ.get("HIDL_WRITE_GOLDEN"):
        page.write_text(f"{before}{marker}{_tables()}<!-- end -->{after}")
    else:
        assert shown == _tables()

"""The optimizer and the callbacks for Keras: ``model.fit`` on ranks does what it does in one process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiers import deep
from tests.workloads import ranks

pytestmark = pytest.mark.exact

Results = dict[str, Any]


@pytest.fixture(scope="module")
def results(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Results:
    file = tmp_path_factory.mktemp("keras") / "results.json"
    program = ("-m", "hidl_workloads.world", "keras_distributed", file)
    completed = ranks.run(stack_prefix("tensorflow"), 2, *program)
    assert completed.status == 0, completed.stderr
    results: Results = json.loads(file.read_text())
    return results


EXACT = ["joint", "accumulated", "eager", "several steps at once", "saved"]
COMPRESSED = ["float16", "bfloat16"]


@pytest.mark.parametrize("case", EXACT)
def test_fit_equals_one_process_on_the_joint_batches(results: Results, case: str) -> None:
    assert results[case]["difference"] < 1e-6


@pytest.mark.parametrize("case", [*EXACT, *COMPRESSED])
def test_weights_are_bitwise_equal_on_all_ranks(results: Results, case: str) -> None:
    assert len(set(results[case]["checksums"])) == 1


def test_frozen_weights_are_compared_one_by_one(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    """Only those that differ are broadcast, and the ranks never have copies of all 40 at once."""
    found = ranks.results(stack_prefix("tensorflow"), 2, tmp_path, "keras_frozen")
    assert [broadcasts for broadcasts, _, _ in found.values()] == [0, 1, 1]
    assert [error for _, error, _ in found.values()] == ["", "", "ranks [1] of 2 differ from rank 0 in layer/7: advice"]
    assert max(peak for _, _, peak in found.values()) < 20


def test_without_the_optimizer_they_are_not(results: Results) -> None:
    assert len(set(results["without averaging"])) == 2


@pytest.mark.parametrize(("case", "roundoff"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_compressed_steps_differ_by_their_type_s_rounding(results: Results, case: str, roundoff: float) -> None:
    # Eight steps of 0.1, momentum 0.9: up to 3.9 gradients, clipped to a norm of 0.5 and rounded twice.
    assert 0 < results[case]["difference"] < 2 * roundoff * 3.9 * 0.5


def test_metrics_are_those_of_the_joint_batches_on_all_ranks(results: Results) -> None:
    first, *others = results["joint"]["histories"]
    assert others == [first]
    assert results["joint"]["metrics"] < 1e-5


def test_a_saved_model_knows_nothing_of_ranks(results: Results) -> None:
    assert results["saved"]["plain"]


def test_overflow_in_float16_is_an_error_on_all_ranks_and_changes_nothing(results: Results) -> None:
    for told in results["overflow"]:
        assert "FloatingPointError: a gradient is not finite after compression to float16" in told
        assert told.endswith("[0. 0. 0.]")


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("twice", "TypeError: this optimizer already averages over the ranks"),
        ("half precision", "ValueError: with mixed_float16, ranks would skip different steps"),
        ("copied", "TypeError: an optimizer that averages over ranks cannot be copied or pickled"),
        ("pickled", "TypeError: an optimizer that averages over ranks cannot be copied or pickled"),
        ("not wrapped", "ValueError: the model's optimizer does not average over ranks"),
        ("not wrapped, own step", "ValueError: the model's optimizer does not average over ranks"),
        ("scaled outside", "ValueError: the model's optimizer does not average over ranks"),
    ],
)
def test_what_cannot_work_is_refused(results: Results, case: str, says: str) -> None:
    assert results[case].startswith(says)


def test_weights_decay_after_ranks_have_compared_them(results: Results) -> None:
    assert results["decayed at once"] == ["no error"]


def test_an_optimizer_that_was_refused_may_be_wrapped_then(results: Results) -> None:
    assert results["wrapped after a refusal"] == "trained"


#: Programs of keras_uneven, and the operations in which rank 0 and the last rank never meet.
UNEVEN = {
    "batches": ("an average", "the moving statistics"),
    "batches of the last epoch": ("an average", "the moving statistics"),
    "epochs": ("the start of epoch 2", "the end of the training"),
    "evaluations": ("the end of an epoch", "the metrics"),
    "no batch": ("an average", "the moving statistics"),
    "trainings": ("the start of the training", "the end of its program"),
}


@pytest.mark.parametrize("number", [2, deep(3)])
@pytest.mark.parametrize("case", [case if case in ("batches", "epochs") else deep(case) for case in UNEVEN])
def test_ranks_that_do_unequally_much_end_with_one_message(
    stack_prefix: Callable[[str], Path], case: str, number: int
) -> None:
    words = ("-m", "hidl_workloads.world", "keras_uneven", case)
    completed = ranks.run(stack_prefix("tensorflow"), number, *words, timeout=120)
    first, other = UNEVEN[case]
    assert completed.status != 0
    assert re.search(f"rank [01] is at {first} and rank [12] is at {other}: all ranks must take", completed.stderr)


#: The first lines of the programs of docs/how-to/train-data-parallel.md, what each trains with and what it saves.
EXAMPLES = {
    "# train.py": ("pytorch", "torch", ["model.pt"]),
    "# fit.py": ("tensorflow", "keras", ["model.keras"]),
    "# perceptron.py": ("pytorch", "model", []),
}


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_how_to_train_as_one_process_on_the_joint_batches(
    stack_prefix: Callable[[str], Path], tmp_path: Path, example: str, number: int
) -> None:
    (tmp_path / "example.py").write_text(_program(example))
    stack, harness, saved = EXAMPLES[example]
    words = (str(tmp_path / "example.py"), harness)
    found = ranks.results(stack_prefix(stack), number, tmp_path, "example_of_a_page", *words)
    assert found["difference"] < 1e-4
    assert found["without averages"] > 1e-2
    assert found["saved"] == saved


@pytest.mark.parametrize("number", [2, 3])
def test_the_loop_of_the_how_to_trains_as_one_process_on_the_joint_batches(
    stack_prefix: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    own = _program("# loop.py")
    joint = re.sub("^batch = 8$", f"batch = {8 * number}", own, flags=re.MULTILINE)
    found = {}
    for case, count, text in (("ranks", number, own), ("joint", 1, joint), ("alone", 1, own)):
        directory = tmp_path / case
        directory.mkdir()
        (directory / "loop.py").write_text(text)
        monkeypatch.chdir(directory)
        completed = ranks.run(stack_prefix("tensorflow"), count, "loop.py")
        assert completed.status == 0, completed.stderr
        found[case] = np.load(directory / "weights.npz")

    def difference(other: str) -> float:
        return max(float(abs(found["ranks"][name] - found[other][name]).max()) for name in found["ranks"])

    assert difference("joint") < 1e-5
    assert difference("alone") > 1e-2


def _program(first: str) -> str:
    """Return the program of the how-to that begins with this line."""
    page = (ranks.REPOSITORY / "docs" / "how-to" / "train-data-parallel.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return next(block for block in blocks if block.startswith(f"{first}\n"))


#: Programs in the style of Keras' guides, each with the largest difference of anything that it sees.
GUIDES = {
    "built-in methods": 1e-5,
    "custom train_step": 1e-5,
    "mixed precision": 1e-3,
    "preprocessing layers": 1e-5,
    "training loop": 1e-5,
    "transfer learning": 1e-5,
}


@pytest.mark.parametrize("number", [2, deep(3)])
def test_programs_of_keras_guides_see_what_one_process_sees(
    stack_prefix: Callable[[str], Path], tmp_path: Path, number: int
) -> None:
    found = ranks.results(stack_prefix("tensorflow"), number, tmp_path, "keras_guides")
    assert sorted(found) == sorted(GUIDES)
    assert not {name: difference for name, difference in found.items() if difference > GUIDES[name]}

"""Which checkpoints are whole, which is taken, and which go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hyparflow.checkpoints import directory, shards
from hyparflow.checkpoints.directory import Checkpoint, Progress
from hyparflow.checkpoints.restore import last_whole, restore
from hyparflow.errors import CheckpointError
from hyparflow.training.requests import Checkpoints


class Variable:
    """What is asked of a Keras variable."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.value = np.zeros(shape)

    def assign(self, value: np.ndarray) -> None:
        self.value = value


def make(root: Path, step: int, *, whole: bool = True) -> Path:
    """A checkpoint of two ranks, one per replica: w is both's, m is each replica's own."""
    path = directory.path_of(root, step)
    path.mkdir(parents=True)
    shards.write(path, 0, {("w", None): np.full(3, float(step)), ("m", 0): np.zeros(2)})
    shards.write(path, 1, {("m", 1): np.ones(2)})
    if whole:
        progress = Progress(step, 0, step, 0, step, 8, 2, seed=1, history={"loss": [0.5]}, epochs=(0,))
        about = {"fingerprint": "f", "partitions": 1, "replicas": 2, "progress": vars(progress)}
        directory.finish(path, 2, about)
    return path


def test_the_last_whole_one_is_taken(tmp_path: Path) -> None:
    for step in (5, 10):
        make(tmp_path, step)

    found = last_whole(tmp_path)

    assert found is not None
    assert found.progress == Progress(10, 0, 10, 0, 10, 8, 2, seed=1, history={"loss": [0.5]}, epochs=(0,))


def test_one_that_was_interrupted_is_named_and_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, 5)
    make(tmp_path, 10, whole=False)

    found = last_whole(tmp_path)

    assert found is not None
    assert (found.progress.step, "step-0000000010 is not whole" in capsys.readouterr().err) == (5, True)


@pytest.mark.parametrize("file", ["shard-00001.bin", "manifest.json"])
def test_one_that_is_damaged_is_named_and_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    make(tmp_path, 5)
    path = make(tmp_path, 10) / file
    path.write_bytes(path.read_bytes()[:-9])

    found = last_whole(tmp_path)

    assert found is not None
    assert (found.progress.step, str(path) in capsys.readouterr().err) == (5, True)


def test_of_nothing_whole_there_is_none(tmp_path: Path) -> None:
    make(tmp_path, 5, whole=False)

    assert last_whole(tmp_path) is None


@pytest.mark.parametrize(("replica", "expected"), [(0, 0.0), (1, 1.0), (5, 0.0)])
def test_a_replica_has_its_own_back_or_the_first_ones(tmp_path: Path, replica: int, expected: float) -> None:
    variables = {"w": Variable(3), "m": Variable(2)}

    restore(directory.load(make(tmp_path, 5)), variables, replica)

    assert (variables["w"].value.tolist(), variables["m"].value.tolist()) == ([5.0] * 3, [expected] * 2)


def test_a_variable_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no other"):
        restore(directory.load(make(tmp_path, 5)), {"other": Variable(1)}, 0)


def test_a_variable_of_another_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"w is \(4,\), and \(3,\)"):
        restore(directory.load(make(tmp_path, 5)), {"w": Variable(4)}, 0)


def test_the_oldest_whole_ones_go(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        make(tmp_path, step)

    directory.keep(tmp_path, 2)

    assert [path.name for path in directory.found(tmp_path)] == ["step-0000000015", "step-0000000010"]


def test_making_room_removes_what_is_not_whole_and_puts_away_what_is_damaged(tmp_path: Path) -> None:
    make(tmp_path, 5)
    make(tmp_path, 10)
    make(tmp_path, 15, whole=False)

    directory.clear(tmp_path, 5)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged-step-0000000010", "step-0000000005"]


def contents(root: Path) -> dict[str, bytes]:
    return {str(each.relative_to(root)): each.read_bytes() for each in sorted(root.rglob("*")) if each.is_file()}


#: What others keep under such names: a trainer with names of its own, one with ours, one whose index is none of ours.
FOREIGN = {
    "step-1000/model.safetensors": b"weights",
    "step-0000000003/pytorch_model.bin": b"weights",
    "step-0000000004/shard-00000.bin": b"weights",
    "step-0000000004/manifest.json": b'{"schema": "of another/1"}',
    "step-00000000070/notes7": b"weights",
}


def make_foreign(root: Path) -> dict[str, bytes]:
    for name, data in FOREIGN.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return contents(root)


@pytest.mark.exact
@pytest.mark.parametrize("restart", [False, True])
def test_what_others_made_stays_as_it_was(tmp_path: Path, restart: bool, capsys: pytest.CaptureFixture[str]) -> None:
    before = make_foreign(tmp_path)
    saving = Checkpoints(tmp_path, every=1, keep=1, restart=restart)
    if restart:
        make(tmp_path, 5)
    last = last_whole(tmp_path)

    saving.make_ready(last.progress.step if last else 4)
    for step in (6, 7):
        make(tmp_path, step)
        directory.keep(tmp_path, 1)

    assert {name: data for name, data in contents(tmp_path).items() if name in FOREIGN} == before
    assert [path.name for path in directory.found(tmp_path)] == ["step-0000000007"]
    assert "step-" not in capsys.readouterr().err


def test_a_foreign_directory_in_the_way_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    make(tmp_path, 2, whole=False)
    make_foreign(tmp_path)
    before = contents(tmp_path)

    with pytest.raises(CheckpointError, match=r"step-000000000\d was not made by hyparflow"):
        Checkpoints(tmp_path, every=1, keep=None, restart=True).make_ready(-1)

    assert contents(tmp_path) == before


def test_of_a_checkpoint_that_holds_more_only_its_own_files_go(tmp_path: Path) -> None:
    (make(tmp_path, 5) / "notes.txt").write_text("mine")
    make(tmp_path, 6)

    directory.keep(tmp_path, 1)

    assert [name for name in contents(tmp_path) if "0005" in name] == ["step-0000000005/notes.txt"]


def test_a_checkpoint_that_was_interrupted_in_its_first_shard_goes(tmp_path: Path) -> None:
    path = directory.path_of(tmp_path, 5)
    path.mkdir()
    (path / "shard-00001.bin.part").write_bytes(b"half")

    directory.clear(tmp_path, -1)

    assert not path.exists()


def test_a_checkpoint_knows_its_damage(tmp_path: Path) -> None:
    path = make(tmp_path, 5)
    (path / "shard-00000.bin").write_bytes(b"")
    checkpoint: Checkpoint = directory.load(path)

    assert [len(checkpoint.damage(rank, 2)) for rank in (0, 1)] == [1, 0]

"""A shard gives back what was written, and says when it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hyparflow.checkpoints import shards
from hyparflow.checkpoints.shards import Shard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

_KINDS = st.sampled_from(["float32", "float64", "int64", "uint32", "bool"])
_VALUES = st.lists(_KINDS.flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, max_dims=3))))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=_VALUES)
def test_what_was_written_is_read(tmp_path: Path, values: list[np.ndarray]) -> None:
    shard = shards.write(tmp_path, 3, {(f"layer/{number}", None): value for number, value in enumerate(values)})

    read = [value for _, value in shards.read(tmp_path, shard, shard.entries)]

    assert [(each.dtype, each.shape, each.tobytes()) for each in read] == [
        (each.dtype, each.shape, each.tobytes()) for each in values
    ]


def test_an_index_comes_back_from_its_document(tmp_path: Path) -> None:
    shard = shards.write(tmp_path, 0, {("a", None): np.arange(3.0), ("b", 1): np.zeros((2, 2), "int32")})

    assert Shard.from_document(shard.to_document()) == shard


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Shard]:
    """A whole shard, and its file."""
    return tmp_path / "shard-00000.bin", shards.write(tmp_path, 0, {("a", None): np.arange(100.0)})


def test_a_whole_shard_has_nothing_wrong(written: tuple[Path, Shard]) -> None:
    assert shards.check(written[0].parent, written[1]) is None


def test_a_changed_byte_is_found(written: tuple[Path, Shard]) -> None:
    path, shard = written
    content = bytearray(path.read_bytes())
    content[411] ^= 1
    path.write_bytes(content)

    assert "is damaged" in (shards.check(path.parent, shard) or "")


def test_a_file_that_was_cut_off_is_found(written: tuple[Path, Shard]) -> None:
    path, shard = written
    path.write_bytes(path.read_bytes()[:-1])

    assert "bytes instead of" in (shards.check(path.parent, shard) or "")


def test_a_missing_file_is_found(written: tuple[Path, Shard]) -> None:
    path, shard = written
    path.unlink()

    assert "cannot be read" in (shards.check(path.parent, shard) or "")

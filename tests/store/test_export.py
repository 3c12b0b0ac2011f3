"""Samples as JSON, CSV and Parquet: each format gives back what was written."""

from __future__ import annotations

import csv
import json
import os
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from hidl_cli.analysis.samples import Sample
from hidl_cli.errors import HidlError
from hidl_cli.store.store import COLUMNS, Format, export
from tests.tiers import deep

FORMATS: tuple[Format, ...] = ("json", "csv", "parquet")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SAMPLES = st.builds(
    Sample,
    **dict.fromkeys(("run", "created", "site", "workload", "series", "stack", "lock", "launcher"), TEXT),
    mpi=TEXT,
    partition=st.none() | TEXT.filter(bool),
    nodes=st.integers(1, 2**31),
    ranks=st.integers(1, 2**31),
    repetition=st.integers(1, 9),
    metric=TEXT,
    unit=TEXT,
    better=st.sampled_from([None, "higher", "lower"]),
    value=st.floats(allow_nan=False, allow_infinity=False),
    rank=st.none() | st.integers(0, 2**31),
    hosts=st.lists(TEXT, max_size=3).map(tuple),
    parameters=st.dictionaries(TEXT, st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT, max_size=2),
    tuning=st.dictionaries(TEXT, TEXT, max_size=2),
    verdict=st.sampled_from([None, "pass", "fail"]),
)
NUMBERS = {"nodes": int, "ranks": int, "repetition": int, "rank": int, "value": float}


def one(**changes: Any) -> Sample:
    texts = dict.fromkeys(("run", "created", "site", "partition", "workload", "series", "stack", "lock"), "x")
    figures = {"nodes": 1, "ranks": 1, "repetition": 1, "value": 1.5}
    return Sample(
        **{**texts, "launcher": "x", "mpi": "x", "metric": "m", "unit": "1", "better": None, **figures, **changes}
    )


def plain(sample: Sample) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(sample)))


def read(file: Path, form: Format) -> list[dict[str, Any]]:
    """The rows of a file, as dictionaries of plain values."""
    if form == "json":
        document = json.loads(file.read_text(encoding="utf-8"))
        assert document["schema"] == "hidl.samples/1"
        return list(document["samples"])
    if form == "csv":
        with file.open(newline="", encoding="utf-8") as opened:
            rows: list[dict[str, Any]] = list(csv.DictReader(opened))
        for row in rows:
            row |= {name: kind(row[name]) if row[name] else None for name, kind in NUMBERS.items()}
            row |= {name: row[name] or None for name in ("partition", "better", "verdict")}
    else:
        rows = parquet.read_table(file).to_pylist()
    return [row | {name: json.loads(row[name]) for name in ("hosts", "parameters", "point", "tuning")} for row in rows]


@pytest.mark.parametrize("form", FORMATS)
@settings(deadline=None, max_examples=30)
@given(samples=st.lists(SAMPLES, max_size=4))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, form: Format, samples: list[Sample]
) -> None:
    file = tmp_path_factory.mktemp("export") / "out"
    assert export(samples, form, file) == len(samples)
    assert read(file, form) == [plain(sample) for sample in samples]


@pytest.mark.real
@pytest.mark.parametrize("form", [deep("json"), "csv"])
def test_memory_does_not_grow_with_the_samples(form: Format, tmp_path: Path) -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        export((one(repetition=number) for number in range(count)), form, tmp_path / "out")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    assert peak(20_000) < 2 * peak(2_000)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    def failing() -> Iterator[Sample]:
        yield one()
        raise HidlError("the store is gone")

    (tmp_path / "out").write_text("before")
    with pytest.raises(HidlError, match="is gone"):
        export(failing(), "csv", tmp_path / "out")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "before")]


def test_a_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        export([one()], "csv", tmp_path / "out")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(HidlError, match="cannot write"):
        export([one()], "json", tmp_path / "none" / "out")


def test_what_is_not_a_file_is_written_to() -> None:
    assert export([one()], "csv", Path("/dev/null")) == 1
    assert Path("/dev/null").is_char_device()


def test_every_field_of_a_sample_is_a_column() -> None:
    assert set(COLUMNS) == set(Sample.__dataclass_fields__)

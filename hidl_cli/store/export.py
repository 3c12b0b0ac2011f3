"""Export samples to files incrementally, to limit memory use."""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from hidl_cli.analysis.samples import Sample
from hidl_cli.errors import HidlError, MissingPrecondition, hint_for

Format = Literal["json", "csv", "parquet"]

COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Sample))
#: Number of rows per Parquet row group.
_GROUP = 10_000


def export(samples: Iterable[Sample], form: Format, output: Path | None) -> int:
    """Write the samples to ``output`` (atomically) or to stdout, and return their number.

    Raises ``MissingPrecondition`` if the format requires pyarrow, but pyarrow is not installed, and ``HidlError`` if
    the file cannot be written.
    """
    write = {"json": _json, "csv": _csv, "parquet": _parquet}[form]
    if form == "parquet":
        _pyarrow()
    if output is None:
        count = write(samples, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return count
    try:
        with _replacing(output) as file:
            return write(samples, file)
    except OSError as error:
        hint = hint_for(error, "free some space, or choose another file")
        raise HidlError(f"cannot write {output}: {error}", hint=hint) from error


@contextmanager
def _replacing(output: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces ``output`` at the end. Pipes and devices are written to directly."""
    if output.exists() and not output.is_file():
        with output.open("wb") as file:
            yield file
        return
    descriptor, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _json(samples: Iterable[Sample], file: IO[bytes]) -> int:
    """Write a JSON document with one sample per line."""
    file.write(b'{"schema": "hidl.samples/1", "samples": [')
    count = 0
    for count, sample in enumerate(samples, start=1):
        text = json.dumps(asdict(sample), ensure_ascii=False)
        file.write((",\n" if count > 1 else "\n").encode() + text.encode())
    file.write(b"\n]}\n")
    return count


def _csv(samples: Iterable[Sample], file: IO[bytes]) -> int:
    """Write CSV with one sample per row (RFC 4180). The cells for hosts, parameters, point and tuning contain JSON."""
    rows = csv.writer(_TextAdapter(file))
    rows.writerow(COLUMNS)
    count = 0
    for sample in samples:
        rows.writerow(_flat(sample).values())
        count += 1
    return count


class _TextAdapter:
    """A file for the ``csv`` module that encodes text and writes it to a binary file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, line: str) -> int:
        return self._file.write(line.encode())


def _parquet(samples: Iterable[Sample], file: IO[bytes]) -> int:
    """Write Parquet with the same columns as CSV. Times are text, as in the other formats."""
    pyarrow, parquet = _pyarrow()
    numbers = {"nodes": pyarrow.int64(), "ranks": pyarrow.int64(), "repetition": pyarrow.int64()}
    types = {**numbers, "rank": pyarrow.int64(), "value": pyarrow.float64()}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in COLUMNS])
    remaining = iter(samples)
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(remaining, _GROUP)):
            writer.write_table(pyarrow.Table.from_pylist([_flat(sample) for sample in group], schema=schema))
            count += len(group)
    return count


def _flat(sample: Sample) -> dict[str, Any]:
    row = {name: getattr(sample, name) for name in COLUMNS}
    nested = {
        "hosts": list(sample.hosts),
        "parameters": dict(sample.parameters),
        "point": dict(sample.point),
        "tuning": dict(sample.tuning),
    }
    return {**row, **{name: json.dumps(value, ensure_ascii=False) for name, value in nested.items()}}


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPrecondition(
            f"Parquet export requires pyarrow, which cannot be imported ({error})",
            hint=f"{sys.executable} -m pip install 'hidl[export]', or --format csv",
        ) from error
    return pyarrow, parquet

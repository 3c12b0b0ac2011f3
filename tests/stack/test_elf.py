"""Which libraries compiled modules want, as binutils' readelf tells it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hidl_cli.stack.content import needed

HEADER = b"\x7fELF\x02\x01"


def as_readelf_tells(file: str) -> tuple[str, ...]:
    said = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    return tuple(re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", said))


@pytest.mark.parametrize("file", ["/bin/ls", "/bin/bash", sys.executable])
def test_the_libraries_of_a_program(file: str) -> None:
    assert needed(Path(file)) == as_readelf_tells(file) != ()


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", HEADER, HEADER + bytes(200)])
def test_what_is_not_a_such_file_has_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert not needed(file)


def test_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert needed(tmp_path / "none") is None


@given(st.binary(max_size=400))
@example(content=b"\xff" * 64)
def test_damaged_files_are_no_reason_to_fail(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(HEADER + content)
        file.flush()
        assert needed(Path(file.name)) in (None, ())

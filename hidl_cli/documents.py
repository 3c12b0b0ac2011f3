"""Read and hash files, and write them atomically: each document is written to a temporary file that is then renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write ``text`` (UTF-8) to ``path`` atomically and create the directory if needed."""
    write_bytes(path, text.encode("utf-8"), mode=mode)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` atomically and create the directory if needed.

    Raises ``OSError`` with the name of the file, which the error for a full disk lacks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(mode)
        Path(beside).replace(path)
    except BaseException as error:
        Path(beside).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def write_output(path: Path, data: bytes, is_earlier: Callable[[Path], bool]) -> None:
    """Write ``data`` to a file that the user has named: follow links, and write to pipes and devices directly.

    An empty file and an earlier output are replaced atomically. Raises ``OSError`` like ``check_output``, or if the
    file cannot be written.

    Args:
        path: The file.
        data: Its new contents.
        is_earlier: Function that returns whether a file was written by the same command.
    """
    check_output(path, is_earlier)
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            file.write(data)
        return
    mask = os.umask(0)
    os.umask(mask)
    write_bytes(path.resolve(), data, mode=0o666 & ~mask)


def check_output(path: Path, is_earlier: Callable[[Path], bool]) -> None:
    """Raise an error if ``write_output`` would not write the file.

    It is ``FileExistsError`` if the file has other contents, and ``FileNotFoundError`` if the directory does not exist.
    """
    if path.is_file() and path.stat().st_size and not is_earlier(path):
        raise FileExistsError(errno.EEXIST, "the file exists and has other contents", str(path))
    path.resolve().parent.stat()  # raises an error instead of creating a misspelled directory


def write_json(path: Path, document: Any) -> None:
    """Write ``document`` as indented JSON atomically."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the parsed document.

    Raises ``OSError`` if the file cannot be read, and ``ValueError`` if it is not JSON.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    total = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()

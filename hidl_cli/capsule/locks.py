"""The locks of all providers, read by what is in them."""

from __future__ import annotations

from pathlib import Path

from hidl_cli.stack import lock as wheels
from hidl_cli.stack.lock import Locked
from hidl_cli.stack.providers.spack import lock as spack


def read_lock(file: Path) -> Locked:
    """Read a lock of wheels or of Spack; ``InvalidInput`` if it is neither, ``OSError`` if it cannot be read."""
    with file.open("rb") as content:
        is_json = content.read(64).lstrip().startswith(b"{")
    return spack.read(file) if is_json else wheels.read(file)

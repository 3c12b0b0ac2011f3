"""What was built before: ``<cache>/builds/<key>/``, found by the hash of all that it was built from."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import documents, paths
from hidl_cli.stack.exclusive import held

if TYPE_CHECKING:
    from hidl_cli.stack.builds.planned import PlannedBuild
    from hidl_cli.stack.target import Target

_INPUTS = "inputs.json"
_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Slot:
    """The place of one product. ``inputs`` is all that it is built from; ``directory`` is there once it is whole."""

    inputs: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The SHA-256 of the inputs, shortened."""
        return hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def directory(self) -> Path:
        """The product's directory."""
        return _root() / self.key

    @property
    def filled(self) -> bool:
        """Is the product there?"""
        return (self.directory / _INPUTS).is_file()

    @contextmanager
    def workplace(self, on_wait: Callable[[str], None]) -> Iterator[Path | None]:
        """A directory to build in, which nobody else uses; None where the product is there already.

        What an interrupted build left in it is gone. The product goes to its ``product``; it is kept where the block
        ends without an exception.
        """
        work = _root() / f".{self.key}"
        with held(_root() / ".locks" / self.key, on_wait):
            if self.filled:
                os.utime(self.directory / _INPUTS)  # see ``last_used``
                yield None
                return
            shutil.rmtree(work, ignore_errors=True)
            (work / "product").mkdir(parents=True)
            try:
                yield work
                documents.write_json(work / "product" / _INPUTS, self.inputs)
                shutil.rmtree(self.directory, ignore_errors=True)
                (work / "product").replace(self.directory)
            finally:
                shutil.rmtree(work, ignore_errors=True)


def slot(build: PlannedBuild, target: Target, machine: Mapping[str, str], *, prefix: Path | None = None) -> Slot:
    """The place of this build's product, on a machine with these compilers; ``prefix``: the only one it serves."""
    where = {"python": target.python, "platform": target.platform, "machine": dict(machine)}
    return Slot({**build.inputs, **where, **({"prefix": str(prefix)} if prefix else {})})


def products() -> list[Path]:
    """The directories of all products."""
    found = sorted(each for each in _root().glob("*") if _KEY.fullmatch(each.name))
    return [each for each in found if each.is_dir() and not each.is_symlink()]


def last_used(product: Path) -> float:
    """When it was made or last used, in seconds since the epoch. Raises ``FileNotFoundError``."""
    whole = product / _INPUTS
    return (whole if whole.is_file() else product).stat().st_mtime


def remove(product: Path, on_wait: Callable[[str], None]) -> None:
    """Remove a product of ``products``; waits for processes that build or copy it."""
    with held(_root() / ".locks" / product.name, on_wait):
        shutil.rmtree(product)


def _root() -> Path:
    return paths.user_cache() / "builds"

"""What the tests of installations share."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.conftest import Hidl
from tests.waiting import until


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests here: hidl's own wheel is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def hidl(hidl: Hidl, cache: Path) -> Hidl:
    """hidl with no configuration and no installations."""
    return Hidl(hidl.environment | {"XDG_CACHE_HOME": str(cache)})


@pytest.fixture
def root(hidl: Hidl) -> Path:
    """The default root of hidl's installations."""
    return Path(hidl.environment["XDG_DATA_HOME"]) / "hidl" / "installations"


def recipe(hidl: Hidl, name: str, **keys: object) -> None:
    """Write a user's stack."""
    document = {"name": name, "title": f"test stack {name}", "mpi": "mpich"} | keys
    file = hidl.config / "stacks" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(document))


def site(hidl: Hidl, name: str, text: str) -> None:
    """Write a user's site file."""
    file = hidl.config / "sites" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"name: {name}\n{text}")


def can_pin() -> bool:
    """Whether files can be made immutable here, which stops root too."""
    if shutil.which("chattr") is None:
        return False
    with tempfile.NamedTemporaryFile() as file:
        tried = [subprocess.run(["chattr", f"{sign}i", file.name], capture_output=True, check=False) for sign in "+-"]
    return all(each.returncode == 0 for each in tried)


def processes_of(place: Path) -> list[str]:
    """The command lines of living processes that name ``place``."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal() and int(directory.name) != os.getpid():
            try:
                words = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (directory / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(place) in words and state not in "ZX":
                found.append(words)
    return found


def until_gone(place: Path) -> None:
    """Wait until every process that names ``place`` has ended."""
    until(lambda: not processes_of(place), within=10, otherwise=lambda: processes_of(place))

"""What the tests of the Spack repository share: its modules that import nothing of Spack, and a real Spack if asked."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import REPOSITORY
from tests.waiting import patience

HIDL_REPOSITORY = REPOSITORY / "recipes" / "spack_repo" / "hidl"
PACKAGES = sorted(HIDL_REPOSITORY.glob("packages/*/package.py"))

#: The root of a Spack 1.x, and that of a checkout of spack-packages. Python for it may be named by SPACK_PYTHON.
ROOT, BUILTIN = os.environ.get("HIDL_TEST_SPACK"), os.environ.get("HIDL_TEST_SPACK_PACKAGES")
#: Where Spack's indexes of its thousands of packages stay from one run to the next; without it they are rebuilt.
INDEXES = os.environ.get("HIDL_TEST_SPACK_INDEXES")


def module(name: str) -> ModuleType:
    """A module of the repository by its name; it must import nothing of Spack."""
    specification = importlib.util.spec_from_file_location(f"hidl_spack_{name}", HIDL_REPOSITORY / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    loaded = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(loaded)
    return loaded


@dataclass(frozen=True)
class Spack:
    """Runs ``spack`` with both repositories and directories of its own: nothing of the user's is read or written."""

    place: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end; both streams are captured."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPACK_DISABLE")}
        own = {"SPACK_USER_CONFIG_PATH": str(self.place), "SPACK_USER_CACHE_PATH": str(self.place / "cache")}
        command = [f"{ROOT}/bin/spack", "--color", "never", *arguments]
        return subprocess.run(
            command, env=kept | own, capture_output=True, text=True, timeout=patience(570), check=False
        )

    def configure(self, name: str, text: str) -> None:
        """Write ``<name>.yaml`` of the configuration."""
        (self.place / f"{name}.yaml").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def spack(tmp_path_factory: pytest.TempPathFactory) -> Spack:
    """A real Spack, with this checkout's repository and with gcc of the machine."""
    spack = Spack(tmp_path_factory.mktemp("spack"))
    place = spack.place
    spack.configure("repos", f"repos: {{hidl: {HIDL_REPOSITORY}, builtin: {BUILTIN}/repos/spack_repo/builtin}}\n")
    spack.configure("bootstrap", "bootstrap: {enable: false}\n")
    spack.configure(
        "config",
        f"config: {{install_tree: {{root: {place}/opt}}, build_stage: [{place}/stage], "
        f"source_cache: {place}/sources, misc_cache: {INDEXES or place / 'misc'}, test_stage: {place}/tests}}\n",
    )
    return spack

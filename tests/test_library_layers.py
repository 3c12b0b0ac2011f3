"""Imports of the libraries below ``libs/``, checked by import-linter against the layers in ``pyproject.toml``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

#: Library, and an import that would go up in it: from this module, of that one.
UPWARD = {"hyparflow": ("planning.plan", "training.fit"), "mpi4dask": ("wire", "engine")}


def lint(libraries: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            str(Path(sys.executable).with_name("lint-imports")),
            "--no-cache",
            "--config",
            str(REPOSITORY / "pyproject.toml"),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(libraries / name) for name in UPWARD)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_go_down() -> None:
    done = lint(REPOSITORY / "libs")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("library", UPWARD)
def test_an_upward_import_is_reported(library: str, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "libs", tmp_path / "libs")
    importer, imported = UPWARD[library]
    with (tmp_path / "libs" / library / library / f"{importer.replace('.', '/')}.py").open("a") as file:
        file.write(f"\nimport {library}.{imported}\n")
    done = lint(tmp_path / "libs")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{library}.{importer} -> {library}.{imported}" in done.stdout

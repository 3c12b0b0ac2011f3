"""Imports of hidl and its libraries, checked by import-linter against the layers in ``pyproject.toml``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

#: The root packages of the contracts, and the directories that contain them.
ROOTS = {
    "hidl_cli": ".",
    "hidl_twin": "libs/hidl_twin",
    "hidl_workloads": ".",
    "hyparflow": "libs/hyparflow",
    "mpi4dask": "libs/mpi4dask",
}

#: An import that a contract forbids: from this module, of that one.
FORBIDDEN = {
    "up a layer": ("hidl_cli.site.load", "hidl_cli.plan.planning"),
    "in a circle": ("hidl_cli.errors", "hidl_cli.inputs"),
    "of the twin": ("hidl_cli.site.load", "hidl_twin.marks"),
    "of hidl in a job": ("hidl_workloads.metrics", "hidl_cli.errors"),
    "up in hyparflow": ("hyparflow.planning.plan", "hyparflow.training.fit"),
    "up in mpi4dask": ("mpi4dask.wire", "mpi4dask.engine"),
}


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", str(REPOSITORY / "pyproject.toml")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(tree / each) for each in dict.fromkeys(ROOTS.values()))},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_go_down() -> None:
    done = lint(REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_forbidden_import_is_reported(case: str, tmp_path: Path) -> None:
    for name, directory in ROOTS.items():
        shutil.copytree(
            REPOSITORY / directory / name, tmp_path / directory / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    importer, imported = FORBIDDEN[case]
    root = ROOTS[importer.partition(".")[0]]
    with (tmp_path / root / f"{importer.replace('.', '/')}.py").open("a") as file:
        file.write(f"\nimport {imported}\n")
    done = lint(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    if case == "in a circle":
        assert "No cycles are allowed in hidl_cli." in done.stdout
    else:
        assert f"{importer} -> {imported}" in done.stdout

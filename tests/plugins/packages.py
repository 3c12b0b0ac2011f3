"""Packages with plug-ins, built and installed by uv without a network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.waiting import patience

TOY = Path(__file__).with_name("hidl_toy")


def install(project: Path, target: Path) -> Path:
    """Install a project into a directory for ``PYTHONPATH``; return the directory."""
    words = ["uv", "pip", "install", "--quiet", "--offline", "--no-build-isolation", "--no-deps"]
    python = ["--python", sys.executable, "--target", str(target)]
    subprocess.run([sys.executable, "-m", *words, *python, str(project)], check=True, timeout=patience(120))
    return target


def write_project(directory: Path, name: str, points: Mapping[str, Mapping[str, str]], code: str) -> Path:
    """Write a project of one module with these entry points (group -> name -> target); return its directory."""
    directory.mkdir(parents=True)
    groups = "".join(
        f'\n[project.entry-points."{group}"]\n' + "".join(f'{key} = "{target}"\n' for key, target in mine.items())
        for group, mine in points.items()
    )
    (directory / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
        f'[project]\nname = "{name}"\nversion = "0.1"\n{groups}'
    )
    (directory / f"{name.replace('-', '_')}.py").write_text(code)
    return directory

"""Environments as users have them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path


def venv(place: Path) -> Path:
    """A venv without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return place


def conda(place: Path) -> Path:
    """A prefix with a Python of its own, conda's records and activation scripts."""
    base = Path(sys.base_prefix)
    library = f"lib/python3.{sys.version_info.minor}"
    (place / "bin").mkdir(parents=True)
    shutil.copy(base / "bin" / f"python3.{sys.version_info.minor}", place / "bin" / "python")
    (place / library / "site-packages").mkdir(parents=True)
    for entry in (base / library).iterdir():
        if entry.name != "site-packages":
            (place / library / entry.name).symlink_to(entry)
    for entry in (base / "lib").glob("libpython*"):
        (place / "lib" / entry.name).symlink_to(entry)
    records = place / "conda-meta"
    records.mkdir()
    (records / "mpich-4.2.3-h1a2b_100.json").write_text("{}")
    (records / "libgcc-ng-13.2.0-h1_5.json").write_text("{}")
    (records / "state").write_text(json.dumps({"env_vars": {"FROM_STATE": "a b; $HOME"}}))
    scripts = place / "etc" / "conda" / "activate.d"
    scripts.mkdir(parents=True)
    (scripts / "a.sh").write_text('export FROM_SCRIPT="${NOT_SET_ANYWHERE}in $CONDA_PREFIX"\nfalse\n')
    return place

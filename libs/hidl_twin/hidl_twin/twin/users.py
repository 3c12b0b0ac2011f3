"""Directories of a twin's users, separate from this machine's installations, runs and configuration."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import paths

_OWN = ("config", "data", "state")


@dataclass(frozen=True)
class Users:
    """XDG base directories below ``directory``, instead of this user's."""

    directory: Path

    def environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """``environ`` with these directories, without variables of a Slurm job or another cluster."""
        own = {f"XDG_{kind.upper()}_HOME": str(self.directory / kind) for kind in _OWN}
        kept = {name: value for name, value in environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**kept, **own}

    def make(self) -> None:
        """Create missing directories; the configuration starts as a copy of this user's."""
        config = self.directory / "config" / "hidl"
        if paths.user_config().is_dir() and not config.exists():
            shutil.copytree(paths.user_config(), config, symlinks=True)
        for kind in _OWN:
            (self.directory / kind).mkdir(parents=True, exist_ok=True)

    def remove_installations(self) -> None:
        """Remove installations; keep runs, validations and configuration."""
        shutil.rmtree(self.directory / "data", ignore_errors=True)

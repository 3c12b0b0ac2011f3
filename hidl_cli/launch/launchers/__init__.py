"""Launchers: start ranks inside an allocation. One module each; ``hidl_cli.launchers`` names them."""

from __future__ import annotations

from typing import cast

from hidl_cli.launch.launchers.contract import Launcher
from hidl_cli.launchers import LAUNCHERS


def launcher(name: str) -> Launcher:
    """Return the launcher of that name; ``UsageError`` if unknown."""
    return cast(Launcher, LAUNCHERS.get(name))

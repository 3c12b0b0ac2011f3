"""Launchers that start ranks inside an allocation; ``hidl_cli.launchers`` lists them."""

from __future__ import annotations

from typing import cast

from hidl_cli.launch.launchers.contract import Launcher
from hidl_cli.launchers import LAUNCHERS


def launcher(name: str) -> Launcher:
    """Return a launcher by name; raises ``UsageError`` if it is unknown."""
    return cast(Launcher, LAUNCHERS.get(name))

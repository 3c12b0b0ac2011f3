"""The commands of an installation, as plans show them and logs record them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hidl_cli.quoting import sh_line


@dataclass(frozen=True)
class InstallStep:
    """One command of an installation.

    ``variables`` are added to the environment that it gets. ``without_network`` is the same command for the case that
    the cache holds all that it needs: it is tried first, and takes half the time.
    """

    title: str
    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    without_network: tuple[str, ...] | None = None


def log_command(log: Path, argv: Sequence[str]) -> None:
    """Note in the log which command the output that follows is of."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {sh_line(argv)}\n")

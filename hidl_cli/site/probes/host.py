"""The machine that probes ask: which programs it has, what they answer, and what its files hold."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hidl_cli import process
from hidl_cli.errors import ProcessFailed
from hidl_cli.site import hidl_cluster
from hidl_cli.site.cgroups import read

_SECONDS = 10.0


class Host(Protocol):
    """What a probe may ask."""

    @property
    def hostname(self) -> str:
        """The host's name as its kernel says it."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of this process."""

    @property
    def failures(self) -> Sequence[str]:
        """The commands that were there but gave no answer, and why."""

    def which(self, program: str) -> str | None:
        """Where a program lies on the PATH; None where it is not there."""

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        """What a command prints, with its ``stderr`` if wanted; None where it fails or is not there.

        It is ended after ``seconds``.
        """

    def read(self, path: str) -> str:
        """The text of a small file of the kernel; empty where there is none."""

    def list(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none where there is no such directory."""


@dataclass(frozen=True)
class HostBehind:
    """Passes every question on to ``host``."""

    host: Host

    @property
    def hostname(self) -> str:
        """The host's name, from its kernel."""
        return self.host.hostname

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of this process."""
        return self.host.environment

    @property
    def failures(self) -> Sequence[str]:
        """Commands that failed, and why."""
        return self.host.failures

    def which(self, program: str) -> str | None:
        """The path of a program on PATH."""
        return self.host.which(program)

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        """The output of a command; None if it fails or is missing."""
        return self.host.ask(*command, seconds=seconds, stderr=stderr)

    def read(self, path: str) -> str:
        """The text of a small file, such as those in /proc."""
        return self.host.read(path)

    def list(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted."""
        return self.host.list(directory)


@dataclass
class ThisHost:
    """The machine that hidl runs on."""

    environment: Mapping[str, str] = field(default_factory=hidl_cluster.environment)
    root: Path = Path("/")
    hostname: str = field(default_factory=lambda: os.uname().nodename)
    failures: list[str] = field(default_factory=list)

    def which(self, program: str) -> str | None:
        """Where a program lies on the PATH."""
        return shutil.which(program, path=self.environment.get("PATH", ""))

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        """What a command prints, in the language of the documentation; None where it fails or is not there."""
        if self.which(command[0]) is None:
            return None
        try:
            completed = process.run(command, env={**self.environment, "LC_ALL": "C"}, timeout=seconds)
        except ProcessFailed as error:
            why = " ".join(error.output.split()) or error.message
            self.failures.append(f"`{' '.join(command)}` failed: {why[:300]}")
            return None
        return completed.stdout + completed.stderr if stderr else completed.stdout

    def read(self, path: str) -> str:
        """The text of a small file of the kernel."""
        return read(self.root / path.lstrip("/"))

    def list(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted."""
        try:
            return tuple(sorted(entry.name for entry in (self.root / directory.lstrip("/")).iterdir()))
        except OSError:
            return ()


def split_blocks(start: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    """Split the output of a command where ``start`` matches: its first group, and the text up to the next match."""
    found = list(start.finditer(text))
    for number, one in enumerate(found, start=1):
        yield one[1], text[one.end() : found[number].start() if number < len(found) else None]

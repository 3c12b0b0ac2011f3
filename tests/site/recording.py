"""Recorded systems: a host that answers what a real one printed (``recorded/<system>/``, see its README)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hidl_cli.site.machine import Machine
from hidl_cli.site.probes.survey import Found, survey

DIRECTORY = Path(__file__).parent / "recorded"
SYSTEMS = sorted(path.name for path in DIRECTORY.iterdir() if path.is_dir())


@dataclass
class RecordedHost:
    """Answers from a directory; ``answers`` come before it, a command's words joined by spaces each."""

    directory: Path
    hostname: str = "nowhere"
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    failures: tuple[str, ...] = ()

    def which(self, program: str) -> str | None:
        return self.programs.get(PurePosixPath(program).name)

    def ask(self, *command: str, seconds: float = 0, stderr: bool = False) -> str | None:
        words = " ".join((PurePosixPath(command[0]).name, *command[1:]))
        self.asked.append(words)
        if words in self.answers:
            return self.answers[words]
        file = self.directory / (re.sub(r"[^A-Za-z0-9._]+", "-", words) + ".txt")
        return file.read_text(encoding="utf-8") if self.which(command[0]) and file.is_file() else None

    def read(self, path: str) -> str:
        file = self.directory / "root" / path.lstrip("/")
        return file.read_text(encoding="utf-8").strip() if file.is_file() else ""

    def list(self, directory: str) -> tuple[str, ...]:
        place = self.directory / "root" / directory.lstrip("/")
        return tuple(sorted(path.name for path in place.iterdir())) if place.is_dir() else ()


def recorded(system: str) -> RecordedHost:
    """The host of that system."""
    about = json.loads((DIRECTORY / system / "host.json").read_text(encoding="utf-8"))
    return RecordedHost(DIRECTORY / system, about["hostname"], about["environment"], about["programs"])


def found(system: str) -> Found:
    """All that the probes find on that system."""
    about = json.loads((DIRECTORY / system / "host.json").read_text(encoding="utf-8"))
    return survey(recorded(system), Machine(**about["machine"]))

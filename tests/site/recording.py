"""Recorded systems: a host that answers what a real one printed (``recorded/<system>/``, see its README)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hidl_cli.site.probes import survey as recordings
from hidl_cli.site.probes.survey import SurveyResult, survey

DIRECTORY = Path(__file__).parent / "recorded"
SYSTEMS = sorted(path.name for path in DIRECTORY.iterdir() if path.is_dir())


@dataclass
class RecordedHost(recordings.RecordedHost):
    """Answers from a directory; ``answers`` come before it, a command's words joined by spaces each."""

    answers: Mapping[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def ask(self, *command: str, seconds: float = 0, stderr: bool = False) -> str | None:
        words = " ".join((PurePosixPath(command[0]).name, *command[1:]))
        self.asked.append(words)
        return self.answers[words] if words in self.answers else super().ask(*command, seconds=seconds, stderr=stderr)


def recorded(system: str) -> RecordedHost:
    """The host of that system."""
    host = recordings.load_host(DIRECTORY / system)
    return RecordedHost(host.directory, host.hostname, host.environment, host.programs, host.failures, host.machine)


def found(system: str) -> SurveyResult:
    """All that the probes find on that system."""
    return survey(recorded(system), recorded(system).machine)

"""A host that runs each command once, for probes that run side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

from hidl_cli.site.probes.host import Host

_SECONDS = 5.0  # per command: a hanging file server must not stop the doctor


@dataclass(frozen=True)
class CachedHost:
    """Keeps the output of every command. Threads that ask for the same command share one run."""

    host: Host
    _answers: dict[tuple[str, ...], Future[str | None]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

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
        question = (*command, "2>&1" if stderr else "")
        with self._lock:
            known = self._answers.get(question)
            answer = self._answers.setdefault(question, Future())
        if known is None:
            try:
                answer.set_result(self.host.ask(*command, seconds=seconds, stderr=stderr))
            except BaseException as error:
                answer.set_exception(error)
                raise
        return answer.result()

    def read(self, path: str) -> str:
        """The text of a small file, such as those in /proc."""
        return self.host.read(path)

    def list(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted."""
        return self.host.list(directory)

"""A host that is asked each question once: several probes, side by side, want the same answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

from hidl_cli.site.probes.host import Host

_SECONDS = 5.0  # a doctor who waits for a hanging file server is no help


@dataclass(frozen=True)
class Once:
    """Remembers what commands answered; who asks while another waits for that very answer gets it too."""

    host: Host
    _answers: dict[tuple[str, ...], Future[str | None]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @property
    def hostname(self) -> str:
        """The host's name as its kernel says it."""
        return self.host.hostname

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of this process."""
        return self.host.environment

    @property
    def failures(self) -> Sequence[str]:
        """The commands that were there but gave no answer, and why."""
        return self.host.failures

    def which(self, program: str) -> str | None:
        """Where a program lies on the PATH."""
        return self.host.which(program)

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        """What a command prints; None where it fails or is not there."""
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
        """The text of a small file of the kernel."""
        return self.host.read(path)

    def list(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted."""
        return self.host.list(directory)

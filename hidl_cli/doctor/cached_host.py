"""A host that runs each command once, for probes that run side by side."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

from hidl_cli.site.probes.host import HostBehind

_SECONDS = 5.0  # per command: a hanging file server must not stop the doctor


@dataclass(frozen=True)
class CachedHost(HostBehind):
    """Keeps the output of every command. Threads that ask for the same command share one run."""

    _answers: dict[tuple[str, ...], Future[str | None]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        """The output of a command; None if it fails or is missing."""
        question = (*command, "2>&1" if stderr else "")
        with self._lock:
            known = self._answers.get(question)
            answer = self._answers.setdefault(question, Future())
        if known is None:
            try:
                answer.set_result(super().ask(*command, seconds=seconds, stderr=stderr))
            except BaseException as error:
                answer.set_exception(error)
                raise
        return answer.result()

"""A batch system's own programs: run with a time limit, and without variables that change their answers."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hidl_cli import process
from hidl_cli.errors import ProcessFailed
from hidl_cli.process import Completed

QUERY_SECONDS = 30.0
SUBMIT_SECONDS = 120.0


class NoAnswer(Exception):
    """The batch system did not answer; the message says why."""


class NoProgram(NoAnswer):
    """The batch system's programs are not on PATH."""


class NotTaken(NoAnswer):
    """The batch system did not answer, and certainly took no job."""


@dataclass(frozen=True)
class Programs:
    """The programs of one batch system.

    ``dropped``: prefixes of variables of an enclosing job, and of options in disguise, which the programs do not get;
    ``kept``: exceptions; ``added``: variables that they get. ``unreachable`` matches complaints that the server did
    not answer; ``waiting``: lines that a program prints until it has its answer, which is what counts then.
    """

    dropped: tuple[str, ...]
    unreachable: re.Pattern[str]
    waiting: re.Pattern[str] = re.compile(r"(?!)")
    kept: frozenset[str] = frozenset()
    added: Mapping[str, str] = field(default_factory=dict)
    variables: Callable[[], Mapping[str, str]] = lambda: os.environ

    def environment(self, keep: Collection[str] = ()) -> dict[str, str]:
        """Return the environment that the programs get; ``keep`` names further exceptions."""
        return {
            name: value
            for name, value in self.variables().items()
            if name in self.kept or name in keep or not name.startswith(self.dropped)
        } | dict(self.added)

    def call(
        self,
        *command: str | Path,
        timeout: float = QUERY_SECONDS,
        cwd: Path | None = None,
        keep: Collection[str] = (),
    ) -> Completed:
        """Run a program and return what it printed, whatever its exit status.

        Raises ``NoAnswer`` after ``timeout`` seconds, or if the program says that the server did not answer;
        ``NoProgram`` if it is not found.
        """
        try:
            completed = process.run(command, timeout=timeout, check=False, cwd=cwd, env=self.environment(keep))
        except ProcessFailed as error:
            if error.status == -signal.SIGKILL:
                raise NoAnswer(f"{command[0]} had no answer within {timeout:g} s") from error
            raise NoProgram(f"{command[0]} cannot be started: {error.output}") from error
        return completed if completed.status == 0 else self.answer_of(completed)

    def answer_of(self, failed: Completed) -> Completed:
        """Return what a program that failed printed, without the lines from before its answer."""
        printed = [text.splitlines() for text in (failed.stdout, failed.stderr)]
        stdout, stderr = (
            "\n".join(line for line in lines if line.strip() and not self.waiting.search(line)) for lines in printed
        )
        is_silent = not (stdout or stderr) and any(printed)
        if is_silent or self.unreachable.search(f"{stderr}\n{stdout}"):
            raise NoAnswer(complaint(failed))
        return replace(failed, stdout=stdout, stderr=stderr)


def batches(ids: Sequence[str], size: int = 1000) -> Iterator[Sequence[str]]:
    """Split job ids into command lines of ``size`` ids: a kernel accepts 2 MiB of words with the environment."""
    return (ids[first : first + size] for first in range(0, len(ids), size))


def whole_lines(completed: Completed) -> list[str]:
    """Return the lines of a listing. Raises ``NoAnswer`` if its last line was cut, since jobs may be missing then."""
    if completed.status == 0 and completed.stdout and not completed.stdout.endswith("\n"):
        raise NoAnswer(f"{Path(completed.command[0]).name} printed an incomplete answer")
    return completed.stdout.splitlines()


def complaint(completed: Completed) -> str:
    """Return a program's error message on one line, without its own name before each line; else its output."""
    lines = (completed.stderr.strip() or completed.stdout.strip()).splitlines()
    own = re.escape(Path(completed.command[0]).name)
    short = [re.sub(rf"^({own}(-\w+)?: )?((error|fatal): )?", "", line, flags=re.IGNORECASE).strip() for line in lines]
    return "; ".join(line for line in short[-5:] if line) or f"status {completed.status}"

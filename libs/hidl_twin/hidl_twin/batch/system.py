"""What a stand-in for a scheduler adds to the common part."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from hidl_twin.batch.settings import Host, Settings
from hidl_twin.batch.store import Job, Store

Command = Callable[[Store, Sequence[str]], None]


class System(ABC):
    """One scheduler. Stateless: everything about jobs is in the ``Store``."""

    name: str  # as sites name it: "lsf"; also the name of its directory in the cluster's
    title: str  # "IBM Spectrum LSF"
    daemon: str  # the name of its daemon
    variable: str  # the environment variable by which its commands find the cluster
    ids: tuple[int, int] = (101, 1)  # the first job's number, and the distance to the next
    commands: ClassVar[Mapping[str, Command]]  # the scheduler's own
    launchers: ClassVar[Mapping[str, Command]] = {}  # what users call beside them
    launcher_place: str = "bin"  # where these lie; another place than "bin" is on PATH if the site has the launcher
    launcher: str = ""  # and how hidl calls it
    internal: ClassVar[Mapping[str, Command]] = {}  # what these start on hosts

    def place(self, directory: Path) -> Path:
        """What ``variable`` is, for the scheduler in ``directory``."""
        return directory

    @abstractmethod
    def environment(self, store: Store, job: Job) -> dict[str, str]:
        """The variables that a job gets beside those that it was submitted with."""

    def obstacle(self, store: Store, job: Job) -> str:
        """Why a waiting job cannot start although hosts are free; empty if it can."""
        return ""

    def fits(self, job: Job, host: Host) -> bool:
        """Whether a host is of the kind that the job asks for."""
        return True

    def is_interactive(self, job: Job) -> bool:
        """Whether the submitting command runs the job on its own terminal."""
        return False

    def directory(self, job: Job) -> Path:
        """Where the script starts."""
        return Path(job.cwd)

    def files(self, store: Store, job: Job) -> tuple[Path, Path]:
        """Where the script's stdout and stderr go while it runs."""
        directory = store.job_directory(job.id)
        return directory / "out", directory / "err"

    def signals(self, reason: str) -> Sequence[signal.Signals]:
        """What ends a job, one after another, until one does."""
        return (signal.SIGTERM, signal.SIGKILL)

    def concluded(self, store: Store, job: Job, status: int, reason: str) -> None:
        """Do what the scheduler does with a job's output once it has ended. Called on the job's first host."""
        return

    @abstractmethod
    def unanswered(self, store: Store, command: str) -> None:
        """Do what the scheduler's commands do if no daemon answers: end, or return once one does."""

    @abstractmethod
    def host_states(self, store: Store) -> dict[str, str]:
        """The state of each compute host, in the scheduler's words."""

    def settings(self, settings: Settings, rules: Mapping[str, str], account: str) -> Settings:
        """Add the scheduler's own to ``settings`` of a twin.

        ``rules``: options that the site requires (time, account, partition, ...); ``account``: the option for it.
        """
        return settings

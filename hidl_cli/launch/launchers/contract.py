"""What a launcher is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Library


@dataclass(frozen=True)
class Request:
    """Start ``program`` on every rank of ``placement``.

    ``environment``: variables that every rank must get, value by value (tuning and threads). ``forward``: names of
    variables that are set in the job script only when it runs (PATH, HIDL_METRICS, ...) and that every rank must get
    too, as far as they are set. ``hostfile``: the file, relative to the run's directory, that lists the hosts of this
    step, one a line as ``Launch.host_line`` says. ``on_one_host``: the allocation is the machine itself, with no
    scheduler. ``gpus_per_rank``: None where the nodes have no GPUs.
    """

    placement: Placement
    program: tuple[str, ...]
    mpi: Library
    environment: Mapping[str, str] = field(default_factory=dict)
    forward: tuple[str, ...] = ()
    hostfile: str = "hosts"
    on_one_host: bool = False
    gpus_per_rank: int | None = None

    def arguments_for(self, launcher: str) -> tuple[str, ...]:
        """Further arguments that the site gives ``launcher`` for this library."""
        return tuple(self.mpi.launcher_arguments.get(launcher, ()))


@dataclass(frozen=True)
class Launch:
    """How the job script starts the ranks: ``argv``, with ``environment`` set for this command beside what the script
    exports.

    Where ``forwarded`` is not empty, the script puts words for each of these names that is set between ``argv`` and
    ``rest``; else ``rest`` is empty. The words are ``NAME=value``, quoted for a remote shell, or, where
    ``forward_option`` is given, this option and the name alone. ``host_line`` is the form of a line of the host file,
    ``{host}`` its placeholder. ``status_on_stderr``: the launcher's own exit status is 0 or 1 only, and the script
    reads the ranks' from its stderr.
    ``host_option`` is how several launches at once are each held to a host of their own: an option that takes its
    name, empty where the host file does it; None: this launcher cannot be told.
    """

    argv: tuple[str, ...]
    forwarded: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    host_line: str = "{host}"
    status_on_stderr: bool = False
    forward_option: str | None = None
    host_option: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The whole command for people to read: what is known before the job runs."""
        return (*self.argv, *self.rest)

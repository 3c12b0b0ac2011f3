"""The contract of launchers: a request, and the launch that answers it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from hidl_cli.launch.placement import Placement
from hidl_cli.launchers import LauncherTraits
from hidl_cli.mpi import Library


@dataclass(frozen=True)
class Gpus:
    """How many GPUs each node has, and each rank: ``per_rank`` is 1 where more ranks than GPUs share them."""

    per_node: int
    per_rank: int

    @classmethod
    def of(cls, per_node: int | None, ranks_per_node: int) -> Gpus | None:
        """Divide a node's GPUs among its ranks; None if it has none, or an unknown number."""
        return cls(per_node, max(1, per_node // ranks_per_node)) if per_node else None


@dataclass(frozen=True)
class Request:
    """Start ``program`` on every rank of ``placement``.

    ``environment``: variables with the values that every rank must get (tuning and threads). ``forward``: names of
    variables that the job script sets only when it runs (PATH, HIDL_METRICS, ...); every rank must get those that are
    set. ``hostfile``: the file, relative to the run's directory, that lists the hosts of this step, one per line as
    ``Launch.host_line`` says. ``on_one_host``: the allocation is this machine, without a scheduler; ``through_ssh``:
    hosts without a scheduler.
    ``gpus``: None if the nodes have none, or none is requested.
    """

    placement: Placement
    program: tuple[str, ...]
    mpi: Library
    environment: Mapping[str, str] = field(default_factory=dict)
    forward: tuple[str, ...] = ()
    hostfile: str = "hosts"
    on_one_host: bool = False
    through_ssh: bool = False
    gpus: Gpus | None = None

    @property
    def shares_gpus(self) -> bool:
        """Are there fewer GPUs than ranks on a full node?"""
        return self.gpus is not None and self.placement.ranks_per_node * self.gpus.per_rank > self.gpus.per_node

    @property
    def fills_nodes(self) -> bool:
        """Have all nodes the same number of ranks?"""
        return self.placement.ranks == self.placement.nodes * self.placement.ranks_per_node

    def arguments_for(self, launcher: str) -> tuple[str, ...]:
        """Return further arguments that the site gives ``launcher`` for this library."""
        return tuple(self.mpi.launcher_arguments.get(launcher, ()))


@dataclass(frozen=True)
class Launch:
    """How the job script starts the ranks: ``argv``, with ``environment`` added to what the script exports.

    If ``forwarded`` is not empty, the script inserts words for each of these names that is set between ``argv`` and
    ``rest``; else ``rest`` is empty. The words are ``NAME=value``, quoted for a remote shell, or, if
    ``forward_option`` is given, this option and the name. ``host_line`` is the form of a line of the host file, with
    the placeholder ``{host}``. ``status_on_stderr``: the launcher's own exit status is only 0 or 1, and the script
    reads the ranks' from its stderr. ``host_option`` holds each of several simultaneous launches to one host: the begin
    of an option that ends with its name (``--nodelist=``), empty if the host file does it; None: unsupported.
    ``input_option``: the option that gives standard input to rank 0 alone; None: the launcher does so anyway.
    ``preloaded_by``: the variable that the script exports with the path of the MPI library's ``libmpi.so``, which it
    finds at run time.
    """

    argv: tuple[str, ...]
    forwarded: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    host_line: str = "{host}"
    status_on_stderr: bool = False
    forward_option: str | None = None
    host_option: str | None = None
    input_option: str | None = None
    preloaded_by: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The command for people to read, as far as it is known before the job runs."""
        return (*self.argv, *self.rest)


class Launcher(LauncherTraits, ABC):
    """Starts a program on every rank of a placement."""

    @abstractmethod
    def launch(self, request: Request) -> Launch:
        """Return the launch of the request; ``InvalidInput`` if this launcher cannot serve it."""

"""The interface of launchers: a request for ranks, and the launch that starts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from hidl_cli.launch.placement import Placement
from hidl_cli.launchers import LauncherTraits
from hidl_cli.mpi import Library

#: Variables for a launcher that starts its daemons through srun. In a job with --threads-per-core=1, srun would bind
#: the daemons to one core. With MpiDefault=pmix or pmi2, srun would set variables that the ranks inherit from the
#: daemons: MPICH 5 then fails in MPI_Init ("Found both env vars PMI_SIZE and PMIX_NAMESPACE", pmodels/mpich#7957).
DAEMONS_OF_SRUN = {"SLURM_CPU_BIND": "none", "SLURM_MPI_TYPE": "none"}


@dataclass(frozen=True)
class Gpus:
    """The number of GPUs per node and per rank; ``per_rank`` is 1 if several ranks share a GPU."""

    per_node: int
    per_rank: int

    @classmethod
    def of(cls, per_node: int | None, ranks_per_node: int) -> Gpus | None:
        """Divide a node's GPUs among its ranks; return None if it has no GPUs or their number is unknown."""
        return cls(per_node, max(1, per_node // ranks_per_node)) if per_node else None


@dataclass(frozen=True)
class Request:
    """A request to start ``program`` on every rank of ``placement``.

    Attributes:
        environment: Variables for every rank (tuning and threads).
        forward: Names of variables that the job script sets at run time (PATH, HIDL_METRICS, ...). Every rank must
            receive those that are set.
        hostfile: File with the hosts of this step in the format of ``Launch.host_line``, relative to the run directory.
        on_one_host: Whether the allocation is this machine, without a scheduler.
        through_ssh: Whether the allocation consists of hosts without a scheduler.
        gpus: GPUs of the nodes; None if they have no GPUs or none are requested.
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
        """True if a full node has fewer GPUs than ranks."""
        return self.gpus is not None and self.placement.ranks_per_node * self.gpus.per_rank > self.gpus.per_node

    @property
    def fills_nodes(self) -> bool:
        """True if all nodes have the same number of ranks."""
        return self.placement.ranks == self.placement.nodes * self.placement.ranks_per_node

    def arguments_for(self, launcher: str) -> tuple[str, ...]:
        """Return the additional arguments that the site sets for ``launcher`` and this library."""
        return tuple(self.mpi.launcher_arguments.get(launcher, ()))


@dataclass(frozen=True)
class Launch:
    """The command with which the job script starts the ranks: ``argv``, run with ``environment`` added.

    Attributes:
        forwarded: Names of variables that the script inserts between ``argv`` and ``rest`` if they are set at run time,
            as ``NAME=value`` quoted for a remote shell, or as ``forward_option`` and the name.
        rest: The end of the command, which is empty unless variables are forwarded.
        host_line: Format of a line of the host file.
        status_on_stderr: Whether the launcher only exits with 0 or 1, in which case the script reads the ranks' exit
            status from stderr.
        host_option: Beginning of an option that ends with a host name (``--nodelist=``) and restricts one of several
            simultaneous launches to this host. It is empty if the host file does this, and None if this is unsupported.
        input_option: Option that passes standard input to rank 0 only, or None if the launcher does so by default.
        preloaded_by: Variable in which the script exports the path of the MPI library's ``libmpi.so``, which it finds
            at run time.
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
        """The command as shown to users before the job runs."""
        return (*self.argv, *self.rest)


class Launcher(LauncherTraits, ABC):
    """A launcher that starts a program on every rank of a placement."""

    @abstractmethod
    def launch(self, request: Request) -> Launch:
        """Return the command for the request; raises ``InvalidInput`` if this launcher does not support it."""

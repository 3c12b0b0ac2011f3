"""Options for the allocation of a run, a shell or another job.

The command line imports this module for its help, so it imports little.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

from hidl_cli.errors import UsageError
from hidl_cli.inputs.options import option

if TYPE_CHECKING:
    from hidl_cli.launch.hosts import Hosts

_TIMES = "use Slurm's format: 90 (minutes), 15:00 (minutes:seconds), 02:00:00, 1-12 (days-hours) or 1-12:30:00"
_RESOURCES = "Resources"
_JOB = "Job"


@dataclass(frozen=True, kw_only=True)
class AllocationOptions:
    """Options for the allocation of a run; None selects the default.

    Attributes:
        site: Name of the site.
        nodes: Number of nodes.
        hosts: Hosts to run on instead of using the site's scheduler (see ``on_hosts``).
        hostfile: File with these hosts.
        share_hosts: Do not wait for other runs on these hosts.
        gpus_per_node: GPUs to request per node: all of the node's by default, 0 for none.
        time: Time limit in seconds, or as text in Slurm's format.
    """

    site: str | None = option(
        None, "--site", help="Site to use (default: the detected one, else local).", completion="sites", panel=_JOB
    )
    nodes: int | None = option(
        None, "--nodes", minimum=1, help="Number of nodes (default: 1, or all of --hosts).", panel=_RESOURCES
    )
    hosts: Hosts | Sequence[str] | str | None = option(
        None,
        "--hosts",
        metavar="HOST,HOST",
        help="Run on these hosts over ssh, without the site's scheduler: gpu11,gpu12 or gpu[11-12].",
        completion="hosts",
        panel=_RESOURCES,
    )
    hostfile: str | PathLike[str] | None = option(
        None,
        "--hostfile",
        metavar="FILE",
        help="Read the hosts from a host file of MPICH, Open MPI or MVAPICH (host, host:4, ...).",
        panel=_RESOURCES,
    )
    share_hosts: bool = option(
        False,
        "--share-hosts",
        help="With --hosts: start immediately, even if another run uses the hosts.",
        panel=_RESOURCES,
    )
    gpus_per_node: int | None = None
    partition: str | None = option(
        None,
        "--partition",
        "-p",
        help="Partition (default: the site's).",
        completion="partitions",
        panel=_JOB,
    )
    account: str | None = option(None, "--account", "-A", help="Account to charge.", panel=_JOB)
    qos: str | None = option(None, "--qos", "-q", help="Quality of service.", panel=_JOB)
    constraint: str | None = option(None, "--constraint", "-C", help="Required node features.", panel=_JOB)
    reservation: str | None = option(None, "--reservation", help="Reservation to use.", panel=_JOB)
    time: float | str | None = option(
        None,
        "--time",
        "-t",
        metavar="MINUTES|HH:MM:SS",
        help="Time limit of the whole job; 10 means ten minutes.",
        panel=_JOB,
    )

    @property
    def named_hosts(self) -> Hosts | None:
        """The hosts to run on; raises ``InvalidInput`` for invalid ones."""
        from hidl_cli.launch.hosts import Hosts, named_hosts

        return self.hosts if isinstance(self.hosts, Hosts) else named_hosts(self.hosts, self.hostfile)

    @property
    def time_limit(self) -> float | None:
        """The time limit in seconds; raises ``UsageError`` if it is invalid or not positive."""
        if isinstance(self.time, str):
            return limit_from(self.time)
        if self.time is not None and not self.time > 0:
            hint = 'for example 600 (seconds) or "00:10:00"'
            raise UsageError(f"invalid time {self.time!r}: must be positive", hint=hint)
        return self.time


def seconds(text: str) -> float:
    """Convert a time in one of Slurm's formats (sbatch(1), ``--time``) to seconds.

    The formats are ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours``, ``days-hours:minutes``
    and ``days-hours:minutes:seconds``, so ``10`` is ten minutes. Raises ``UsageError`` for anything else.
    """
    from hidl_cli.inputs.check import PATTERN_OF_TIMES  # imports pydantic

    if not re.fullmatch(PATTERN_OF_TIMES, text):
        raise UsageError(f"invalid time {text!r}", hint=_TIMES)
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, secs = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, secs = parts
    else:
        hours, minutes, secs = [0, *parts, 0][:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs)


def limit_from(text: str) -> float:
    """Convert the value of ``--time`` to seconds; raise ``UsageError`` if it is invalid or zero."""
    if (limit := seconds(text)) == 0:
        raise UsageError("the time limit must be positive", hint=_TIMES)
    return limit


def clock(seconds: float) -> str:
    """Format seconds as ``hours:minutes:seconds``; hours may exceed 24."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"

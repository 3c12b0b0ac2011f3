"""Options that the command line and the API share: their declaration, and those of allocations and installations.

Options are declared once, as dataclass fields with their command-line name, help text and limits. This module has few
imports because the command line needs it for its help texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any

from hidl_cli.errors import UsageError

if TYPE_CHECKING:
    from hidl_cli.launch.hosts import Hosts


_KEY = "hidl.option"
_TIMES = "use Slurm's format: 90 (minutes), 15:00 (minutes:seconds), 02:00:00, 1-12 (days-hours) or 1-12:30:00"
_RESOURCES = "Resources"
_JOB = "Job"


@dataclass(frozen=True)
class CommandLineOption:
    """A field in an options dataclass, as a command-line option.

    Attributes:
        names: Names such as ``--account`` and ``-A``. An option that is on by default has a single name, ``--no-...``.
        help: Help text.
        panel: Group that contains the option in the help.
        metavar: Placeholder for the value in the help.
        minimum: Smallest number.
        maximum: Largest number.
        completion: Name of the function ``complete_<name>`` that completes the value.
        repeatable: True if the option may be given several times. Its field is then a list.
    """

    names: tuple[str, ...]
    help: str
    panel: str
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    completion: str | None = None
    repeatable: bool = False


def option(
    default: Any,
    *names: str,
    help: str,
    panel: str,
    metavar: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    completion: str | None = None,
    repeatable: bool = False,
) -> Any:
    """Declare a field that is also a command-line option; see ``CommandLineOption``."""
    described = CommandLineOption(names, help, panel, metavar, minimum, maximum, completion, repeatable)
    return field(default=default, metadata={_KEY: described})


def command_line_options(options: type) -> Mapping[str, CommandLineOption]:
    """Return a dataclass's options by field name."""
    return {each.name: each.metadata[_KEY] for each in fields(options) if _KEY in each.metadata}


@dataclass(frozen=True, kw_only=True)
class AllocationOptions:
    """Options for the allocation of a run; None selects the default.

    Attributes:
        site: Name of the site.
        nodes: Number of nodes.
        hosts: Hosts to run on instead of using the site's scheduler (see ``on_hosts``).
        hostfile: File with these hosts.
        share_hosts: Whether to start without waiting for other runs on these hosts.
        gpus_per_node: GPUs to request per node (default: all GPUs of the node); 0 requests none.
        time: Time limit in seconds, or text in Slurm's format.
    """

    site: str | None = option(
        None, "--site", help="Site to use (default: the detected one, or local).", completion="sites", panel=_JOB
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
        """The hosts to run on; raises ``InvalidInput`` if any of them is invalid."""
        from hidl_cli.launch.hosts import Hosts, named_hosts

        return self.hosts if isinstance(self.hosts, Hosts) else named_hosts(self.hosts, self.hostfile)

    @property
    def time_limit(self) -> float | None:
        """The time limit in seconds; raises ``UsageError`` if it is invalid or not positive."""
        if isinstance(self.time, str):
            return limit_from(self.time)
        if self.time is not None and not self.time > 0:
            hint = 'use a value such as 600 (seconds) or "00:10:00"'
            raise UsageError(f"invalid time {self.time!r}: must be positive", hint=hint)
        return self.time


@dataclass(frozen=True, kw_only=True)
class JobOptions(AllocationOptions):
    """Additional options for a run's job, if the site's scheduler supports them.

    Attributes:
        gpus: GPUs of the whole run. If its nodes have more GPUs, only part of each node is requested.
        gpus_per_rank: GPUs per rank.
        memory: Memory per node as text, such as ``64G``.
        exclusive: Whether to request whole nodes.
        share: Whether other jobs may use the rest of each node.
        after: Runs that must have ended successfully before this one starts.
        hold: Whether to submit the job in the held state.
        begin: Earliest start as text, such as ``18:00``, ``2026-01-31T18:00`` or ``+2:00:00``.
        scheduler_options: Additional scheduler options, each in the form used in job scripts.
    """

    gpus: int | None = option(
        None,
        "--gpus",
        minimum=1,
        help="GPUs for the whole run (default: all GPUs of its nodes); if fewer, the job requests part of each node.",
        panel=_RESOURCES,
    )
    gpus_per_rank: int | None = option(None, "--gpus-per-rank", minimum=1, help="GPUs per rank.", panel=_RESOURCES)
    memory: str | None = option(
        None, "--mem", metavar="SIZE", help="Memory per node, such as 64G or 500M.", panel=_RESOURCES
    )
    exclusive: bool = option(False, "--exclusive", help="Request whole nodes.", panel=_RESOURCES)
    share: bool = option(False, "--share", help="Let other jobs use the rest of each node.", panel=_RESOURCES)
    licenses: str | None = option(
        None, "--licenses", metavar="NAME:N,...", help="Licenses that the job needs.", panel=_JOB
    )
    mail_type: str | None = option(
        None,
        "--mail-type",
        metavar="EVENT,...",
        help="Send mail for these events: begin, end, fail or all.",
        panel=_JOB,
    )
    mail_user: str | None = option(None, "--mail-user", metavar="ADDRESS", help="Recipient of the mail.", panel=_JOB)
    after: Sequence[str] | str | None = option(
        None,
        "--after",
        metavar="RUN",
        help="Start after this run has ended successfully; repeatable.",
        completion="runs",
        repeatable=True,
        panel=_JOB,
    )
    hold: bool = option(False, "--hold", help="Submit the job in the held state, until you release it.", panel=_JOB)
    begin: str | None = option(
        None, "--begin", metavar="TIME", help="Earliest start: 18:00, 2026-01-31T18:00 or +2:00:00.", panel=_JOB
    )
    comment: str | None = option(
        None, "--comment", metavar="TEXT", help="Comment that the scheduler stores with the job.", panel=_JOB
    )
    job_name: str | None = option(
        None, "--job-name", metavar="NAME", help="Name of the job (default: hidl-WORKLOAD).", panel=_JOB
    )
    scheduler_options: Sequence[str] | None = option(
        None,
        "--scheduler-option",
        metavar="OPTION",
        help="Additional scheduler option, as in a job script: --scheduler-option=--switches=1. Repeatable.",
        repeatable=True,
        panel=_JOB,
    )

    @property
    def runs_before(self) -> list[str]:
        """The runs that must end first."""
        return [self.after] if isinstance(self.after, str) else [*(self.after or ())]

    @property
    def memory_gib(self) -> float | None:
        """The memory per node in GiB; raises ``UsageError`` if the size is invalid."""
        if self.memory is None:
            return None
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([MGT])(?:i?B)?", str(self.memory), re.IGNORECASE)
        gib = float(match[1]) * {"M": 1 / 1024, "G": 1, "T": 1024}[match[2].upper()] if match else 0.0
        if gib < 1 / 1024:  # would become --mem=0M, for which Slurm allocates a node's entire memory
            raise UsageError(
                f"invalid --mem {self.memory!r}: must be a size with a unit, at least 1M", hint="use a size such as 64G"
            )
        return gib

    @property
    def begin_time(self) -> float | None:
        """The earliest start in seconds since the epoch; raises ``UsageError`` if the time is invalid."""
        return None if self.begin is None else _parse_begin(str(self.begin), datetime.now().astimezone())

    @property
    def given_names(self) -> tuple[str, ...]:
        """The names of this class's options that are set."""
        declared = command_line_options(JobOptions)
        inherited = command_line_options(AllocationOptions)
        return tuple(each.names[0] for name, each in declared.items() if name not in inherited and getattr(self, name))


def _parse_begin(text: str, now: datetime) -> float:
    try:
        if text.startswith("+"):
            return now.timestamp() + seconds(text[1:])
        if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}", text):
            hour, minute = map(int, text.split(":"))
            start = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (start if start > now else start + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, UsageError):
        raise UsageError(
            f"invalid --begin {text!r}", hint="use a time such as 18:00, 2026-01-31T18:00 or +2:00:00 (from now)"
        ) from None


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
    """Convert the value of ``--time`` to seconds; raises ``UsageError`` if it is invalid or zero."""
    if (limit := seconds(text)) == 0:
        raise UsageError("the time limit must be positive", hint=_TIMES)
    return limit


def clock(seconds: float) -> str:
    """Format seconds as ``hours:minutes:seconds``; hours may exceed 24."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


_STACK = "Stack"
_PROVIDER = "Provider"


@dataclass(frozen=True, kw_only=True)
class InstallOptions(AllocationOptions):
    """The options of ``hidl install``, including those for build and verification jobs. None selects the default.

    Attributes:
        stacks: Names of the stacks (default: the site's stacks).
        sources: Source archives in the form ``NAME=FILE``.
    """

    stacks: Sequence[str] = ()
    prefix: str | None = option(
        None,
        "--prefix",
        metavar="DIR",
        help="Root directory of the installations (default: the site's).",
        panel=_STACK,
    )
    own: bool = option(
        False,
        "--own",
        help="Install below your data directory; takes precedence over the site's installation.",
        panel=_STACK,
    )
    locked: bool = option(False, "--locked", help="Fail if no lockfile fits instead of creating one.", panel=_STACK)
    offline: bool = option(False, "--offline", help="Use only uv's cache and local wheels.", panel=_STACK)
    packages: Sequence[str] | None = option(
        None,
        "--with",
        metavar="REQUIREMENT",
        help="Additional package for the stack of --as; repeatable.",
        repeatable=True,
        panel=_STACK,
    )
    requirements: Sequence[str | PathLike[str]] | None = option(
        None,
        "--requirements",
        "-r",
        metavar="FILE",
        help="Additional packages in requirements.txt, pyproject.toml, uv.lock, pylock.toml or environment.yml; "
        "repeatable.",
        repeatable=True,
        panel=_STACK,
    )
    name: str | None = option(
        None, "--as", metavar="NAME", help="Name of the derived stack.", completion="stacks", panel=_STACK
    )
    device: str | None = option(
        None,
        "--device",
        metavar="cpu|gpu",
        help="Stack for CPUs or GPUs (default: the site's setting, or the hardware of its default partition).",
        completion="devices",
        panel=_STACK,
    )
    link: str | None = option(
        None,
        "--link",
        metavar="copy|hard",
        help="Copy files, or hard-link them to the cache and other stacks (default: the site's setting, or copy).",
        panel=_STACK,
    )
    verify: str | None = option(
        None,
        "--verify",
        metavar="here|job|skip",
        help="Verify on this machine, in a job on compute nodes, or not at all (default: the site's setting).",
        panel=_STACK,
    )
    provider: str | None = option(
        None,
        "--provider",
        metavar="wheels|spack|rpm",
        help="Provider of the packages (default: the site's).",
        panel=_PROVIDER,
    )
    sources: Sequence[str] | None = option(
        None,
        "--source",
        metavar="NAME=FILE",
        help="Source archive of a package that is built; repeatable.",
        repeatable=True,
        panel=_PROVIDER,
    )
    mirror: str | None = option(
        None, "--mirror", metavar="DIR", help="Directory created by `hidl stack fetch`.", panel=_PROVIDER
    )
    jobs: int | None = option(
        None, "--jobs", "-j", minimum=1, help="Number of parallel build jobs (Spack).", panel=_PROVIDER
    )
    spack: str | None = option(
        None,
        "--spack",
        metavar="ROOT",
        help="Root of Spack (default: $HIDL_SPACK, the site's setting, PATH).",
        panel=_PROVIDER,
    )
    specs: Sequence[str] | None = option(
        None,
        "--spec",
        metavar="SPEC",
        help="Another spec that Spack builds with the stack; repeatable.",
        repeatable=True,
        panel=_PROVIDER,
    )
    cache_only: bool = option(
        False,
        "--cache-only",
        help="Build nothing; fail if a package is not in a build cache (Spack).",
        panel=_PROVIDER,
    )

"""Options that several commands share, with their completion and the parsing of times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.completion import complete_hosts
from hidl_cli.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from hidl_cli.inputs.overlay import KindName
    from hidl_cli.site.schema import ProviderName


def complete_sites(incomplete: str) -> list[str]:
    """Complete names of sites."""
    return _names("site", incomplete)


def complete_stacks(incomplete: str) -> list[str]:
    """Complete names of stacks."""
    return _names("stack", incomplete)


def complete_workloads(incomplete: str) -> list[str]:
    """Complete names of workloads."""
    return _names("workload", incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Complete ids of runs."""
    from hidl_cli.record.run import all_runs

    return [run.id for run in all_runs() if run.id.startswith(incomplete)]


def complete_runs_and_workloads(incomplete: str) -> list[str]:
    """Complete the arguments of ``hidl results compare``."""
    return [*complete_runs(incomplete), *complete_workloads(incomplete)]


def provider_name(word: str | None) -> ProviderName | None:
    """Return ``word`` if it is a provider; raises ``UsageError`` otherwise."""
    from hidl_cli.api.software import provider_name as checked

    return checked(word)


def directory(word: str | None) -> Path | None:
    """Return ``word`` as an absolute path, or None for None."""
    from pathlib import Path

    return Path(word).expanduser().absolute() if word else None


def _names(kind: KindName, incomplete: str) -> list[str]:
    from hidl_cli.inputs.overlay import list_all

    return [entry.name for entry in list_all(kind) if entry.name.startswith(incomplete)]


SiteOption = Annotated[
    str | None,
    typer.Option("--site", help="Site to use (default: the detected one, else local).", autocompletion=complete_sites),
]
PrefixOption = Annotated[
    str | None,
    typer.Option("--prefix", metavar="DIR", help="Root directory of the installations (default: the site's)."),
]
ProviderOption = Annotated[
    str | None,
    typer.Option("--provider", metavar="wheels|spack|rpm", help="Provider of the packages (default: the site's)."),
]
SpackOption = Annotated[
    str | None,
    typer.Option("--spack", metavar="ROOT", help="Root of Spack (default: $HIDL_SPACK, the site's setting, PATH)."),
]
SpecOption = Annotated[
    list[str] | None,
    typer.Option("--spec", metavar="SPEC", help="Another spec that Spack builds with the stack; repeatable."),
]
StackDeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="cpu|gpu",
        help="Stack for CPUs or GPUs (default: the site's setting, else the hardware of its default partition).",
        autocompletion=lambda: ["cpu", "gpu"],
    ),
]
MirrorOption = Annotated[
    str | None, typer.Option("--mirror", metavar="DIR", help="Directory created by `hidl stack fetch`.")
]
HostsOption = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="HOST,HOST",
        help="Run on these hosts over ssh, without the site's scheduler: gpu11,gpu12 or gpu[11-12].",
        autocompletion=complete_hosts,
    ),
]
HostfileOption = Annotated[
    str | None,
    typer.Option(
        "--hostfile",
        metavar="FILE",
        help="Read the hosts from a host file of MPICH, Open MPI or MVAPICH (host, host:4, ...).",
    ),
]
ShareHostsOption = Annotated[
    bool, typer.Option("--share-hosts", help="With --hosts: start immediately, even if another run uses the hosts.")
]


def _report_more(level: int) -> int:
    from hidl_cli.commands.render import report_more

    if level:
        report_more(level)
    return level


VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        callback=_report_more,
        help="Show full launch lines; -vv also shows every process started.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON document.")]
NoCheckOption = Annotated[bool, typer.Option("--no-check", help="Skip the checks of `hidl doctor` before submission.")]
#: Metavar of ``--time``.
TIME = "MINUTES|HH:MM:SS"
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="Id of a run, or the start or end of it (default: the last run).",
        autocompletion=complete_runs,
    ),
]


def moment(text: str) -> datetime:
    """Parse a date or time (ISO 8601, local unless it has a time zone) or an age such as ``90m``, ``12h`` or ``30d``.

    Raises ``UsageError`` for anything else.
    """
    from datetime import datetime, timedelta, timezone

    units = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
    try:
        if text[-1:] in units and text[:-1].isdecimal():
            return datetime.now(timezone.utc) - timedelta(**{units[text[-1]]: int(text[:-1])})
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(f"invalid time {text!r}", hint="for example 2026-01-31, 2026-01-31T18:00 or 30d") from None


def limit_in_seconds(text: str | None) -> float | None:
    """Return the value of ``--time`` in seconds, or None for None; raises ``UsageError`` for an invalid time."""
    if text is None:
        return None
    from hidl_cli.launch.placement import limit_from

    return limit_from(text)

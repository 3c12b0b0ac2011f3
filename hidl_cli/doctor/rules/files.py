"""Rules: the file systems that hidl reads from and writes to."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.files import Files, Quota, probe
from hidl_workloads.doctor.finding import Finding, Rules, Seen

RULES: Rules[Files] = Rules()

_NEARLY_FULL = 0.9
_LITTLE_MIB, _NEXT_TO_NOTHING_MIB = 1024, 64


def examine(context: Context) -> list[Finding]:
    """What is wrong with the file systems."""
    return RULES.findings(probe(context))


@RULES.rule(
    "HD060",
    "The quota at home is nearly full",
    severity="warning",
    why="Run directories, caches and, unless the site's file says otherwise, installations lie there. A job that "
    "cannot write its output or its checkpoint ends, often hours after it began.",
)
def little_quota(facts: Files) -> Iterator[Seen]:
    """From nine tenths of a limit on; an error where it is reached."""
    quota = facts.quota
    if quota is not None and quota.fullness >= _NEARLY_FULL:
        yield Seen(
            f"{facts.home}: {_used(quota)}",
            "remove what is no longer needed; XDG_STATE_HOME (runs), XDG_CACHE_HOME and --prefix lead elsewhere",
            where=facts.home,
            severity="error" if quota.fullness >= 1 else None,
        )


@RULES.rule(
    "HD061",
    "The installation lies on a file system that is mounted noexec",
    severity="error",
    why="No program of the stack can be started from there (`Permission denied`), its Python and its mpiexec included.",
)
def not_executable(facts: Files) -> Iterator[Seen]:
    """By the mount's options; root is held by them too."""
    place = facts.installations
    if place and place.mount and "noexec" in place.mount.options:
        yield Seen(
            f"{place.directory} lies on {place.mount.point} ({place.mount.kind}, noexec)",
            "install on another file system: hidl install STACK --prefix DIR, or `install.root` in the site's file",
            where=place.mount.point,
        )


@RULES.rule(
    "HD065",
    "A file system that hidl writes to is nearly full",
    severity="warning",
    why="A job that cannot write its output or its metrics ends, and an installation is not completed.",
)
def little_space(facts: Files) -> Iterator[Seen]:
    """Less than 1 GiB left; an error below 64 MiB, where run directories are made."""
    seen: set[str] = set()
    for place in (facts.runs, facts.installations):
        if place is None or place.mount is None or place.free_mib is None or place.mount.point in seen:
            continue
        seen.add(place.mount.point)
        if place.free_mib < _LITTLE_MIB:
            full = place.what == "run directories" and place.free_mib < _NEXT_TO_NOTHING_MIB
            yield Seen(
                f"{place.mount.point} has {place.free_mib} MiB left; {place.what} lie there ({place.directory})",
                "remove what is no longer needed; XDG_STATE_HOME (runs) and --prefix (installations) lead elsewhere",
                where=place.mount.point,
                severity="error" if full else None,
            )


@RULES.rule(
    "HD066",
    "Run directories lie on a file system that is mounted read-only",
    severity="error",
    why="hidl run makes a directory for each run before it submits it, and the job writes its output there.",
)
def read_only(facts: Files) -> Iterator[Seen]:
    """By the mount's options."""
    place = facts.runs
    if place and place.mount and "ro" in place.mount.options:
        yield Seen(
            f"{place.directory} lies on {place.mount.point} ({place.mount.kind}, read-only)",
            "export XDG_STATE_HOME=DIR, a directory that can be written to from all nodes",
            where=place.mount.point,
        )


def _used(quota: Quota) -> str:
    parts = []
    if quota.kib_limit:
        parts.append(f"{quota.kib / 2**20:.1f} of {quota.kib_limit / 2**20:.1f} GiB")
    if quota.files_limit:
        parts.append(f"{quota.files} of {quota.files_limit} files")
    return " and ".join(parts) + " are used"

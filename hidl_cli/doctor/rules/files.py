"""File systems that hidl reads from and writes to, and the quota of the home directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import paths
from hidl_cli.doctor.context import Context, Subject
from hidl_cli.errors import MissingPrecondition
from hidl_cli.site.probes.host import Host
from hidl_cli.stack import installation
from hidl_workloads.doctor.finding import Evidence, Rules

_OCTAL = re.compile(r"\\([0-7]{3})")
#: A file system in the output of quota(1) -w -p: used, soft and hard limit, grace; of KiB, then of files.
_QUOTA = re.compile(r"^\s*(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\d+\s*$", re.MULTILINE)
#: The same of `lfs quota -q`, with a word or a dash for the grace.
_LUSTRE = re.compile(r"^\s*(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\S+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\S+\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mounts."""

    source: str
    point: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A directory that hidl uses for ``what``; ``free_mib``: space left for this user."""

    what: str
    directory: str
    mount: Mount | None = None
    free_mib: int | None = None


@dataclass(frozen=True)
class Quota:
    """Usage and limits, in KiB and files. A limit is the lower of soft and hard; None: unlimited."""

    kib: int
    kib_limit: int | None
    files: int
    files_limit: int | None

    @property
    def fullness(self) -> float:
        """The used fraction of the tighter limit; 0 if unlimited."""
        kib = self.kib / self.kib_limit if self.kib_limit else 0.0
        return max(kib, self.files / self.files_limit if self.files_limit else 0.0)


@dataclass(frozen=True)
class Files:
    """``installations``: the directory of stacks; ``runs``: of run directories."""

    installations: Place | None = None
    runs: Place | None = None
    home: str = ""
    quota: Quota | None = None


def probe(context: Context) -> Files:
    """The file systems of this host. Before a run, the quota is not queried: file servers can be slow."""
    host = context.host
    mounts = read_mounts(host.read("/proc/self/mounts"))
    home = host.environment.get("HOME", "")
    root = _installations(context) if context.is_here else None
    return Files(
        installations=_place(host, mounts, "installations", root) if root else None,
        runs=_place(host, mounts, "run directories", str(paths.runs())),
        home=home,
        quota=_quota(host, _mount_of(mounts, os.path.realpath(home)), home) if home and not context.plan else None,
    )


def read_mounts(text: str) -> tuple[Mount, ...]:
    """Parse /proc/self/mounts (fstab(5): spaces in names are octal escapes)."""
    found = []
    for line in text.splitlines():
        fields = [_OCTAL.sub(lambda match: chr(int(match[1], 8)), field) for field in line.split()]
        if len(fields) >= 4:
            found.append(Mount(fields[0], fields[1], fields[2], tuple(fields[3].split(","))))
    return tuple(found)


def _installations(context: Context) -> str | None:
    if context.installation is not None:
        return str(context.installation.prefix)
    try:
        return str(next(iter(context.roots), None) or installation.installation_root(context.site))
    except MissingPrecondition:
        return None


def _place(host: Host, mounts: Sequence[Mount], what: str, directory: str) -> Place:
    mount = _mount_of(mounts, os.path.realpath(directory))
    return Place(what, directory, mount, _free_mib(host, mount.point) if mount else None)


def _mount_of(mounts: Sequence[Mount], path: str) -> Mount | None:
    """The mount of ``path``: the longest mount point, and the last mounted there."""
    containing = [mount for mount in mounts if Path(path).is_relative_to(mount.point)]
    return max(reversed(containing), key=lambda mount: len(mount.point), default=None)


def _free_mib(host: Host, point: str) -> int | None:
    """The fourth column of ``df -Pk`` (POSIX)."""
    found = re.search(r"\s\d+\s+-?\d+\s+(-?\d+)\s+-?\d+%\s", host.ask("df", "-Pk", "--", point) or "")
    return int(found[1]) // 1024 if found else None


def _quota(host: Host, mount: Mount | None, home: str) -> Quota | None:
    if mount is None:
        return None
    user = host.environment.get("USER", "")
    if mount.kind == "lustre" and user:
        return _first(_LUSTRE, host.ask("lfs", "quota", "-q", "-u", user, home) or "", None)
    if host.which("quota") is None:
        return None
    # quota(1) fails if a limit is exceeded; only its output counts.
    return _first(_QUOTA, host.ask("sh", "-c", "quota -w -p || true") or "", mount.source)


def _first(pattern: re.Pattern[str], text: str, source: str | None) -> Quota | None:
    """The quota of the file system ``source``; None: of the first one listed."""
    for name, *numbers in pattern.findall(text):
        kib, soft, hard, files, soft_files, hard_files = map(int, numbers)
        if source in (None, name):
            return Quota(kib, _lower(soft, hard), files, _lower(soft_files, hard_files))
    return None


def _lower(soft: int, hard: int) -> int | None:
    return min((limit for limit in (soft, hard) if limit), default=None)


RULES: Rules[Files] = Rules()
_NEARLY_FULL = 0.9
_LITTLE_MIB, _NEXT_TO_NOTHING_MIB = 1024, 64


@RULES.rule(
    "HD060",
    "The quota of the home directory is nearly full",
    severity="warning",
    why="Run directories, caches and, by default, installations are there. A job that cannot write its output or its "
    "checkpoint fails, often hours after it started.",
)
def little_quota(facts: Files) -> Iterator[Evidence]:
    """90 % of a limit is used; an error at 100 %."""
    quota = facts.quota
    if quota is not None and quota.fullness >= _NEARLY_FULL:
        yield Evidence(
            f"{facts.home}: {_used(quota)}",
            "remove old files, or use another file system: XDG_STATE_HOME (runs), XDG_CACHE_HOME, --prefix",
            where=facts.home,
            severity="error" if quota.fullness >= 1 else None,
        )


@RULES.rule(
    "HD061",
    "The installation is on a file system mounted noexec",
    severity="error",
    why="No program of the stack can start (`Permission denied`), including its Python and its mpiexec.",
)
def not_executable(facts: Files) -> Iterator[Evidence]:
    """The mount has the option noexec, which applies to root too."""
    place = facts.installations
    if place and place.mount and "noexec" in place.mount.options:
        yield Evidence(
            f"{place.directory} is on {place.mount.point} ({place.mount.kind}, noexec)",
            "install on another file system: hidl install STACK --prefix DIR, or `install.root` in the site file",
            where=place.mount.point,
        )


@RULES.rule(
    "HD065",
    "A file system that hidl writes to is nearly full",
    severity="warning",
    why="Jobs that cannot write their output or metrics fail, and installations stay incomplete.",
)
def little_space(facts: Files) -> Iterator[Evidence]:
    """Less than 1 GiB is free; an error below 64 MiB for run directories."""
    seen: set[str] = set()
    for place in (facts.runs, facts.installations):
        if place is None or place.mount is None or place.free_mib is None or place.mount.point in seen:
            continue
        seen.add(place.mount.point)
        if place.free_mib < _LITTLE_MIB:
            full = place.what == "run directories" and place.free_mib < _NEXT_TO_NOTHING_MIB
            yield Evidence(
                f"{place.mount.point} has {place.free_mib} MiB free, for {place.what} ({place.directory})",
                "remove old files, or use another file system: XDG_STATE_HOME (runs), --prefix (installations)",
                where=place.mount.point,
                severity="error" if full else None,
            )


@RULES.rule(
    "HD066",
    "Run directories are on a file system mounted read-only",
    severity="error",
    why="hidl run creates a directory for each run before it submits the job, and the job writes its output there.",
)
def read_only(facts: Files) -> Iterator[Evidence]:
    """The mount has the option ro."""
    place = facts.runs
    if place and place.mount and "ro" in place.mount.options:
        yield Evidence(
            f"{place.directory} is on {place.mount.point} ({place.mount.kind}, read-only)",
            "export XDG_STATE_HOME=DIR, a directory that all nodes can write to",
            where=place.mount.point,
        )


def _used(quota: Quota) -> str:
    parts = []
    if quota.kib_limit:
        parts.append(f"{quota.kib / 2**20:.1f} of {quota.kib_limit / 2**20:.1f} GiB")
    if quota.files_limit:
        parts.append(f"{quota.files} of {quota.files_limit} files")
    return " and ".join(parts) + " used"


SUBJECT = Subject(probe, RULES, before_runs=True)

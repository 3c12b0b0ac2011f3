"""The host that hidl runs on: file systems, proxies, and the rules for compute nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hidl_cli import paths
from hidl_cli.doctor.context import CachedHost, Context, Subject
from hidl_cli.doctor.examine import plan_job
from hidl_cli.errors import MissingPrecondition
from hidl_cli.quoting import sh
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.stack import installation
from hidl_workloads.doctor import node
from hidl_workloads.doctor.finding import Evidence, Rules

_OCTAL = re.compile(r"\\([0-7]{3})")
#: A line printed by `quota -w -p`: usage, soft limit, hard limit and grace period, first in KiB and then in files.
_QUOTA = re.compile(r"^\s*(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\d+\s*$", re.MULTILINE)
#: A line printed by `lfs quota -q`, in which the grace period is a word or a dash.
_LUSTRE = re.compile(r"^\s*(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\S+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\S+\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Mount:
    """A line in /proc/self/mounts."""

    source: str
    point: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class UsedDirectory:
    """A directory used by hidl, and the free space available to this user."""

    purpose: str
    directory: str
    mount: Mount | None = None
    free_mib: int | None = None


@dataclass(frozen=True)
class Quota:
    """Usage and limits in KiB and files. Each limit is the lower of the soft and hard limits, or None if unlimited."""

    kib: int
    kib_limit: int | None
    files: int
    files_limit: int | None

    @property
    def fullness(self) -> float:
        """The fraction of the tighter limit that is used (0 if unlimited)."""
        kib = self.kib / self.kib_limit if self.kib_limit else 0.0
        return max(kib, self.files / self.files_limit if self.files_limit else 0.0)


@dataclass(frozen=True)
class FileSystems:
    """The directories for stacks (``installations``) and ``runs``, and the home directory's quota."""

    installations: UsedDirectory | None = None
    runs: UsedDirectory | None = None
    home: str = ""
    quota: Quota | None = None


def probe(context: Context) -> FileSystems:
    """Examine this host's file systems. The quota is not queried before runs because file servers can be slow."""
    host = context.host
    mounts = read_mounts(host.read("/proc/self/mounts"))
    home = host.environment.get("HOME", "")
    root = _installations(context) if context.is_here else None
    return FileSystems(
        installations=_directory(host, mounts, "installations", root) if root else None,
        runs=_directory(host, mounts, "run directories", str(paths.runs())),
        home=home,
        quota=_quota(host, _mount_of(mounts, os.path.realpath(home)), home) if home and not context.plan else None,
    )


def read_mounts(text: str) -> tuple[Mount, ...]:
    """Parse /proc/self/mounts, in which spaces in names are written as octal escapes (see fstab(5))."""
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


def _directory(host: Host, mounts: Sequence[Mount], purpose: str, directory: str) -> UsedDirectory:
    mount = _mount_of(mounts, os.path.realpath(directory))
    return UsedDirectory(purpose, directory, mount, _free_mib(host, mount.point) if mount else None)


def _mount_of(mounts: Sequence[Mount], path: str) -> Mount | None:
    """Return the mount with the longest mount point that contains ``path``.

    If there are several, return the last one.
    """
    containing = [mount for mount in mounts if Path(path).is_relative_to(mount.point)]
    return max(reversed(containing), key=lambda mount: len(mount.point), default=None)


def _free_mib(host: Host, point: str) -> int | None:
    """Return the free space: the fourth column of ``df -Pk`` (POSIX)."""
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
    # quota(1) exits with an error if a limit is exceeded, so its exit status is ignored.
    return _first(_QUOTA, host.ask("sh", "-c", "quota -w -p || true") or "", mount.source)


def _first(pattern: re.Pattern[str], text: str, source: str | None) -> Quota | None:
    """Return the quota for the file system ``source``, or for the first one listed if ``source`` is None."""
    for name, *numbers in pattern.findall(text):
        kib, soft, hard, files, soft_files, hard_files = map(int, numbers)
        if source in (None, name):
            return Quota(kib, _lower(soft, hard), files, _lower(soft_files, hard_files))
    return None


def _lower(soft: int, hard: int) -> int | None:
    return min((limit for limit in (soft, hard) if limit), default=None)


RULES: Rules[FileSystems] = Rules()
_NEARLY_FULL = 0.9
_WARNING_MIB, _ERROR_MIB = 1024, 64


@RULES.rule(
    "HD060",
    "The quota of the home directory is nearly full",
    severity="warning",
    why="It contains run directories, caches and, by default, installations. A job that cannot write its output or its "
    "checkpoint fails, often hours after it started.",
)
def little_quota(facts: FileSystems) -> Iterator[Evidence]:
    """Report a warning if 90 % of a limit is used, and an error at 100 %."""
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
def not_executable(facts: FileSystems) -> Iterator[Evidence]:
    """Report an error if the file system is mounted with the option noexec, which also applies to root."""
    used = facts.installations
    if used and used.mount and "noexec" in used.mount.options:
        yield Evidence(
            f"{used.directory} is on {used.mount.point} ({used.mount.kind}, noexec)",
            "install on another file system: hidl install STACK --prefix DIR, or set `install.root` in the site file",
            where=used.mount.point,
        )


@RULES.rule(
    "HD065",
    "A file system that hidl writes to is nearly full",
    severity="warning",
    why="Jobs that cannot write their output or metrics fail, and installations remain incomplete.",
)
def little_space(facts: FileSystems) -> Iterator[Evidence]:
    """Report a warning if less than 1 GiB is free, and an error if less than 64 MiB is free for run directories."""
    seen: set[str] = set()
    for used in (facts.runs, facts.installations):
        if used is None or used.mount is None or used.free_mib is None or used.mount.point in seen:
            continue
        seen.add(used.mount.point)
        if used.free_mib < _WARNING_MIB:
            full = used.purpose == "run directories" and used.free_mib < _ERROR_MIB
            yield Evidence(
                f"{used.mount.point} has {used.free_mib} MiB free for {used.purpose} ({used.directory})",
                "remove old files, or use another file system: XDG_STATE_HOME (runs), --prefix (installations)",
                where=used.mount.point,
                severity="error" if full else None,
            )


@RULES.rule(
    "HD066",
    "Run directories are on a file system mounted read-only",
    severity="error",
    why="hidl run creates a directory for each run before it submits the job, and the job writes its output there.",
)
def read_only(facts: FileSystems) -> Iterator[Evidence]:
    """Report an error if the file system is mounted with the option ro."""
    used = facts.runs
    if used and used.mount and "ro" in used.mount.options:
        yield Evidence(
            f"{used.directory} is on {used.mount.point} ({used.mount.kind}, read-only)",
            "export XDG_STATE_HOME=DIR, where DIR is a directory that all nodes can write to",
            where=used.mount.point,
        )


def _used(quota: Quota) -> str:
    parts = []
    if quota.kib_limit:
        parts.append(f"{quota.kib / 2**20:.1f} of {quota.kib_limit / 2**20:.1f} GiB")
    if quota.files_limit:
        parts.append(f"{quota.files} of {quota.files_limit} files")
    return " and ".join(parts) + " used"


_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True)
class Network:
    """The proxies that the ranks use.

    Attributes:
        proxies: Proxy host by variable, without the user name and password.
        affected: Names of this host that are not excluded by no_proxy.
        no_proxy: Value of no_proxy.
    """

    proxies: Mapping[str, str]
    affected: tuple[str, ...] = ()
    no_proxy: str = ""


def probe_network(context: Context) -> Network:
    """Read the ranks' environment, in which lower-case variables take precedence over upper-case ones."""
    environment = plan_job(context).environment
    proxies = {
        name: _host(environment[name])
        for lower in _PROXIES
        for name in (lower, lower.upper())
        if environment.get(name, "").strip()
    }
    no_proxy = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    own = ("localhost", "127.0.0.1", context.host.hostname)
    return Network(proxies, tuple(name for name in own if proxies and not is_excluded(name, no_proxy)), no_proxy)


def is_excluded(host: str, no_proxy: str) -> bool:
    """Return whether no_proxy excludes ``host``: by ``*``, its name or one of its domains, as in urllib and curl."""
    words = [word.strip().lstrip(".").lower() for word in no_proxy.split(",") if word.strip()]
    return no_proxy.strip() == "*" or any(host.lower() == word or host.lower().endswith(f".{word}") for word in words)


def _host(proxy: str) -> str:
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return parts.hostname or "a proxy"


NETWORK_RULES: Rules[Network] = Rules()


@NETWORK_RULES.rule(
    "HD062",
    "Proxy variables affect connections to this host",
    severity="warning",
    why="gRPC (TensorFlow), HTTP rendezvous (Horovod's gloo, torchrun) and dashboards connect to the proxy although "
    "their peer is this host or a neighbour. The proxy rejects the connections, or they time out.",
)
def affected_by_proxy(facts: Network) -> Iterator[Evidence]:
    """Report a warning if a proxy is set and no_proxy does not exclude localhost or the name of this host."""
    if facts.affected:
        names = ", ".join(f"{name} ({host})" for name, host in facts.proxies.items())
        value = sh(",".join(word for word in (facts.no_proxy.strip(), *facts.affected) if word))
        yield Evidence(
            f"{names} also applies to {', '.join(facts.affected)}, which no_proxy does not exclude",
            f"export no_proxy={value} NO_PROXY={value}",
        )


def probe_node(context: Context) -> node.Node | None:
    """Collect the facts about this host.

    Returns None if the host is not part of the site or if a recorded host is examined.
    """
    host = context.host.host if isinstance(context.host, CachedHost) else context.host
    return node.probe() if context.is_here and isinstance(host, ThisHost) else None


SUBJECTS = (
    Subject(probe, RULES, before_runs=True),
    Subject(probe_network, NETWORK_RULES, before_runs=True),
    Subject(probe_node, node.RULES),
)

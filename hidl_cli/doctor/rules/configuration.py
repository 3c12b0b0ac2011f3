"""hidl's own configuration: its directories, installed plug-ins, and the site file."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.batch_systems import SCHEDULERS
from hidl_cli.doctor.context import Context, Subject
from hidl_cli.launchers import LAUNCHERS
from hidl_cli.plan.workload import PARSERS
from hidl_cli.plugins import PluginEntry, Registry
from hidl_cli.quoting import sh
from hidl_cli.schedulers import names, unusable
from hidl_cli.site.load import ASSUMED_CORES
from hidl_cli.site.schema import PROVIDERS, Site
from hidl_workloads.doctor.finding import Evidence, Rules

_ROOT = 0


@dataclass(frozen=True)
class Configuration:
    """One of hidl's configuration directories.

    ``exposed`` maps each path that other users may change to the name of such a user, or to ``anyone``.
    """

    directory: Path
    exposed: Mapping[Path, str]


def probe(_context: Context) -> tuple[Configuration, ...]:
    """Return the user's and the system's configuration on this machine, even if another host or site is examined."""
    return tuple(find_exposed(directory) for directory in (paths.user_config(), paths.system_config()))


def find_exposed(directory: Path) -> Configuration:
    """Find paths in a directory that anyone may write to, or that belong neither to root nor to this user.

    If a directory is set with ``HIDL_SYSTEM_CONFIG``, its owner is trusted as well.
    """
    trusted = {_ROOT, os.geteuid()}
    if os.environ.get(paths.SYSTEM_CONFIG) and directory == paths.system_config():
        with suppress(OSError):
            trusted.add(directory.stat().st_uid)
    found: dict[Path, str] = {}
    for parent, directories, files in os.walk(directory):
        children = [Path(parent, name) for name in (*directories, *files)]
        for path in [directory, *children] if Path(parent) == directory else children:
            with suppress(OSError):
                status = path.stat()
                if status.st_mode & stat.S_IWOTH:
                    found[path] = "anyone"
                elif status.st_uid not in trusted:
                    found[path] = _name(status.st_uid)
    return Configuration(directory, found)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user id {uid}"


RULES: Rules[tuple[Configuration, ...]] = Rules()


@RULES.rule(
    "HD015",
    "Other users can change hidl's configuration",
    severity="warning",
    why="Site, stack and workload files name programs that hidl runs. Anyone who can change these files can run any "
    "program as you.",
)
def open_to_others(configurations: tuple[Configuration, ...]) -> Iterator[Evidence]:
    """Report files and directories that belong neither to this user nor to root, or that anyone may write to."""
    for facts in configurations:
        if not facts.exposed:
            continue
        first, who = next(iter(facts.exposed.items()))
        more = f" (and {len(facts.exposed) - 1} more)" if len(facts.exposed) > 1 else ""
        yield Evidence(
            f"{first} can be changed by {who}{more}",
            f"check who set up {facts.directory}, change the owner to root or yourself, and: "
            f"chmod -R o-w {sh(str(facts.directory))}",
            where=str(facts.directory),
        )


REGISTRIES: tuple[Registry[Any], ...] = (LAUNCHERS, SCHEDULERS, PROVIDERS, PARSERS)


@dataclass(frozen=True)
class Plugin:
    """An installed plug-in. If it cannot be used, ``problem`` explains why."""

    kind: str
    entry: PluginEntry
    problem: str | None


def find_plugins() -> tuple[Plugin, ...]:
    """Load and return all installed plug-ins."""
    return tuple(
        Plugin(registry.what, entry, problem) for registry in REGISTRIES for entry, problem in registry.problems()
    )


def probe_plugin(_context: Context) -> tuple[Plugin, ...]:
    """Find the plug-ins for the Python that runs hidl, even if another host or site is examined."""
    return find_plugins()


PLUGIN_RULES: Rules[tuple[Plugin, ...]] = Rules()


@PLUGIN_RULES.rule(
    "HD010",
    "A plug-in cannot be used",
    severity="error",
    why="Packages can add launchers, schedulers, providers and parsers to hidl through entry points. The object of "
    "this entry point cannot be imported, has the wrong type, or its name is already in use. Files that refer to it "
    "fail with this error.",
)
def broken(plugins: tuple[Plugin, ...]) -> Iterator[Evidence]:
    """Report an error for each plug-in that cannot be used."""
    for plugin in plugins:
        if plugin.problem:
            package = plugin.entry.package.partition(" ")[0]
            yield Evidence(plugin.problem, f"upgrade or uninstall {package}")


def probe_site_file(context: Context) -> Site:
    """Return the site of the context."""
    return context.site


SITE_FILE_RULES: Rules[Site] = Rules()


@SITE_FILE_RULES.rule(
    "HD090",
    "The site is retired",
    severity="error",
    why="The machine has been shut down or is closed to users, so no job can start.",
)
def retired(site: Site) -> Iterator[Evidence]:
    """Report an error if the file has ``status: retired``."""
    if site.status == "retired":
        fix = f"hidl site show {sh(site.successor)}" if site.successor else "list sites in service with: hidl site list"
        yield Evidence(f"status of site {site.name}: retired", fix, where=site.name)


@SITE_FILE_RULES.rule(
    "HD097",
    "The scheduler of the site is unsupported or unknown",
    severity="error",
    why="hidl cannot write job scripts for the site, so `hidl run` and `hidl validate` always fail.",
)
def unsupported_scheduler(site: Site) -> Iterator[Evidence]:
    """Report an error if the file specifies no scheduler, or one that hidl does not support."""
    if reason := unusable(site):
        supported = ", ".join(names())
        fix = f"set `scheduler` in the site file to one of: {supported}" if site.scheduler is None else None
        yield Evidence(
            f"site {site.name}: {reason}",
            fix or f"use a supported scheduler ({supported}), or a plug-in that adds one (hidl.schedulers)",
            where=site.name,
        )


@SITE_FILE_RULES.rule(
    "HD098",
    "The number of cores of a node type is unknown",
    severity="warning",
    why="Without it, ranks get one thread each and are not bound to cores, too many ranks per node are not detected, "
    f"and each node of a twin has {ASSUMED_CORES} cores.",
)
def unknown_cores(site: Site) -> Iterator[Evidence]:
    """Report a warning if a partition uses a node type without ``cores``, unless the number can be detected."""
    if site.hidl_cluster:
        return
    used = {partition.node_type for partition in site.partitions.values()}
    for name, node in site.node_types.items():
        if name in used and node.cores is None and not node.detect:
            key = f"node_types.{name}.cores"
            yield Evidence(f"{key} of site {site.name} is not set", f"set {key} in the site file", where=name)


SUBJECTS = (
    Subject(probe, RULES),
    Subject(probe_plugin, PLUGIN_RULES),
    Subject(probe_site_file, SITE_FILE_RULES),
)

"""Permissions of hidl's configuration files."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import paths
from hidl_cli.doctor.context import Context, Subject
from hidl_cli.quoting import sh
from hidl_workloads.doctor.finding import Evidence, Rules

_ROOT = 0


@dataclass(frozen=True)
class Configuration:
    """A configuration directory of hidl.

    ``exposed`` maps the paths that other users may change to the name of the user, or to ``anyone``.
    """

    directory: Path
    exposed: Mapping[Path, str]


def probe(_context: Context) -> tuple[Configuration, ...]:
    """Return the user's and the system's configuration on this machine, even if another host or site is examined."""
    return tuple(find_exposed(directory) for directory in (paths.user_config(), paths.system_config()))


def find_exposed(directory: Path) -> Configuration:
    """Find paths in a directory that anyone may write to, or that belong neither to root nor to this user.

    The owner of a directory that is set with ``HIDL_SYSTEM_CONFIG`` is trusted as well.
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


SUBJECT = Subject(probe, RULES)

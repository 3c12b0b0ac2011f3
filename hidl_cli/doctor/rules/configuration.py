"""hidl's own files of a user and a centre: who else may change what they say?"""

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
    """A directory that hidl reads; ``open``: what in it others may change, and who (a user's name, or anyone)."""

    directory: Path
    open: Mapping[Path, str]


def probe(_context: Context) -> tuple[Configuration, ...]:
    """The user's directory and the centre's on this machine, whatever host or site is examined."""
    return tuple(find_open(place) for place in (paths.user_config(), paths.system_config()))


def find_open(directory: Path) -> Configuration:
    """The directory, and what in it belongs to another user than root and this one, or may be written by anyone.

    Whoever owns a directory that ``HIDL_SYSTEM_CONFIG`` names is trusted by that.
    """
    trusted = {_ROOT, os.geteuid()}
    if os.environ.get(paths.SYSTEM_CONFIG) and directory == paths.system_config():
        with suppress(OSError):
            trusted.add(directory.stat().st_uid)
    found: dict[Path, str] = {}
    for place, directories, files in os.walk(directory):
        here = [Path(place, name) for name in (*directories, *files)]
        for path in [directory, *here] if Path(place) == directory else here:
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
        return f"the user of number {uid}"


RULES: Rules[tuple[Configuration, ...]] = Rules()


@RULES.rule(
    "HD015",
    "Others may change hidl's configuration",
    severity="warning",
    why="Files of sites, stacks and workloads name programs that hidl runs. Whoever may change them can run what they "
    "like as you.",
)
def open_to_others(configurations: tuple[Configuration, ...]) -> Iterator[Evidence]:
    """A file or directory belongs neither to this user nor to root, or may be written by anyone."""
    for facts in configurations:
        if not facts.open:
            continue
        first, who = next(iter(facts.open.items()))
        place = sh(str(facts.directory))
        more = f", and {len(facts.open) - 1} more" if len(facts.open) > 1 else ""
        yield Evidence(
            f"{first} may be changed by {who}{more}",
            f"ask who set up {facts.directory}; then chown to root or to you what is others', and chmod -R o-w {place}",
            where=str(facts.directory),
        )


SUBJECT = Subject(probe, RULES)

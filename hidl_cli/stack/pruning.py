"""Find what hidl has made and nobody uses any more, with the reason for each item that stays; remove it.

::

    installation   neither in use nor the one before; no run, process, file or recipe names it, nor was it used lately
    unfinished     a prefix that an installation began and never completed
    build          a product in the cache of builds
    log            what was said while installing
    bisect         what a bisect has measured, with its runs; the installations of its two sides stay as long as it
    temporary      what a killed hidl has left in the directory for temporary files, and beside prefixes

How long ago is told by times of files: a Python that starts reads ``pyvenv.cfg`` of its prefix. Of a file system that
notes no such times (``noatime``), the age of the installation and this user's own runs tell it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.inputs.overlay import list_all
from hidl_cli.quoting import sh
from hidl_cli.record.run import Run, all_runs
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.builds import building
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.install import draft
from hidl_cli.stack.installation import held, is_shared, shared
from hidl_cli.stack.lock import SCHEMA
from hidl_cli.stack.order import Order

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def installed(root: Path, site: str, stack: str, *, everything: bool) -> list[Path]:
    """The prefixes that ``uninstall`` would remove: the one in use, or all of the stack, those only begun included.

    Raises ``MissingPrecondition`` where there is none, and ``UsageError`` where one is not hidl's: it is reached over
    a link, or does not hold the lock that hidl writes into a prefix first of all.
    """
    if not _NAME.fullmatch(stack):
        raise UsageError(f"invalid stack name {stack!r}")
    directory = root / site / stack
    current = installation.current(directory)
    found = installation.prefixes(directory) if everything else [current] if current else []
    if not found:
        others = len(installation.prefixes(directory))
        hint = f"{others} that are not in use: remove them with --all" if others else "see `hidl stack list`"
        raise MissingPrecondition(f"stack {stack} is not installed for site {site} in {root}", hint=hint)
    for prefix in found:
        if not is_ours(prefix):
            raise UsageError(f"{prefix} is not an installation of hidl; nothing is removed")
    return found


def uninstall(
    root: Path,
    site: str,
    stack: str,
    *,
    everything: bool,
    reasons: Callable[[Path], Iterable[str]],
    on_wait: Callable[[str], None],
) -> list[Path]:
    """Remove installations of a stack, with their modulefiles and the link to the one in use. Locks and logs stay.

    Args:
        root: Directory of the installations.
        site: Name of the site.
        stack: Name of the stack.
        everything: Remove all installations of the stack, not only the one in use.
        reasons: Return why a prefix must stay. Nothing is removed if one prefix must.
        on_wait: Called with one line for the user if another process holds the lock of the stack.

    Raises:
        MissingPrecondition: Nothing is installed, or a prefix must stay.
        UsageError: A prefix is not an installation of hidl.
    """
    installed(root, site, stack, everything=everything)
    directory = root / site / stack
    with installation.changing(directory), held(directory / ".lock", on_wait):
        found = installed(root, site, stack, everything=everything)
        kept = [f"{prefix}: {reason}" for prefix in found for reason in reasons(prefix)]
        if kept:
            raise MissingPrecondition(
                "the installation is in use; nothing was removed" + "".join(f"\n  {line}" for line in kept),
                hint=f"wait until it is no longer needed, or: hidl uninstall {sh(stack)} --force",
            )
        for prefix in found:
            remove(prefix)
    return found


def remove(prefix: Path) -> None:
    """Remove one prefix of those that ``is_ours`` answers for, with its modulefile and the links to it.

    The lock of its stack must be held.
    """
    directory = prefix.parent
    modulefiles = installation.modulefiles(prefix.parents[2], prefix.parents[1].name, directory.name)
    for link in (installation.CURRENT, installation.PREVIOUS):
        if installation.current(directory, link) == prefix:
            (directory / link).unlink()
            if link == installation.CURRENT:
                (modulefiles / ".version").unlink(missing_ok=True)
    (modulefiles / prefix.name).unlink(missing_ok=True)
    installation.discard(prefix)
    if modulefiles.is_dir() and not any(modulefiles.iterdir()):
        modulefiles.rmdir()


def is_ours(prefix: Path) -> bool:
    """Is it reached over no link below its root, and does it hold the lock that hidl writes into it first of all?"""
    root, site, stack = prefix.parents[2], prefix.parents[1].name, prefix.parent.name
    return prefix.resolve() == root.resolve() / site / stack / prefix.name and _has_our_lock(prefix)


def _has_our_lock(prefix: Path) -> bool:
    try:
        with (prefix / "lock.txt").open(encoding="utf-8") as file:
            return file.readline().strip() == f"# schema: {SCHEMA}"
    except (OSError, UnicodeDecodeError):
        return False


_DAY = 86400.0
#: What is left of killed work is no one's after a day.
_LEFT_SECONDS = _DAY
_TEMPORARY = re.compile(
    r"hidl-(bisect|capsule|dask|fetch|lock|replay|spack|stack|torch)-[a-z0-9_]{8}|\.(offline|repair)-[a-z0-9_]{8}|\.removed-[0-9a-f]{12}"
)
#: Where users may name an installation, beside hidl's own files: collections of Lmod.
_COLLECTIONS = ("~/.config/lmod", "~/.lmod.d")
_LONGEST_FILE = 2**20  # bytes
_OF_OTHERS = "another user's"
#: An installation's id with the path or the module name before it, as in ``/opt/hidl/local/mpi/0123456789ab``.
_MENTION = re.compile(r"""([^\s"'`=:,;()<>\[\]{}]*/)?\b([0-9a-f]{12})\b""")


@dataclass(frozen=True)
class Item:
    """A directory or file. ``used`` is when it was last of use, in seconds since the epoch; ``kept`` why it stays."""

    kind: str
    path: Path
    size: int
    used: float
    kept: str | None = None

    def to_json(self) -> dict[str, Any]:
        """It, as part of a JSON document; times in seconds since the epoch, sizes in bytes."""
        return {
            "kind": self.kind,
            "path": str(self.path),
            "bytes": self.size,
            "used": self.used,
            "kept": self.kept,
        }


@dataclass(frozen=True)
class Pruning:
    """A search among what hidl has made for one site below ``roots``; times are in seconds.

    ``longest_job``: as long as it takes, a job of another user may run from an installation that is in use no more.
    """

    site: Site
    roots: tuple[Path, ...]
    age: float
    now: float
    longest_job: float

    @classmethod
    def older_than(cls, days: float, site: Site, roots: tuple[Path, ...], longest_job: float) -> Pruning:
        """What was of no use for so many days, as of now."""
        return cls(site, roots, days * _DAY, time.time(), longest_job)

    def items(self) -> list[Item]:
        """Everything found, what is kept too."""
        found = [*self._prefixes(), *self._builds(), *self._logs(), *self._bisects, *self._temporary()]
        return [item if item.kept or _is_removable(item.path) else replace(item, kept=_OF_OTHERS) for item in found]

    def remove(self, item: Item, on_wait: Callable[[str], None]) -> str | None:
        """Remove an item that is not kept; returns why not, where something has come to need it meanwhile.

        Raises ``OSError`` where it cannot be removed; what is gone by now is removed.
        """
        try:
            return self._remove(item, on_wait)
        except FileNotFoundError:
            return None

    def _remove(self, item: Item, on_wait: Callable[[str], None]) -> str | None:
        if item.kind in ("installation", "unfinished"):
            with shared(self.site, item.path.parents[2]), held(item.path.parent / ".lock", on_wait):
                again = self._prefix(item.path)
                if again.kept is None:
                    remove(item.path)
                return again.kept
        if item.kind == "build":
            building.remove(item.path, on_wait)
        elif item.path.is_dir():
            shutil.rmtree(item.path)
        else:
            item.path.unlink()
        return None

    def _prefixes(self) -> Iterator[Item]:
        directories = (directory for place in self._places for directory in sorted(place.glob("*")))
        return _items((prefix for each in directories for prefix in installation.prefixes(each)), self._prefix)

    @property
    def _places(self) -> list[Path]:
        """The site's directory of each root."""
        return [root / self.site.name for root in self.roots]

    def _prefix(self, prefix: Path) -> Item:
        published = installation.at(prefix) is not None
        used = _last_used(prefix) if published else prefix.stat().st_mtime
        kept = next(self._reasons(prefix, used), None) if published else self._recent(used, _LEFT_SECONDS)
        if not is_ours(prefix):
            kept = "not an installation of hidl"
        return Item("installation" if published else "unfinished", prefix, installation.size(prefix), used, kept)

    def _reasons(self, prefix: Path, used: float) -> Iterator[str]:
        """Why a published installation stays."""
        for link, words in (
            (installation.CURRENT, "in use"),
            (installation.PREVIOUS, "in use before: hidl stack rollback"),
        ):
            if installation.current(prefix.parent, link) == prefix:
                yield words
        yield from self.users_of(prefix)
        until = prefix.stat().st_mtime + self.longest_job
        if is_shared(self.site, prefix.parents[2]) and self.now < until:
            yield f"jobs may run from it until {datetime.fromtimestamp(until).astimezone():%Y-%m-%d %H:%M}"
        if self._recipe_gives(prefix.parent.name, prefix.parents[2]) == prefix:
            yield "what hidl install gives now"
        if recent := self._recent(max(used, self._ended_runs.get(str(prefix), 0.0)), self.age):
            yield recent

    def users_of(self, prefix: Path) -> Iterator[str]:
        """Describe what would fail if the prefix were removed: a run, a process, a file that names it."""
        if (run := self._runs.get(str(prefix))) is not None:
            yield f"run {run} has not ended"
        if (process := self._processes.get(str(prefix.resolve()))) is not None:
            yield f"process {process} runs from it"
        for mention, file in self._naming.get(prefix.name, {}).items():
            if _is_about(prefix, mention):
                yield f"named in {file} as {mention}"
                return

    def _recent(self, used: float, age: float) -> str | None:
        days = (self.now - used) / _DAY
        return f"used {'today' if days < 1 else f'{days:.0f} day(s) ago'}" if self.now - used < age else None

    @cached_property
    def _runs(self) -> Mapping[str, str]:
        """The run under way of each prefix that has one."""
        return {prefix: run for prefix, run, _, ended in self._plans if not ended}

    @cached_property
    def _ended_runs(self) -> Mapping[str, float]:
        """When the last ended run of each prefix was written to."""
        found: dict[str, float] = {}
        for prefix, _, written, ended in self._plans:
            if ended:
                found[prefix] = max(written, found.get(prefix, 0.0))
        return found

    @cached_property
    def _plans(self) -> list[tuple[str, str, float, bool]]:
        """(prefix, run, time of its last file, has ended) of every run of this user."""
        found = []
        for run in all_runs():
            with suppress(HidlError, FileNotFoundError):  # a damaged run, or one being removed, is not under way
                plan, ended = run.document("plan") or {}, not _is_under_way(run)
                found.append((str(plan.get("prefix")), run.id, run.directory.stat().st_mtime, ended))
        return found

    @cached_property
    def _processes(self) -> Mapping[str, int]:
        """Prefix -> a process on this machine, of those that this user may look at, that has a file of it in memory."""
        places = "|".join(re.escape(str(place.resolve())) for place in self._places)
        place = re.compile(rf"(?:{places})/[^/\n]+/[0-9a-f]{{12}}(?=/)")
        found = {}
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with suppress(OSError):
                text = maps.read_text(encoding="utf-8", errors="replace")
                found.update(dict.fromkeys(place.findall(text), int(maps.parent.name)))
        return found

    @cached_property
    def _naming(self) -> Mapping[str, Mapping[str, Path]]:
        """The mentions of installations in files: id -> path or module name -> file."""
        found: dict[str, dict[str, Path]] = {}
        collections = (Path(place).expanduser() for place in _COLLECTIONS)
        places = (paths.user_config(), paths.system_config(), *collections)
        walks = (walk for place in places for walk in os.walk(place))
        files = [Path(directory, name) for directory, _, names in walks for name in names]
        files += [item.path / "question.json" for item in self._bisects if item.kept]
        for file in files:
            with suppress(OSError):
                if file.is_file() and file.stat().st_size <= _LONGEST_FILE:
                    text = file.read_text(encoding="utf-8", errors="replace")
                    for mention in _MENTION.finditer(text):
                        found.setdefault(mention[2], {}).setdefault(mention[0], file)
        return found

    def _recipe_gives(self, stack: str, root: Path) -> Path | None:
        """The prefix that installing the stack gives now; None where there is no such recipe, or no lock fits."""
        try:
            plan = draft(Order(self.site, load_stack(stack), root)).plan
        except HidlError:
            return None
        return plan.prefix if plan else None

    def _builds(self) -> Iterator[Item]:
        def item(product: Path) -> Item:
            used = building.last_used(product)
            return Item("build", product, installation.size(product), used, self._recent(used, self.age))

        return _items(building.products(), item)

    def _logs(self) -> Iterator[Item]:
        def item(log: Path) -> Item:
            status = log.stat()
            return Item("log", log, status.st_size, status.st_mtime, self._recent(status.st_mtime, self.age))

        return _items(sorted(log for root in self.roots for log in self._logs_in(root)), item)

    def _logs_in(self, root: Path) -> Iterator[Path]:
        """Find the site's logs. Those of a site whose name continues this one's (local-gpu) are not among them."""
        name = self.site.name
        sites = (
            {*(entry.name for entry in list_all("site")), *(each.name for each in root.glob(f"{name}-*"))}
            if root.is_dir()
            else set()
        )
        longer = tuple(f"{other}-" for other in sites if other.startswith(f"{name}-"))
        return (log for log in (root / "logs").glob(f"{name}-*") if not log.name.startswith(longer))

    @cached_property
    def _bisects(self) -> list[Item]:
        def item(bisect: Path) -> Item:
            question = bisect / "question.json"
            used = max(file.stat().st_mtime for file in (question, bisect / "journal.json") if file.is_file())
            jobs = (job.id for job in all_runs(bisect / "jobs") if _is_under_way(job))
            kept = next((f"its job {job} has not ended" for job in jobs), None) or self._recent(used, self.age)
            return Item("bisect", bisect, installation.size(bisect), used, kept)

        return list(_items(sorted(each.parent for each in paths.bisects().glob("*/question.json")), item))

    def _temporary(self) -> Iterator[Item]:
        def item(place: Path) -> Item | None:
            status = place.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                return None
            kept = "a process uses it" if paths.is_in_use(place) else self._recent(status.st_mtime, _LEFT_SECONDS)
            return Item("temporary", place, installation.size(place), status.st_mtime, kept)

        beside = (left for place in self._places for left in place.glob("*/.*-*"))
        found = [*Path(tempfile.gettempdir()).glob("hidl-*"), *beside]
        return _items(sorted(place for place in found if _TEMPORARY.fullmatch(place.name)), item)


def _items(places: Iterable[Path], item: Callable[[Path], Item | None]) -> Iterator[Item]:
    """The items of these places; what another process removes meanwhile is none."""
    for place in places:
        try:
            found = item(place)
        except FileNotFoundError:
            continue
        if found is not None:
            yield found


def _is_about(prefix: Path, mention: str) -> bool:
    """Tell a mention of the prefix or its modulefile from one of another installation with the same id.

    Stacks with equal locks have equal ids. A path that does not exist here may be what another host calls the prefix.
    """
    modulefile = installation.modulefiles(prefix.parents[2], prefix.parents[1].name, prefix.parent.name) / prefix.name
    path = Path(mention)
    if path.is_absolute() and path.exists():
        return path.resolve() in (prefix.resolve(), modulefile.resolve())
    parts = path.parts[-3:] if path.is_absolute() else path.parts[-2:]
    return prefix.parts[-len(parts) :] == parts


def _is_under_way(run: Run) -> bool:
    """Whether it has not ended, so far as its own status says; a damaged one has."""
    try:
        return not run.status().state.is_final
    except HidlError:
        return False


def _is_removable(path: Path) -> bool:
    return os.access(path.parent, os.W_OK)


def _last_used(prefix: Path) -> float:
    """When a Python last started from the prefix, or the prefix was made."""
    made = (prefix / installation.MANIFEST).stat().st_mtime
    settings = prefix / "pyvenv.cfg"
    return max(made, settings.stat().st_atime) if settings.is_file() else made

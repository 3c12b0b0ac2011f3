"""Uninstall stacks, and prune hidl's files that are no longer used.

::

    installation   not in use, not the previous one, unused for a while, and not named by a run, process, file or recipe
    unfinished     the prefix of an incomplete installation
    build          the result of a build, in the build cache
    log            an installation log
    bisect         a bisect and its runs; the installations used by the two compared runs are kept with it
    temporary      temporary files and directories left by killed processes

The last use of an installation is the access time of its ``pyvenv.cfg``, which Python reads when it starts. On a file
system without access times (``noatime``), the last use is derived from the installation's age and the user's own runs.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from hidl_cli.record import Run, all_runs
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.builds import build as builds
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.install import plan_install
from hidl_cli.stack.installation import hold_lock, is_shared, site_permissions
from hidl_cli.stack.lock import SCHEMA
from hidl_cli.stack.order import Order

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def installed(root: Path, site: str, stack: str, *, everything: bool) -> list[Path]:
    """Return the prefixes that ``uninstall`` would remove.

    With ``everything``, these are all prefixes, including incomplete ones. Otherwise, it is only the prefix in use.

    Raises ``MissingPrecondition`` if nothing is installed, and ``UsageError`` if a prefix was not created by hidl (see
    ``is_ours``).
    """
    if not _NAME.fullmatch(stack):
        raise UsageError(f"invalid stack name {stack!r}")
    directory = root / site / stack
    current = installation.current(directory)
    found = installation.prefixes(directory) if everything else [current] if current else []
    if not found:
        others = len(installation.prefixes(directory))
        hint = (
            f"use --all to remove the {others} installation(s) that are not in use"
            if others
            else "see `hidl stack list`"
        )
        raise MissingPrecondition(f"stack {stack} is not installed for site {site} in {root}", hint=hint)
    for prefix in found:
        if not is_ours(prefix):
            raise UsageError(f"{prefix} is not an installation of hidl; nothing was removed")
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
    """Remove a stack's installations with their modulefiles and links. Lockfiles and logs are kept.

    Args:
        root: Directory of the installations.
        site: Name of the site.
        stack: Name of the stack.
        everything: Remove all installations of the stack, not only the one in use.
        reasons: Function that returns the reasons for keeping a prefix. If any prefix must be kept, nothing is removed.
        on_wait: Called with one line for the user if another process holds the stack's lock.

    Raises:
        MissingPrecondition: Nothing is installed, or a prefix must be kept.
        UsageError: A prefix was not created by hidl.
    """
    installed(root, site, stack, everything=everything)
    directory = root / site / stack
    with installation.explain_os_errors(directory), hold_lock(directory / ".lock", on_wait):
        found = installed(root, site, stack, everything=everything)
        kept = [f"{prefix}: {reason}" for prefix in found for reason in reasons(prefix)]
        if kept:
            raise MissingPrecondition(
                "the installation is in use; nothing was removed" + "".join(f"\n  {line}" for line in kept),
                hint=f"wait until it is no longer needed, or run: hidl uninstall {sh(stack)} --force",
            )
        for prefix in found:
            remove(prefix)
    return found


def remove(prefix: Path) -> None:
    """Remove a prefix with its modulefile and the links to it; the caller must hold the stack's lock."""
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
    """Return True if hidl has written a lockfile into the prefix, and its path below the root contains no links."""
    root, site, stack = prefix.parents[2], prefix.parents[1].name, prefix.parent.name
    return prefix.resolve() == root.resolve() / site / stack / prefix.name and _has_our_lock(prefix)


def _has_our_lock(prefix: Path) -> bool:
    try:
        with (prefix / "lock.txt").open(encoding="utf-8") as file:
            return file.readline().strip() == f"# schema: {SCHEMA}"
    except (OSError, UnicodeDecodeError):
        return False


_DAY = 86400.0
#: Age at which the files of killed processes are considered abandoned.
_LEFT_SECONDS = _DAY
_TEMPORARY = re.compile(
    r"hidl-(bisect|capsule|dask|fetch|lock|replay|spack|stack|torch)-[a-z0-9_]{8}|\.(offline|repair)-[a-z0-9_]{8}|\.removed-[0-9a-f]{12}"
)
#: Lmod module collections, which may refer to installations.
_COLLECTIONS = ("~/.config/lmod", "~/.lmod.d")
_LONGEST_FILE = 2**20  # bytes
_OTHER_USERS = "another user's"
#: An installation's id after a path or module name, as in ``/opt/hidl/local/mpi/0123456789ab``.
_MENTION = re.compile(r"""([^\s"'`=:,;()<>\[\]{}]*/)?\b([0-9a-f]{12})\b""")
#: The absolute path of an installation in a script.
_PREFIX = re.compile(r"""(?<![^\s"'`=:;])/[^\s"'`=:,;()<>\[\]{}]*/[0-9a-f]{12}\b""")


@dataclass(frozen=True)
class PruneItem:
    """A file or directory that may be removed.

    ``used`` is the time of its last use in seconds since the epoch, and ``kept`` is the reason for keeping it.
    """

    kind: str
    path: Path
    size: int
    used: float
    kept: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the item as plain data, with times in seconds since the epoch and sizes in bytes."""
        return {"kind": self.kind, "path": str(self.path), "bytes": self.size, "used": self.used, "kept": self.kept}


@dataclass(frozen=True)
class Pruning:
    """A search for a site's unused files below ``roots``; times are in seconds.

    ``longest_job`` is the longest time limit of any job. For this long after an installation was replaced, other users'
    jobs may still be using it.
    """

    site: Site
    roots: tuple[Path, ...]
    age: float
    now: float
    longest_job: float

    @classmethod
    def older_than(cls, days: float, site: Site, roots: tuple[Path, ...], longest_job: float) -> Pruning:
        """Create a search for files that have not been used for ``days``."""
        return cls(site, roots, days * _DAY, time.time(), longest_job)

    def items(self) -> list[PruneItem]:
        """Return all items, including those to keep."""
        found = [*self._prefixes(), *self._builds(), *self._logs(), *self._bisects, *self._temporary()]
        return [item if item.kept or _is_removable(item.path) else replace(item, kept=_OTHER_USERS) for item in found]

    def remove(self, item: PruneItem, on_wait: Callable[[str], None]) -> str | None:
        """Remove an item. If it has come into use in the meantime, keep it and return the reason.

        Raises ``OSError`` if it cannot be removed.
        """
        try:
            return self._remove(item, on_wait)
        except FileNotFoundError:
            return None

    def _remove(self, item: PruneItem, on_wait: Callable[[str], None]) -> str | None:
        if item.kind in ("installation", "unfinished"):
            with site_permissions(self.site, item.path.parents[2]), hold_lock(item.path.parent / ".lock", on_wait):
                again = self._prefix_item(item.path)
                if again.kept is None:
                    remove(item.path)
                return again.kept
        if item.kind == "build":
            builds.remove(item.path, on_wait)
        elif item.path.is_dir():
            shutil.rmtree(item.path)
        else:
            item.path.unlink()
        return None

    def _prefixes(self) -> Iterator[PruneItem]:
        directories = (directory for place in self._site_directories for directory in sorted(place.glob("*")))
        return _items((prefix for each in directories for prefix in installation.prefixes(each)), self._prefix_item)

    @property
    def _site_directories(self) -> list[Path]:
        """The site's directory in each root."""
        return [root / self.site.name for root in self.roots]

    def _prefix_item(self, prefix: Path) -> PruneItem:
        used = prefix.stat().st_mtime
        if is_unfinished := installation.has_no_manifest(prefix):
            reasons = self._reasons_to_keep_any(prefix)
            kept = next(reasons, None) or self._recent(used, _LEFT_SECONDS)
        elif installation.at(prefix) is None:
            kept = next(self._reasons_to_keep_any(prefix), "damaged, or its Python cannot be reached from here")
        else:
            used = _last_used(prefix)
            kept = next(self._reasons(prefix, used), None)
        if not is_ours(prefix):
            kept = "not an installation of hidl"
        return PruneItem(
            "unfinished" if is_unfinished else "installation", prefix, installation.size(prefix), used, kept
        )

    def _reasons_to_keep_any(self, prefix: Path) -> Iterator[str]:
        """Yield the reasons to keep a prefix, complete or not."""
        for link, words in (
            (installation.CURRENT, "in use"),
            (installation.PREVIOUS, "previous installation, for hidl stack rollback"),
        ):
            if installation.current(prefix.parent, link) == prefix:
                yield words
        yield from self.users_of(prefix)

    def _reasons(self, prefix: Path, used: float) -> Iterator[str]:
        """Yield the reasons to keep a published installation."""
        yield from self._reasons_to_keep_any(prefix)
        until = prefix.stat().st_mtime + self.longest_job
        if is_shared(self.site, prefix.parents[2]) and self.now < until:
            yield f"jobs may use it until {datetime.fromtimestamp(until).astimezone():%Y-%m-%d %H:%M}"
        current = self._current_prefix(prefix.parent.name, prefix.parents[2])
        if current is not None and _resolved(current) == _resolved(prefix):
            yield "current result of hidl install"
        if recent := self._recent(max(used, self._ended_runs.get(_resolved(prefix), 0.0)), self.age):
            yield recent

    def users_of(self, prefix: Path) -> Iterator[str]:
        """Yield the users of a prefix: runs, processes, and files that mention it."""
        resolved = _resolved(prefix)
        if (run := self._runs.get(resolved)) is not None:
            yield run
        if (process := self._processes.get(str(resolved))) is not None:
            yield f"process {process} uses it"
        for mention, file in self._mentions.get(prefix.name, {}).items():
            if _names_prefix(prefix, mention):
                yield f"named in {file} as {mention}"
                return

    def _recent(self, used: float, age: float) -> str | None:
        days = (self.now - used) / _DAY
        return f"used {'today' if days < 1 else f'{days:.0f} day(s) ago'}" if self.now - used < age else None

    @cached_property
    def _runs(self) -> Mapping[Path, str]:
        """A description of an active run for each prefix that has one, by its path without links."""
        return {prefix: f"run {run} {activity}" for prefix, run, _, activity in self._plans if activity}

    @cached_property
    def _ended_runs(self) -> Mapping[Path, float]:
        """For each prefix, by its path without links, the modification time of the last run that ended."""
        found: dict[Path, float] = {}
        for prefix, _, written, activity in self._plans:
            if activity is None:
                found[prefix] = max(written, found.get(prefix, 0.0))
        return found

    @cached_property
    def _plans(self) -> list[tuple[Path, str, float, str | None]]:
        """For each of this user's runs: its resolved prefix, id and modification time, and why it is active, if it is.

        A run whose plan cannot be read has an entry for each prefix in its job script.
        """
        found = []
        for run in all_runs():
            with suppress(OSError):  # it was removed meanwhile
                activity, written = _activity(run), run.directory.stat().st_mtime
                found += [(prefix, run.id, written, activity) for prefix in _used_prefixes(run)]
        return found

    @cached_property
    def _processes(self) -> Mapping[str, int]:
        """For each prefix, a process on this machine that uses it (see ``_places_of``), except this process.

        Other users' processes may not be visible, or only their command lines.
        """
        places = "|".join(re.escape(str(place.resolve())) for place in self._site_directories)
        place = re.compile(rf"(?:{places})/[^/\n\0]+/[0-9a-f]{{12}}(?=/)")
        own = set(_environment_places(os.environ, Path("/proc/self/cwd")))
        related = _related_processes()
        found: dict[str, int] = {}
        for process in Path("/proc").glob("[0-9]*"):
            pid = int(process.name)
            if pid != os.getpid():
                used = "\n".join(_places_of(process, own if pid in related else set()))
                found.update(dict.fromkeys(place.findall(used), pid))
        return found

    @cached_property
    def _mentions(self) -> Mapping[str, Mapping[str, Path]]:
        """The installations mentioned in files, as nested mappings: id -> path or module name -> file name."""
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

    def _current_prefix(self, stack: str, root: Path) -> Path | None:
        """Return the prefix that ``hidl install`` would use now, or None if there is no recipe or suitable lockfile."""
        try:
            plan = plan_install(Order(self.site, load_stack(stack), root)).plan
        except HidlError:
            return None
        return plan.prefix if plan else None

    def _builds(self) -> Iterator[PruneItem]:
        def item(product: Path) -> PruneItem:
            used = builds.last_used(product)
            return PruneItem("build", product, installation.size(product), used, self._recent(used, self.age))

        return _items(builds.products(), item)

    def _logs(self) -> Iterator[PruneItem]:
        def item(log: Path) -> PruneItem:
            status = log.stat()
            return PruneItem("log", log, status.st_size, status.st_mtime, self._recent(status.st_mtime, self.age))

        return _items(sorted(log for root in self.roots for log in self._logs_in(root)), item)

    def _logs_in(self, root: Path) -> Iterator[Path]:
        """Yield the site's logs, but not those of a site with a longer name (``local-gpu`` for site ``local``)."""
        name = self.site.name
        sites = (
            {*(entry.name for entry in list_all("site")), *(each.name for each in root.glob(f"{name}-*"))}
            if root.is_dir()
            else set()
        )
        longer = tuple(f"{other}-" for other in sites if other.startswith(f"{name}-"))
        return (log for log in (root / "logs").glob(f"{name}-*") if not log.name.startswith(longer))

    @cached_property
    def _bisects(self) -> list[PruneItem]:
        def item(bisect: Path) -> PruneItem:
            question = bisect / "question.json"
            used = max(file.stat().st_mtime for file in (question, bisect / "journal.json") if file.is_file())
            jobs = ((job.id, _activity(job)) for job in all_runs(bisect / "jobs"))
            kept = next((f"its job {job} {activity}" for job, activity in jobs if activity), None)
            kept = kept or self._recent(used, self.age)
            return PruneItem("bisect", bisect, installation.size(bisect), used, kept)

        return list(_items(sorted(each.parent for each in paths.bisects().glob("*/question.json")), item))

    def _temporary(self) -> Iterator[PruneItem]:
        def item(place: Path) -> PruneItem | None:
            status = place.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                return None
            kept = "a process uses it" if paths.is_in_use(place) else self._recent(status.st_mtime, _LEFT_SECONDS)
            return PruneItem("temporary", place, installation.size(place), status.st_mtime, kept)

        beside = (left for place in self._site_directories for left in place.glob("*/.*-*"))
        found = [*Path(tempfile.gettempdir()).glob("hidl-*"), *beside]
        return _items(sorted(place for place in found if _TEMPORARY.fullmatch(place.name)), item)


def _items(places: Iterable[Path], item: Callable[[Path], PruneItem | None]) -> Iterator[PruneItem]:
    """Yield an item for each path, but skip paths that another process has removed."""
    for place in places:
        try:
            found = item(place)
        except FileNotFoundError:
            continue
        if found is not None:
            yield found


def _places_of(process: Path, ignored: Collection[str]) -> Iterator[str]:
    """Yield the files and directories that a process uses: its program, working directory, open and mapped files.

    The Python of a virtual environment is a link to a file elsewhere, which is all that the kernel knows. Therefore,
    the directories of the words that started the process also count, and those that its environment activates, because
    programs that it starts later are found there.

    Args:
        process: Directory of the process in ``/proc``.
        ignored: Directories that do not count if only the environment contains them.
    """
    for link in (process / "exe", process / "cwd", *_entries(process / "fd")):
        if target := _target(link):
            yield f"{target}/"
    with suppress(OSError):
        yield (process / "maps").read_text(encoding="utf-8", errors="replace")
    directory = process / "cwd"
    environment = dict(part.partition("=")[::2] for part in _strings(process / "environ"))
    program, *others = _strings(process / "cmdline")[:2] or [""]
    if program and "/" not in program:
        searched = (Path(directory, place or ".", program) for place in environment.get("PATH", "").split(":"))
        program = str(next(filter(_is_file, searched), ""))
    for word in (program, *others):
        if "/" in word:
            yield f"{_resolved(Path(directory, word).parent)}/"
    yield from (place for place in _environment_places(environment, directory) if place not in ignored)


#: Variables with directories in which a process finds programs, libraries and modules.
_SEARCHED = ("VIRTUAL_ENV", "PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


def _environment_places(environment: Mapping[str, str], directory: Path) -> Iterator[str]:
    """Yield the directories that a process with this environment searches; ``directory`` is its working directory."""
    for name in _SEARCHED:
        for place in filter(None, environment.get(name, "").split(":")):
            yield f"{_resolved(Path(directory, place))}/"


def _related_processes() -> set[int]:
    """Return this process's ancestors, its children and the other programs of its pipeline.

    If hidl is called in an activated shell, they have the same environment without using the installation. Other
    processes of its group may use it: a script starts its background processes in its own group.
    """
    own = os.getpid()
    processes = {own, *(int(process.name) for process in Path("/proc").glob("[0-9]*"))}
    parents = {pid: _parent_of(pid) for pid in processes}
    found = {pid for pid, parent in parents.items() if parent == own}
    ancestor = parents[own]
    while ancestor:
        found.add(ancestor)
        ancestor = parents.get(ancestor, 0)
    pipes = {pid: (_pipes_of(pid, 0), _pipes_of(pid, 1, 2)) for pid in processes}
    for here, there in ((1, 0), (0, 1)):  # the programs after this one, then those before it
        reached = {own}
        while reached:
            between = {pipe for pid in reached for pipe in pipes[pid][here]}
            reached = {pid for pid in processes - found - {own} if pipes[pid][there] & between}
            found |= reached
    return found


def _parent_of(pid: int) -> int:
    """Return the parent of a process, or 0 if there is none or it is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[1])
    except (OSError, IndexError):
        return 0


def _pipes_of(pid: int, *streams: int) -> set[str]:
    """Return the pipes to which these standard streams of a process are connected, such as ``pipe:[4711]``."""
    targets = (str(_target(Path(f"/proc/{pid}/fd/{stream}"))) for stream in streams)
    return {target for target in targets if target.startswith("pipe:")}


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _target(link: Path) -> Path | None:
    try:
        return link.readlink()
    except OSError:
        return None


def _strings(file: Path) -> list[str]:
    """Return the strings in a file of ``/proc``, which are separated by NUL characters."""
    try:
        return [os.fsdecode(each) for each in file.read_bytes().split(b"\0")]
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return path


def _names_prefix(prefix: Path, mention: str) -> bool:
    """Return True if the text refers to this prefix or its modulefile, not to another one with the same id.

    Stacks with equal lockfiles have equal ids. A path that does not exist here may be the prefix on another host.
    """
    modulefile = installation.modulefiles(prefix.parents[2], prefix.parents[1].name, prefix.parent.name) / prefix.name
    path = Path(mention)
    if path.is_absolute() and path.exists():
        return path.resolve() in (prefix.resolve(), modulefile.resolve())
    parts = path.parts[-3:] if path.is_absolute() else path.parts[-2:]
    return prefix.parts[-len(parts) :] == parts


def _activity(run: Run) -> str | None:
    """Return why a run counts as active, or None if its recorded status is final."""
    try:
        return None if run.status().state.is_final else "has not ended"
    except HidlError:  # its job may still be in the queue
        return "may not have ended: its status cannot be read"


def _used_prefixes(run: Run) -> set[Path]:
    """Return the resolved prefix of a run, or all prefixes in its job script if its plan cannot be read.

    Raises ``OSError`` if both are unreadable.
    """
    try:
        plan = run.document("plan") or {}
        return {_resolved(Path(str(plan.get("prefix"))))}
    except HidlError:
        script = run.script.read_text(encoding="utf-8", errors="replace")
        return {_resolved(Path(each)) for each in _PREFIX.findall(script)}


def _is_removable(path: Path) -> bool:
    return os.access(path.parent, os.W_OK)


def _last_used(prefix: Path) -> float:
    """Return the time when the prefix was created, or when Python was last started from it."""
    made = (prefix / installation.MANIFEST).stat().st_mtime
    settings = prefix / "pyvenv.cfg"
    return max(made, settings.stat().st_atime) if settings.is_file() else made

"""Installations: prefixes that hold one locked stack each, found by site and stack.

::

    <root>/<site>/<stack>/<id>/              a prefix; it counts as soon as its manifest.json is there, written last
    <root>/<site>/<stack>/current            a link to the installation in use
    <root>/<site>/<stack>/previous           a link to the one that was in use before it
    <root>/modulefiles/<site>/<stack>/<id>   the modulefile of each, and .version, which names the one in use
    <root>/locks/                            locks that were made here
    <root>/logs/                             what was said while installing
"""

from __future__ import annotations

import errno
import fcntl
import grp
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import paths
from hidl_cli.documents import read_json, write_text
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.quoting import sh
from hidl_cli.site.schema import Site
from hidl_cli.stack import own_wheel

if TYPE_CHECKING:
    from hidl_cli.mpi import Family
    from hidl_cli.site.schema import Site


#: What a file system without locks answers.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_POLL_SECONDS = 0.2
_ATTEMPTS = 100


@contextmanager
def held(file: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock ``file`` (made where it is missing); ``on_wait`` gets one line for the user if another has it.

    Raises ``HidlError`` if it is a link or no file: where others may write, it could lead to a file of this user,
    which would be overwritten.

    The kernel frees the lock when its owner ends in whatever way, so there are no stale ones; the file stays. This is
    ``flock`` itself and not the package filelock, because the locked file carries the owner, and for the 60 ms that
    importing it takes.
    """
    descriptor = _opened(file)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait(f"waiting for {_owner(descriptor)}, which works in {file.parent}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                with _held_by_name(file, on_wait):
                    yield
                return
            if not _was_removed(descriptor, file):
                break
            removed, descriptor = descriptor, _opened(file)
            os.close(removed)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_self()).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _was_removed(descriptor: int, file: Path) -> bool:
    """Return whether the owner removed the file before it freed the lock: another process may lock a new one."""
    try:
        return not os.path.samestat(os.fstat(descriptor), file.lstat())
    except FileNotFoundError:
        return True


def _opened(file: Path) -> int:
    for attempt in range(_ATTEMPTS):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            break
        except (FileNotFoundError, FileExistsError):  # the last owner removed the directory just now
            if attempt == _ATTEMPTS - 1:
                raise
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise _refused(file, "a link") from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise _refused(file, "a second name of another file" if status.st_nlink > 1 else "no file")


def _refused(file: Path, what: str) -> HidlError:
    return HidlError(f"cannot lock {file}: it is {what}", hint=f"see who made it: ls -l {sh(str(file))}")


@contextmanager
def _held_by_name(file: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """The same where the file system knows no locks, as NFS without its lock daemon.

    A directory that holds its owner's name takes the place ``<file>.d``, which succeeds only while that is missing or
    empty. Of an owner that was killed the name is removed: by whoever waits on the same host, elsewhere by hand.
    """
    owner = f"{os.uname().nodename}:{os.getpid()}"
    place, mine = file.with_name(f"{file.name}.d"), file.with_name(f"{file.name}.{owner}")
    shutil.rmtree(mine, ignore_errors=True)  # of a process before this one with its number
    mine.mkdir()
    (mine / owner).touch()
    try:
        _take(place, mine, on_wait)
        yield
    finally:
        (place / owner).unlink(missing_ok=True)
        shutil.rmtree(mine, ignore_errors=True)


def _take(place: Path, mine: Path, on_wait: Callable[[str], None]) -> None:
    told = False
    while True:
        try:
            mine.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
        for name in place.iterdir() if place.is_dir() else ():
            if _is_gone(name.name):
                name.unlink(missing_ok=True)
            elif not told:
                on_wait(f"waiting for hidl on {name.name}; if it has ended: rm {sh(str(name))}")
                told = True
        time.sleep(_POLL_SECONDS)


def _is_gone(owner: str) -> bool:
    """Was it a process of this host, and is there none of its number?"""
    host, _, pid = owner.rpartition(":")
    return host == os.uname().nodename and pid.isdecimal() and not Path("/proc", pid).exists()


def _self() -> dict[str, object]:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    user = os.environ.get("USER") or f"uid {os.getuid()}"
    return {"pid": os.getpid(), "user": user, "host": os.uname().nodename, "since": since}


def _owner(descriptor: int) -> str:
    """Who holds the lock, in words; it may be about to write that down."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"hidl with pid {owner['pid']} of {owner['user']} on {owner['host']}, started {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another hidl"


# A centre's root, into which several people install: its directories' group, and the umask of what is made there.


#: With a group and no umask: its members may change what is installed, others may read it.
_UMASK = "002"


@contextmanager
def shared(site: Site, root: Path) -> Iterator[None]:
    """Files are made below the site's own root as ``install.group`` and ``install.umask`` say; elsewhere as ever.

    The umask is the process', for all its threads. Raises ``MissingPrecondition`` where there is no such group, or the
    root cannot be given to it.
    """
    group, umask = site.install.group, site.install.umask
    if not is_shared(site, root) or not (group or umask):
        yield
        return
    before = os.umask(int(umask or _UMASK, 8) | 0o002)
    try:
        if group is not None:
            _give(root, group)
        yield
    finally:
        os.umask(before)


def is_shared(site: Site, root: Path) -> bool:
    """Is it the place that the site's file names, where others find what is installed?"""
    return site.install.root is not None and root == installation_root(site)


def _give(root: Path, group: str) -> None:
    """Make the root a directory of the group, which all that is made in it inherits (setgid)."""
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        raise MissingPrecondition(
            f"there is no group {group!r} on this machine", hint="see `install.group` in the site's file"
        ) from None
    root.mkdir(parents=True, exist_ok=True)
    status = root.stat()
    wanted = stat.S_IMODE(status.st_mode) | stat.S_ISGID | stat.S_IRWXG
    if (status.st_gid, stat.S_IMODE(status.st_mode)) == (number, wanted):
        return
    try:
        os.chown(root, -1, number)
        root.chmod(wanted)
    except PermissionError as error:
        raise MissingPrecondition(
            f"{root} cannot be given to the group {group}: {error.strerror}",
            hint=f"its owner, as a member of that group: chgrp -R {sh(group)} {sh(str(root))} && "
            f"find {sh(str(root))} -type d -exec chmod g+rwxs {{}} + -o -name .lock -exec chmod g+rw {{}} +",
        ) from error


SCHEMA = "hidl.installation/1"
CURRENT, PREVIOUS = "current", "previous"
MANIFEST = "manifest.json"

_ID = re.compile(r"[0-9a-f]{12}")

#: A stack's Python must not see modules of another one, nor look for its library elsewhere.
UNSET = ("PYTHONHOME", "PYTHONPATH")


@dataclass(frozen=True)
class Installation:
    """A published installation. ``manifest`` is the document of schema ``hidl.installation/1``."""

    prefix: Path
    manifest: Mapping[str, Any] = field(repr=False)

    @classmethod
    def at(cls, prefix: Path) -> Installation:
        """An installation that is assumed to be at ``prefix``: for plans that are not run. Nothing is read."""
        return cls(prefix, {"lock": {"digest": ""}})

    @property
    def root(self) -> Path:
        """The root that it lies below."""
        return self.prefix.parents[2]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.prefix / "bin" / "python"

    def run_module(self, module: str) -> tuple[str, ...]:
        """The begin of the command line that runs a module of hidl's with its Python."""
        return (str(self.python), "-m", module)

    @property
    def mpiexec(self) -> Path:
        """The mpiexec of the very MPI that its mpi4py is linked to."""
        return self.prefix / "bin" / "mpiexec"

    @property
    def activate(self) -> Path:
        """The script that a POSIX shell sources to use it."""
        return self.prefix / "activate.sh"

    @property
    def lock(self) -> str:
        """The SHA-256 of the lock's body."""
        return str(self.manifest["lock"]["digest"])

    def version_of(self, package: str) -> str | None:
        """The version of one of its packages, built ones too; None where it has none of that name."""
        built = {build["name"]: build["version"] for build in self.manifest.get("builds", ())}
        version = {**self.manifest.get("packages", {}), **built}.get(package)
        return None if version is None else str(version)

    @property
    def mpi(self) -> tuple[Family, str | None] | None:
        """The family and version of its MPI library; None where its manifest is of before that was noted."""
        noted = self.manifest.get("mpi")
        return (noted["family"], noted["version"]) if noted else None

    @property
    def is_current(self) -> bool:
        """Is it the one in use?"""
        return current(self.prefix.parent) == self.prefix

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with this stack activated: what the activation script does, for programs that hidl starts."""
        kept = {name: value for name, value in base.items() if name not in UNSET}
        path = os.pathsep.join(part for part in (str(self.prefix / "bin"), base.get("PATH")) if part)
        return {**kept, "PATH": path, **variables(self.prefix, self.prefix.parent.name)}


def variables(prefix: Path, stack: str) -> dict[str, str]:
    """The variables that an activated stack sets, beside PATH."""
    return {"VIRTUAL_ENV": str(prefix), "HIDL_STACK": stack}


def installation_root(site: Site, prefix: str | None = None) -> Path:
    """Where installations for ``site`` lie: ``prefix`` if given, else the site's place, else the user's own.

    ``MissingPrecondition`` where the site's place names a variable that is not set.
    """
    return Path(prefix).expanduser().absolute() if prefix else _usual_root(site)


def own_root() -> Path:
    """Where a user installs for himself, and a site whose file names no place."""
    return paths.user_data() / "installations"


def roots(site: Site, prefix: str | None = None) -> tuple[Path, ...]:
    """Where stacks are looked for, in this order: in ``prefix`` alone if given, else the user's own place, the site's.

    Raises what ``root`` raises.
    """
    usual = installation_root(site, prefix)
    return (usual,) if prefix else tuple(dict.fromkeys((own_root(), usual)))


def root_of(site: Site, stack: str, prefix: str | None = None) -> Path:
    """The first of ``roots`` where one of the stack's installations is in use; the last where none is."""
    places = roots(site, prefix)
    return next((place for place in places if current(place / site.name / stack)), places[-1])


def behind(site: Site, root: Path) -> tuple[Path, ...]:
    """``root``, and behind the user's own place the site's, where that is known."""
    try:
        return tuple(dict.fromkeys((root, _usual_root(site)))) if root == own_root() else (root,)
    except MissingPrecondition:
        return (root,)


def _usual_root(site: Site) -> Path:
    place = site.install.root
    if place is None:
        return own_root()
    unset = [name for name in re.findall(r"\$\{?(\w+)", place) if name not in os.environ]
    if unset:
        raise MissingPrecondition(
            f"`install.root` of site {site.name} is {place}, and {', '.join(unset)} is not set",
            hint="set it, or choose a place with --prefix",
        )
    return Path(os.path.expandvars(place)).expanduser().absolute()


def find(site: Site, stack: str, *, root: Path) -> Installation:
    """The installation of ``stack`` in use, made by this very hidl; ``MissingPrecondition`` where there is none."""
    again = hint(stack, site, root)
    prefix = current(root / site.name / stack)
    if prefix is None:
        raise MissingPrecondition(f"stack {stack} is not installed for site {site.name} in {root}", hint=again)
    installation = at(prefix)
    if installation is None:
        python = prefix / "bin" / "python"
        why = "it has no valid manifest" if os.access(python, os.X_OK) else _describe_missing(python)
        raise MissingPrecondition(f"the installation {prefix} is damaged: {why}", hint=again)
    if foreign := of_another_hidl(installation):
        raise MissingPrecondition(foreign, hint=f"{again}; the lock stays the same")
    return installation


def _describe_missing(python: Path) -> str:
    links = f" (a link to {python.readlink()})" if python.is_symlink() else ""
    return f"its interpreter {python}{links} is missing or cannot be executed"


def of_another_hidl(installation: Installation) -> str | None:
    """Why this very hidl cannot use the installation, in words; None where it can."""
    held = installation.manifest["own"]
    libraries = (own_wheel.library(name) for name in own_wheel.libraries() if name in held)
    for wheel in (own_wheel.workloads(), *libraries):
        if held.get(wheel.name, {}).get("digest") != wheel.digest:
            return f"the installation {installation.prefix} holds the {wheel.name} of another hidl than this one"
    return None


def hint(stack: str, site: Site, root: Path) -> str:
    """The command that installs the stack there."""
    words = f"hidl install {sh(stack)}" + ("" if site.name == "local" else f" --site {sh(site.name)}")
    if root == _usual_root(site):
        return words
    return f"{words} --own" if root == own_root() else f"{words} --prefix {sh(str(root))}"


def at(prefix: Path) -> Installation | None:
    """The published installation at ``prefix``; None where there is none, or its manifest is damaged."""
    try:
        manifest = read_json(prefix / MANIFEST)
        whole = manifest["schema"] == SCHEMA and manifest["id"] == prefix.name and _usable(manifest, prefix)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Installation(prefix, manifest) if whole else None


def _usable(manifest: Mapping[str, Any], prefix: Path) -> bool:
    """Are the parts there that others rely on, and does the interpreter still exist that ``bin/python`` links to?"""
    parts = [manifest["lock"]["digest"], manifest["own"], manifest["site"], manifest["packages"]]
    return None not in parts and os.access(prefix / "bin" / "python", os.X_OK)


def current(stack_directory: Path, link: str = CURRENT) -> Path | None:
    """The prefix that ``current`` (or ``previous``) links to; None where no such link is or it leads elsewhere."""
    try:
        name = str((stack_directory / link).readlink())
    except OSError:
        return None
    return stack_directory / name if _ID.fullmatch(name) else None


def publish(prefix: Path) -> None:
    """Show a complete installation to ``module avail`` and make it the one in use; each change is atomic.

    The one that was in use becomes the previous one; the time of its directory tells until when it was in use.
    """
    directory = modulefiles(prefix.parents[2], prefix.parents[1].name, prefix.parent.name)
    write_text(directory / prefix.name, (prefix / "modulefile").read_text(encoding="utf-8"))
    write_text(directory / ".version", f"#%Module1.0\nset ModulesVersion {prefix.name}\n")
    before = current(prefix.parent)
    if before is not None and before != prefix:
        if before.is_dir():
            os.utime(before)  # first: where it is not allowed, nothing has changed
        _link(before, PREVIOUS)
    _link(prefix, CURRENT)


def _link(prefix: Path, name: str) -> None:
    """Make the link ``name`` beside the prefix lead to it, at once."""
    beside = prefix.with_name(f".{name}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(prefix.name)
    beside.replace(prefix.with_name(name))


@contextmanager
def changing(stack_directory: Path) -> Iterator[None]:
    """``MissingPrecondition`` in the place of an ``OSError``, as where another user has installed the stack."""
    try:
        yield
    except OSError as error:
        at_fault = f": {error.filename}" if error.filename else ""
        raise MissingPrecondition(
            f"cannot change what is installed in {stack_directory}: {error.strerror or error}{at_fault}",
            hint="ask who installed it, or install your own: hidl install STACK --own",
        ) from error


def modulefiles(root: Path, site: str, stack: str) -> Path:
    """The directory of a stack's modulefiles; ``module use`` takes its parent."""
    return root / "modulefiles" / site / stack


def prefixes(stack_directory: Path) -> list[Path]:
    """Every prefix of one stack, published or not; links are none."""
    if not stack_directory.is_dir():
        return []
    return sorted(p for p in stack_directory.iterdir() if _ID.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def in_use(site: Site, prefix: str | None = None) -> list[Installation]:
    """The installation in use of each stack of the site: the user's own before the site's; ``prefix``: as ``roots``."""
    found: dict[str, Installation] = {}
    for place in roots(site, prefix):
        for each in list_all(place):
            if each.is_current and each.manifest["site"] == site.name:
                found.setdefault(each.prefix.parent.name, each)
    return list(found.values())


def list_all(root: Path) -> Iterator[Installation]:
    """Every published installation below ``root``, by site and stack."""
    for manifest in sorted(root.glob(f"*/*/*/{MANIFEST}")):
        installation = at(manifest.parent) if _ID.fullmatch(manifest.parent.name) else None
        if installation is not None:
            yield installation


def size(prefix: Path) -> int:
    """Bytes on disk below ``prefix``; a file with several names counts once, one that vanishes meanwhile not at all."""
    seen: dict[tuple[int, int], int] = {}
    for directory, _, files in os.walk(prefix):
        for name in files:
            try:
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - ten thousands of files
            except FileNotFoundError:
                continue
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def discard(prefix: Path) -> None:
    """Remove a prefix, published or begun: it vanishes at once, and what links in it lead to stays."""
    for left in prefix.parent.glob(".removed-*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    if prefix.is_dir() and not prefix.is_symlink():
        gone = prefix.with_name(f".removed-{prefix.name}")
        prefix.rename(gone)
        shutil.rmtree(gone)


# Which installation of a stack is in use: another one, or the one before.


@dataclass(frozen=True)
class Switch:
    """``used`` is in use now, ``before`` was until now; both are the same where nothing had to be done."""

    used: Installation
    before: Path | None


def use(site: Site, stack: str, which: str, *, root: Path, on_wait: Callable[[str], None]) -> Switch:
    """Make the installation whose id starts with ``which`` the one in use.

    Raises what ``choose`` raises, and ``MissingPrecondition`` where it is of another hidl.
    """
    return _switch(site, choose(site, stack, which, root=root), root, on_wait)


def choose(site: Site, stack: str, which: str, *, root: Path) -> Installation:
    """The installation whose id starts with ``which``.

    Raises ``MissingPrecondition`` where there is none, and ``UsageError`` where there are several.
    """
    fitting = [found for found in _published(root / site.name / stack) if found.prefix.name.startswith(which)]
    if not which or not fitting:
        raise MissingPrecondition(
            f"stack {stack} has no installation {which!r} for site {site.name} in {root}",
            hint=_others(site, stack, root),
        )
    if len(fitting) > 1:
        raise UsageError(
            f"{len(fitting)} installations of stack {stack} match {which!r}", hint=_others(site, stack, root)
        )
    return fitting[0]


def rollback(site: Site, stack: str, *, root: Path, on_wait: Callable[[str], None]) -> Switch:
    """Make the installation that was in use before the one in use again; a second time takes that back.

    ``MissingPrecondition`` where none was, or it is gone.
    """
    before = current(root / site.name / stack, PREVIOUS)
    found = at(before) if before else None
    if found is None:
        gone = f"the installation {before} is gone or damaged" if before else "no other one was in use before"
        raise MissingPrecondition(
            f"stack {stack} on site {site.name} cannot be rolled back: {gone}", hint=_others(site, stack, root)
        )
    return _switch(site, found, root, on_wait)


def _switch(site: Site, wanted: Installation, root: Path, on_wait: Callable[[str], None]) -> Switch:
    directory, stack = wanted.prefix.parent, wanted.prefix.parent.name
    if foreign := of_another_hidl(wanted):
        raise MissingPrecondition(foreign, hint=f"use it with that hidl, or: {hint(stack, site, root)}")
    if current(directory) == wanted.prefix:
        return Switch(wanted, wanted.prefix)
    with shared(site, root), changing(directory), held(directory / ".lock", on_wait):
        before = current(directory)
        publish(wanted.prefix)
    return Switch(wanted, before)


def _published(directory: Path) -> list[Installation]:
    return [found for prefix in prefixes(directory) if (found := at(prefix))]


def _others(site: Site, stack: str, root: Path) -> str:
    """What can be used instead."""
    directory = root / site.name / stack
    used = current(directory)
    ids = [f"{each.prefix.name}{' (in use)' * (each.prefix == used)}" for each in _published(directory)]
    return f"installed: {', '.join(ids)}; hidl stack use {sh(stack)} ID" if ids else hint(stack, site, root)

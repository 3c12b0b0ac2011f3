"""Installations: prefixes that each contain one locked stack and are looked up by site and stack.

::

    <root>/<site>/<stack>/<id>/              a prefix; complete once its manifest.json exists, which is written last
    <root>/<site>/<stack>/current            a link to the installation in use
    <root>/<site>/<stack>/previous           a link to the installation that was in use before
    <root>/modulefiles/<site>/<stack>/<id>   the modulefiles, and .version, which names the default
    <root>/locks/                            lockfiles created here
    <root>/logs/                             installation logs
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


#: Errors raised on file systems that do not support locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_POLL_SECONDS = 0.2
_ATTEMPTS = 100


@contextmanager
def hold_lock(file: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock ``file``, which is created if missing.

    If another process holds it, ``on_wait`` is called with a message.

    Raises ``HidlError`` if the path is a link or not a regular file: in a directory that others can write to, a link
    could point to one of this user's files, which would be overwritten.

    The kernel frees the lock when its owner exits, so there are no stale locks, although the file remains. We call
    ``flock`` directly because the locked file records the owner, and because importing the ``filelock`` package takes
    60 ms.
    """
    descriptor = _open_lock(file)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait(f"waiting for {_describe_owner(descriptor)}, which is using {file.parent}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                with _hold_by_rename(file, on_wait):
                    yield
                return
            if not _is_removed(descriptor, file):
                break
            removed, descriptor = descriptor, _open_lock(file)
            os.close(removed)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_own_record()).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _is_removed(descriptor: int, file: Path) -> bool:
    """Return True if the file was removed before we locked it.

    In that case, another process may lock a new file with that name.
    """
    try:
        return not os.path.samestat(os.fstat(descriptor), file.lstat())
    except FileNotFoundError:
        return True


def _open_lock(file: Path) -> int:
    for attempt in range(_ATTEMPTS):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            break
        except (FileNotFoundError, FileExistsError):  # the last owner has just removed the directory
            if attempt == _ATTEMPTS - 1:
                raise
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise _lock_error(file, "a symbolic link") from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise _lock_error(file, "a hard link to another file" if status.st_nlink > 1 else "not a regular file")


def _lock_error(file: Path, what: str) -> HidlError:
    return HidlError(f"cannot lock {file}: it is {what}", hint=f"check who created it: ls -l {sh(str(file))}")


@contextmanager
def _hold_by_rename(file: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock on a file system without ``flock``, such as NFS without its lock daemon.

    A directory with a file named after the owner is renamed to ``<file>.d``, which succeeds only if ``<file>.d`` is
    missing or empty. If the owner was killed, a process that waits on the same host removes the owner's file. If all
    waiting processes are on other hosts, the user must remove the file.
    """
    owner = f"{os.uname().nodename}:{os.getpid()}"
    place, mine = file.with_name(f"{file.name}.d"), file.with_name(f"{file.name}.{owner}")
    shutil.rmtree(mine, ignore_errors=True)  # left by an earlier process with the same pid
    mine.mkdir()
    (mine / owner).touch()
    try:
        _acquire(place, mine, on_wait)
        yield
    finally:
        (place / owner).unlink(missing_ok=True)
        shutil.rmtree(mine, ignore_errors=True)


def _acquire(place: Path, mine: Path, on_wait: Callable[[str], None]) -> None:
    reported = False
    while True:
        try:
            mine.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
        for name in place.iterdir() if place.is_dir() else ():
            if _has_exited(name.name):
                name.unlink(missing_ok=True)
            elif not reported:
                on_wait(f"waiting for hidl on {name.name}; if it is no longer running: rm {sh(str(name))}")
                reported = True
        time.sleep(_POLL_SECONDS)


def _has_exited(owner: str) -> bool:
    """Return True if the owner was a process on this host that no longer exists."""
    host, _, pid = owner.rpartition(":")
    return host == os.uname().nodename and pid.isdecimal() and not Path("/proc", pid).exists()


def _own_record() -> dict[str, object]:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    user = os.environ.get("USER") or f"uid {os.getuid()}"
    return {"pid": os.getpid(), "user": user, "host": os.uname().nodename, "since": since}


def _describe_owner(descriptor: int) -> str:
    """Describe the owner of the lock, which may not have written its name yet."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"hidl with pid {owner['pid']} of {owner['user']} on {owner['host']}, started {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another hidl"


# A root shared by several users: the group that owns its directories, and the umask for new files.


#: The default umask if a group is set. Group members may change installations, and all other users may read them.
_UMASK = "002"


@contextmanager
def site_permissions(site: Site, root: Path) -> Iterator[None]:
    """Apply the site's ``install.group`` and ``install.umask`` while files are created below its root.

    Other roots are not affected. The umask applies to all threads of the process. Raises ``MissingPrecondition`` if the
    group does not exist or if the root cannot be assigned to it.
    """
    group, umask = site.install.group, site.install.umask
    if not is_shared(site, root) or not (group or umask):
        yield
        return
    before = os.umask(int(umask or _UMASK, 8) | 0o002)
    try:
        if group is not None:
            _assign_group(root, group)
        yield
    finally:
        os.umask(before)


def is_shared(site: Site, root: Path) -> bool:
    """Return True if ``root`` is the shared root from the site file."""
    return site.install.root is not None and root.resolve() == installation_root(site).resolve()


def _assign_group(root: Path, group: str) -> None:
    """Assign the root to the group, which new files inherit (setgid)."""
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        raise MissingPrecondition(
            f"group {group!r} not found on this machine", hint="fix `install.group` in the site file"
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
            f"{root} cannot be assigned to group {group}: {error.strerror}",
            hint=f"its owner must be a member of the group and run: chgrp -R {sh(group)} {sh(str(root))} && "
            f"find {sh(str(root))} -type d -exec chmod g+rwxs {{}} + -o -name .lock -exec chmod g+rw {{}} +",
        ) from error


SCHEMA = "hidl.installation/1"
CURRENT, PREVIOUS = "current", "previous"
MANIFEST = "manifest.json"

_ID = re.compile(r"[0-9a-f]{12}")

#: Variables that would make a stack's Python import another Python's modules.
UNSET = ("PYTHONHOME", "PYTHONPATH")
#: Characters that break PATH (colons), shells and modulefiles (newlines) or mpi4py, which expands variables in paths.
UNUSABLE = (":", "$", "\n", "\r", "\0")


@dataclass(frozen=True)
class Installation:
    """A published installation; ``manifest`` is the content of its ``manifest.json``."""

    prefix: Path
    manifest: Mapping[str, Any] = field(repr=False)

    @classmethod
    def at(cls, prefix: Path) -> Installation:
        """Return the installation at ``prefix`` without reading its manifest, for plans and dry runs."""
        return cls(prefix, {"lock": {"digest": ""}})

    @property
    def root(self) -> Path:
        """The root directory of the installation."""
        return self.prefix.parents[2]

    @property
    def python(self) -> Path:
        """The Python interpreter."""
        return self.prefix / "bin" / "python"

    @property
    def own_package(self) -> str:
        """The directory of ``hidl_workloads``, hidl's package for jobs."""
        found = sorted(self.prefix.glob("lib/python3*/site-packages/hidl_workloads"))
        return str(found[0] if found else self.prefix / "lib" / "python3" / "site-packages" / "hidl_workloads")

    def run_module(self, module: str) -> tuple[str, ...]:
        """Return the start of the command line that runs one of hidl's modules."""
        return (str(self.python), "-m", module)

    @property
    def mpiexec(self) -> Path:
        """The ``mpiexec`` of the MPI library that mpi4py is linked to."""
        return self.prefix / "bin" / "mpiexec"

    @property
    def activate(self) -> Path:
        """The activation script for POSIX shells."""
        return self.prefix / "activate.sh"

    @property
    def lock(self) -> str:
        """The SHA-256 of the lockfile's body."""
        return str(self.manifest["lock"]["digest"])

    def version_of(self, package: str) -> str | None:
        """Return the version of an installed or built package, or None if the installation lacks it."""
        built = {build["name"]: build["version"] for build in self.manifest.get("builds", ())}
        version = {**self.manifest.get("packages", {}), **built}.get(package)
        return None if version is None else str(version)

    @property
    def mpi(self) -> tuple[Family, str | None] | None:
        """The family and version of the MPI library, or None if an earlier version of hidl did not record them."""
        noted = self.manifest.get("mpi")
        return (noted["family"], noted["version"]) if noted else None

    @property
    def is_current(self) -> bool:
        """Return True if the stack currently uses this installation."""
        return current(self.prefix.parent) == self.prefix

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return ``base`` with the stack activated in the same way as the activation script."""
        kept = {name: value for name, value in base.items() if name not in UNSET}
        path = os.pathsep.join(part for part in (str(self.prefix / "bin"), base.get("PATH")) if part)
        return {**kept, "PATH": path, **variables(self.prefix, self.prefix.parent.name)}


def variables(prefix: Path, stack: str) -> dict[str, str]:
    """Return the variables that an activated stack sets in addition to PATH."""
    return {"VIRTUAL_ENV": str(prefix), "HIDL_STACK": stack}


def installation_root(site: Site, prefix: str | None = None) -> Path:
    """Return the root for ``site``: ``prefix``, or else the site's ``install.root``, or else the user's own root.

    Raises ``MissingPrecondition`` if ``install.root`` contains an unset variable.
    """
    return Path(prefix).expanduser().absolute() if prefix else _default_root(site)


def own_root() -> Path:
    """Return the root in the user's data directory, the default of sites without ``install.root``."""
    return paths.user_data() / "installations"


def roots(site: Site, prefix: str | None = None) -> tuple[Path, ...]:
    """Return the roots to search: only ``prefix`` if it is given, or else the user's own root, followed by the site's.

    Propagates errors raised by ``installation_root``.
    """
    default = installation_root(site, prefix)
    return (default,) if prefix else tuple(dict.fromkeys((own_root(), default)))


def root_of(site: Site, stack: str, prefix: str | None = None) -> Path:
    """Return the first root in ``roots`` in which the stack is installed, or the last root if there is none."""
    places = roots(site, prefix)
    return next((place for place in places if current(place / site.name / stack)), places[-1])


def with_site_root(site: Site, root: Path) -> tuple[Path, ...]:
    """Return ``root``, followed by the site's root if ``root`` is the user's own."""
    try:
        return tuple(dict.fromkeys((root, _default_root(site)))) if root == own_root() else (root,)
    except MissingPrecondition:
        return (root,)


def _default_root(site: Site) -> Path:
    place = site.install.root
    if place is None:
        return own_root()
    unset = [name for name in re.findall(r"\$\{?(\w+)", place) if name not in os.environ]
    if unset:
        raise MissingPrecondition(
            f"`install.root` of site {site.name} is {place}, but {', '.join(unset)} is not set",
            hint="set it, or choose a directory with --prefix",
        )
    return Path(os.path.expandvars(place)).expanduser().absolute()


def find(site: Site, stack: str, *, root: Path) -> Installation:
    """Return the installation of ``stack`` that is in use.

    Raises ``MissingPrecondition`` if the stack is not installed, if it is damaged, or if it was created by another
    version of hidl.
    """
    again = install_command(stack, site, root)
    prefix = current(root / site.name / stack)
    if prefix is None:
        raise MissingPrecondition(f"stack {stack} is not installed for site {site.name} in {root}", hint=again)
    installation = at(prefix)
    if installation is None:
        python = prefix / "bin" / "python"
        why = "it has no valid manifest" if os.access(python, os.X_OK) else _describe_missing(python)
        raise MissingPrecondition(f"the installation {prefix} is damaged: {why}", hint=again)
    if foreign := version_mismatch(installation):
        raise MissingPrecondition(foreign, hint=f"{again} (this keeps the lockfile)")
    return installation


def _describe_missing(python: Path) -> str:
    links = f" (a link to {python.readlink()})" if python.is_symlink() else ""
    return f"its interpreter {python}{links} is missing or not executable"


def version_mismatch(installation: Installation) -> str | None:
    """Describe why this version of hidl cannot use the installation. Returns None if it can."""
    own = installation.manifest["own"]
    libraries = (own_wheel.library(name) for name in own_wheel.libraries() if name in own)
    for wheel in (own_wheel.workloads(), *libraries):
        if own.get(wheel.name, {}).get("digest") != wheel.digest:
            return f"the installation {installation.prefix} contains {wheel.name} from another version of hidl"
    return None


def install_command(stack: str, site: Site, root: Path) -> str:
    """Return the command that installs the stack in this root."""
    words = f"hidl install {sh(stack)}" + ("" if site.name == "local" else f" --site {sh(site.name)}")
    if root == _default_root(site):
        return words
    return f"{words} --own" if root == own_root() else f"{words} --prefix {sh(str(root))}"


def at(prefix: Path) -> Installation | None:
    """Return the published installation at ``prefix``, or None if it does not exist or its manifest is damaged."""
    try:
        manifest = read_json(prefix / MANIFEST)
        whole = manifest["schema"] == SCHEMA and manifest["id"] == prefix.name and _usable(manifest, prefix)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Installation(prefix, manifest) if whole else None


def has_no_manifest(prefix: Path) -> bool:
    """Return True if the installation at ``prefix`` was never completed. Errors other than a missing file do not count.

    A published installation may be unusable here: its interpreter may exist only on other machines, or its file system
    may not respond.
    """
    try:
        (prefix / MANIFEST).lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _usable(manifest: Mapping[str, Any], prefix: Path) -> bool:
    """Check the required keys of the manifest, and the interpreter that ``bin/python`` links to."""
    parts = [manifest["lock"]["digest"], manifest["own"], manifest["site"], manifest["packages"]]
    return None not in parts and os.access(prefix / "bin" / "python", os.X_OK)


def current(stack_directory: Path, link: str = CURRENT) -> Path | None:
    """Return the prefix that ``current`` or ``previous`` links to, or None if the link is missing or invalid."""
    try:
        name = str((stack_directory / link).readlink())
    except OSError:
        return None
    return stack_directory / name if _ID.fullmatch(name) else None


def publish(prefix: Path) -> None:
    """Make a complete installation visible to ``module avail``, and make it the one in use. Each change is atomic.

    The installation in use until now becomes the previous one. The modification time of its directory records when it
    was replaced.
    """
    directory = modulefiles(prefix.parents[2], prefix.parents[1].name, prefix.parent.name)
    write_text(directory / prefix.name, (prefix / "modulefile").read_text(encoding="utf-8"))
    write_text(directory / ".version", f"#%Module1.0\nset ModulesVersion {prefix.name}\n")
    before = current(prefix.parent)
    if before is not None and before != prefix:
        if before.is_dir():
            os.utime(before)  # first, so that a permission error changes nothing
        _link(before, PREVIOUS)
    _link(prefix, CURRENT)


def _link(prefix: Path, name: str) -> None:
    """Atomically create or replace the symbolic link ``name`` next to the prefix, which points to the prefix."""
    beside = prefix.with_name(f".{name}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(prefix.name)
    beside.replace(prefix.with_name(name))


@contextmanager
def explain_os_errors(stack_directory: Path) -> Iterator[None]:
    """Convert an ``OSError`` to ``MissingPrecondition``. The usual cause is a stack that another user has installed."""
    try:
        yield
    except OSError as error:
        at_fault = f": {error.filename}" if error.filename else ""
        raise MissingPrecondition(
            f"cannot change the installations in {stack_directory}: {error.strerror or error}{at_fault}",
            hint="ask their owner, or install the stack for yourself: hidl install STACK --own",
        ) from error


def modulefiles(root: Path, site: str, stack: str) -> Path:
    """Return the directory that contains a stack's modulefiles; its parent is the argument for ``module use``."""
    return root / "modulefiles" / site / stack


def prefixes(stack_directory: Path) -> list[Path]:
    """Return all of a stack's prefixes, complete or not, without the links to them."""
    if not stack_directory.is_dir():
        return []
    return sorted(p for p in stack_directory.iterdir() if _ID.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def in_use(site: Site, prefix: str | None = None) -> list[Installation]:
    """Return the installation in use for each of the site's stacks. The user's own root takes precedence.

    See ``roots`` for ``prefix``.
    """
    found: dict[str, Installation] = {}
    for place in roots(site, prefix):
        for each in list_all(place):
            if each.is_current and each.manifest["site"] == site.name:
                found.setdefault(each.prefix.parent.name, each)
    return list(found.values())


def list_all(root: Path) -> Iterator[Installation]:
    """Yield all published installations below ``root``, sorted by site and stack."""
    for manifest in sorted(root.glob(f"*/*/*/{MANIFEST}")):
        installation = at(manifest.parent) if _ID.fullmatch(manifest.parent.name) else None
        if installation is not None:
            yield installation


def size(prefix: Path) -> int:
    """Return the disk usage of ``prefix`` in bytes. Hard links count once, and vanished files are ignored."""
    seen: dict[tuple[int, int], int] = {}
    for directory, _, files in os.walk(prefix):
        for name in files:
            try:
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - tens of thousands of files
            except FileNotFoundError:
                continue
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def discard(prefix: Path) -> None:
    """Remove a prefix, complete or not, after hiding it with an atomic rename. Symbolic links are not followed."""
    for left in prefix.parent.glob(".removed-*"):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    if prefix.is_dir() and not prefix.is_symlink():
        gone = prefix.with_name(f".removed-{prefix.name}")
        prefix.rename(gone)
        shutil.rmtree(gone)


# Switch a stack to another installation.


@dataclass(frozen=True)
class Switch:
    """The installation in use and the one that was used before. Both are the same if nothing changed."""

    used: Installation
    before: Path | None


def use(site: Site, stack: str, which: str, *, root: Path, on_wait: Callable[[str], None]) -> Switch:
    """Switch the stack to the installation whose id starts with ``which``.

    Propagates errors raised by ``choose``, and raises ``MissingPrecondition`` if another version of hidl created the
    installation.
    """
    return _switch(site, choose(site, stack, which, root=root), root, on_wait)


def choose(site: Site, stack: str, which: str, *, root: Path) -> Installation:
    """Return the installation whose id starts with ``which``.

    Raises ``MissingPrecondition`` if none matches, and ``UsageError`` if several do.
    """
    fitting = [found for found in _published(root / site.name / stack) if found.prefix.name.startswith(which)]
    if not which or not fitting:
        raise MissingPrecondition(
            f"stack {stack} has no installation {which!r} for site {site.name} in {root}",
            hint=_hint_installed(site, stack, root),
        )
    if len(fitting) > 1:
        raise UsageError(
            f"{len(fitting)} installations of stack {stack} match {which!r}", hint=_hint_installed(site, stack, root)
        )
    return fitting[0]


def rollback(site: Site, stack: str, *, root: Path, on_wait: Callable[[str], None]) -> Switch:
    """Switch back to the previous installation. Calling this function twice undoes the switch.

    Raises ``MissingPrecondition`` if there is no previous installation, or if it has been removed.
    """
    before = current(root / site.name / stack, PREVIOUS)
    found = at(before) if before else None
    if found is None:
        reason = f"the installation {before} is missing or damaged" if before else "there is no previous installation"
        raise MissingPrecondition(
            f"stack {stack} on site {site.name} cannot be rolled back: {reason}",
            hint=_hint_installed(site, stack, root),
        )
    return _switch(site, found, root, on_wait)


def _switch(site: Site, wanted: Installation, root: Path, on_wait: Callable[[str], None]) -> Switch:
    directory, stack = wanted.prefix.parent, wanted.prefix.parent.name
    if foreign := version_mismatch(wanted):
        raise MissingPrecondition(
            foreign, hint=f"use it with that version, or run: {install_command(stack, site, root)}"
        )
    if current(directory) == wanted.prefix:
        return Switch(wanted, wanted.prefix)
    with site_permissions(site, root), explain_os_errors(directory), hold_lock(directory / ".lock", on_wait):
        before = current(directory)
        publish(wanted.prefix)
    return Switch(wanted, before)


def _published(directory: Path) -> list[Installation]:
    return [found for prefix in prefixes(directory) if (found := at(prefix))]


def _hint_installed(site: Site, stack: str, root: Path) -> str:
    """Return a hint that lists the installations."""
    directory = root / site.name / stack
    used = current(directory)
    ids = [f"{each.prefix.name}{' (in use)' * (each.prefix == used)}" for each in _published(directory)]
    return f"installed: {', '.join(ids)}; hidl stack use {sh(stack)} ID" if ids else install_command(stack, site, root)

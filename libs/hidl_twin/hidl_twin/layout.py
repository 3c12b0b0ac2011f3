"""Paths of a cluster's files."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.documents import read_json, write_json
from hidl_cli.errors import HidlError, UsageError
from hidl_cli.quoting import sh
from hidl_cli.site import hidl_cluster

_LONGEST_SOCKET = "/spool/node64/node64_999999.4294967291"  # that of a batch script; without it Slurm cancels the job
_SOCKET_PATH_MAX = 107  # bytes of sockaddr_un.sun_path, less its NUL: unix(7)

_PARTS = ("etc", "run", "log", "state", "spool", "ssh", "site", "claimed", "users", "lsf", "pbs", "flux")
#: Every name at the top of a cluster's directory that ``up`` may write.
_NAMES = (hidl_cluster.SETTINGS, hidl_cluster.DRESS, *_PARTS, "mysql", "mysql.new")
_SCHEMA = "hidl.cluster/1"

#: Locks, keys and identities of nodes of the clusters of this boot, for root alone.
RUNTIME = Path("/run/hidl")


def default_directory(like: str | None = None) -> Path:
    """``$XDG_STATE_HOME/hidl/cluster``; that of a twin of site ``like``: ``$XDG_STATE_HOME/hidl/twins/<site>``."""
    return paths.user_state() / "twins" / like if like else hidl_cluster.default_directory()


def option_for(directory: Path) -> str:
    """The option of ``hidl cluster`` that names the cluster in ``directory``, for a shell; none for the default one."""
    if directory == default_directory():
        return ""
    twin = directory.parent == default_directory("a-site").parent
    return f"--like {sh(directory.name)}" if twin else f"--directory {sh(str(directory))}"


def runtime_directory(directory: Path) -> Path:
    """The directory below ``RUNTIME`` of the cluster in ``directory``, whose path has no colon."""
    return RUNTIME / str(directory).replace("/", ":")


def make_runtime_directory(directory: Path) -> Path:
    """Create ``runtime_directory``, closed to other users; ``HidlError`` if another user owns it."""
    place = runtime_directory(directory)
    for each in (RUNTIME, place):
        each.mkdir(mode=0o700, exist_ok=True)
        if each.lstat().st_uid != os.geteuid() or each.is_symlink():
            raise HidlError(f"cannot use {each}: it belongs to another user", hint=f"see who made it: ls -ld {each}")
        each.chmod(0o700)
    return place


@dataclass(frozen=True)
class Layout:
    """The state directory of a cluster, an absolute path without symbolic links, and what lies in it."""

    directory: Path

    @classmethod
    def of(cls, directory: Path | None, like: str | None = None) -> Layout:
        """The layout in ``directory`` (None: the default one, of a twin of site ``like`` if that is given).

        Raises ``UsageError`` where the path cannot stand in Slurm's configuration or in the address of a socket.
        """
        layout = cls((directory or default_directory(like)).expanduser().resolve())
        text = str(layout.directory)
        if not re.fullmatch(r"[A-Za-z0-9._/@+~-]+", text):
            raise UsageError(
                f"invalid directory {text!r}: Slurm's configuration allows letters, digits and ._/@+~- only",
                hint="choose another --directory",
            )
        if len(text) + len(_LONGEST_SOCKET) > _SOCKET_PATH_MAX:
            raise UsageError(
                f"invalid directory {text}: paths of the cluster's sockets would exceed {_SOCKET_PATH_MAX} bytes",
                hint="choose a shorter --directory",
            )
        return layout

    def __getitem__(self, name: str) -> Path:
        return self.directory / name

    @property
    def settings(self) -> Path:
        return self[hidl_cluster.SETTINGS]

    @property
    def conf(self) -> Path:
        """``slurm.conf``; slurmdbd looks for its own file beside it."""
        return self[hidl_cluster.CONFIGURATION]

    @property
    def munge_socket(self) -> Path:
        return self["run/munge.sock"]

    @property
    def mariadb_socket(self) -> Path:
        return self["run/mariadb.sock"]

    def log(self, name: str) -> Path:
        """The log of a daemon or a node."""
        return self[f"log/{name}.log"]

    def check(self) -> None:
        """Raise ``UsageError`` unless the directory can hold a cluster: missing, empty, or with a cluster in it.

        Root runs scripts from it, so it must belong to this user, and no other user may write to it or replace it.
        """
        directory = self.directory
        if directory in (Path("/"), Path.home().resolve()):
            raise self._refused("cannot hold a cluster")
        self._check_parents()
        try:
            status = directory.stat()
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            raise self._refused("not a directory")
        if status.st_uid != os.geteuid():
            raise self._refused(f"belongs to user {status.st_uid}")
        if status.st_mode & 0o022:
            shared = status.st_mode & stat.S_ISVTX  # such as /tmp and /dev/shm, which programs of all users need
            hint = {} if shared else {"hint": f"chmod go-w {sh(str(directory))}"}
            raise self._refused("other users may write to it", **hint)
        if self._inventory() is None and any(directory.iterdir()):
            raise self._refused("not empty and not a cluster's")

    def _check_parents(self) -> None:
        for parent in self.directory.parents:
            try:
                status = parent.stat()
            except FileNotFoundError:
                continue
            if status.st_uid not in (0, os.geteuid()):
                raise self._refused(f"{parent} belongs to user {status.st_uid}, who could replace it")
            if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
                raise self._refused(f"other users could replace it: they may write to {parent}")

    def make(self) -> None:
        """Create missing directories, readable by other users: their jobs need slurm.conf and munge.

        An existing directory keeps its mode. What is created is recorded first, for ``remove``.
        """
        made = not self.directory.exists()
        self.directory.mkdir(parents=True, exist_ok=True)
        if made:
            self.directory.chmod(0o755)
        found = self._inventory() or {"files": [], "made_directory": made}
        missing = [name for name in _NAMES if not os.path.lexists(self[name])]
        self.save({**found, "files": sorted({*found["files"], *missing})})
        for name in _PARTS:
            if not self[name].exists():
                self[name].mkdir()
                self[name].chmod(0o755)

    def save(self, document: dict[str, Any]) -> None:
        """Save ``document`` in ``cluster.json``; keep the recorded files."""
        write_json(self.settings, {"schema": _SCHEMA, **(self._inventory() or {}), **document})

    def check_removable(self) -> None:
        """Raise ``UsageError`` unless ``remove`` is safe: the directory is missing, empty or a cluster of this user."""
        directory = self.directory
        if not directory.is_dir():
            return
        if directory in (Path("/"), Path.home().resolve()):
            raise self._refused("cannot hold a cluster")
        if self._inventory() is None and any(directory.iterdir()):
            raise self._refused(f"no cluster: it has no valid {hidl_cluster.SETTINGS}")
        if directory.stat().st_uid != os.geteuid():
            raise self._refused(f"belongs to user {directory.stat().st_uid}")

    def remove(self) -> Sequence[str]:
        """Remove the files that ``cluster.json`` lists, and the directory if ``make`` created it and it is empty then.

        Return the names that remain. A symbolic link is removed, never followed.
        """
        self.check_removable()
        found = self._inventory()
        if found is None:
            return ()
        last = hidl_cluster.SETTINGS  # so that an interrupted removal can be repeated
        for name in (*(name for name in _NAMES if name in found["files"] and name != last), last):
            path = self[name]
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        remaining = sorted(os.listdir(self.directory))  # noqa: PTH208 - names, not paths
        if not remaining and found["made_directory"]:
            with suppress(OSError):
                self.directory.rmdir()
        return remaining

    def _inventory(self) -> dict[str, Any] | None:
        """The recorded files, and whether ``make`` created the directory; None if no cluster is there.

        A cluster of an older hidl has no record, so that none of its files is known to be its own.
        """
        try:
            document = read_json(self.settings)
            if self.settings.is_symlink() or document["schema"] != _SCHEMA:
                return None
            files = [name for name in document.get("files", []) if name in _NAMES]
            return {"files": files, "made_directory": document.get("made_directory") is True}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _refused(
        self, why: str, hint: str = "choose another --directory: an empty one, or one that is missing"
    ) -> UsageError:
        return UsageError(f"invalid directory {self.directory}: {why}", hint=hint)

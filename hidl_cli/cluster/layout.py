"""Paths of a cluster's files."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import paths
from hidl_cli.errors import UsageError
from hidl_cli.quoting import sh
from hidl_cli.site import hidl_cluster

_LONGEST_SOCKET = "/spool/node64/node64_999999.4294967291"  # that of a batch script; without it Slurm cancels the job
_SOCKET_PATH_MAX = 107  # bytes of sockaddr_un.sun_path, less its NUL: unix(7)

_PARTS = ("etc", "run", "log", "state", "spool", "ssh", "site", "claimed", "users", "lsf", "pbs", "flux")


def default_directory(like: str | None = None) -> Path:
    """``$XDG_STATE_HOME/hidl/cluster``; that of a twin of site ``like``: ``$XDG_STATE_HOME/hidl/twins/<site>``."""
    return paths.user_state() / "twins" / like if like else hidl_cluster.default_directory()


def option_for(directory: Path) -> str:
    """The option of ``hidl cluster`` that names the cluster in ``directory``, for a shell; none for the default one."""
    if directory == default_directory():
        return ""
    twin = directory.parent == default_directory("a-site").parent
    return f"--like {sh(directory.name)}" if twin else f"--directory {sh(str(directory))}"


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

    def remove(self) -> None:
        """Remove the cluster's files; keep other files, and the directory if there are any."""
        self.settings.unlink(missing_ok=True)
        self[hidl_cluster.DRESS].unlink(missing_ok=True)
        for name in (*_PARTS, "users", "mysql", "mysql.new"):
            if self[name].exists():
                shutil.rmtree(self[name])
        with suppress(OSError):
            self.directory.rmdir()

    def make(self) -> None:
        """Create the directories, readable by other users: their jobs need slurm.conf and munge."""
        for name in ("", *_PARTS):
            self[name].mkdir(parents=True, exist_ok=True)
            self[name].chmod(0o755)

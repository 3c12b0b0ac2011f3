"""Where the files of a cluster lie."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import paths
from hidl_cli.errors import UsageError

_LONGEST_SOCKET = "/spool/node64/node64_999999.4294967291"  # that of a batch script; without it Slurm cancels the job
_SOCKET_PATH_MAX = 107  # bytes of sockaddr_un.sun_path, less its NUL: unix(7)

_PARTS = ("etc", "run", "log", "state", "spool", "ssh")


def default_directory() -> Path:
    """``$XDG_STATE_HOME/hidl/cluster``."""
    return paths.user_state() / "cluster"


@dataclass(frozen=True)
class Layout:
    """The state directory of a cluster, an absolute path without symbolic links, and what lies in it."""

    directory: Path

    @classmethod
    def of(cls, directory: Path | None) -> Layout:
        """The layout in ``directory`` (None: the default one).

        Raises ``UsageError`` where the path cannot stand in Slurm's configuration or in the address of a socket.
        """
        layout = cls((directory or default_directory()).expanduser().resolve())
        text = str(layout.directory)
        if not re.fullmatch(r"[A-Za-z0-9._/@+~-]+", text):
            raise UsageError(
                f"a cluster cannot live in {text!r}: Slurm's configuration takes letters, digits and ._/@+~- only",
                hint="name another place with --directory",
            )
        if len(text) + len(_LONGEST_SOCKET) > _SOCKET_PATH_MAX:
            raise UsageError(
                f"a cluster cannot live in {text}: its sockets' paths would be longer than {_SOCKET_PATH_MAX} bytes",
                hint="name a shorter place with --directory",
            )
        return layout

    def __getitem__(self, name: str) -> Path:
        return self.directory / name

    @property
    def settings(self) -> Path:
        return self["cluster.json"]

    @property
    def conf(self) -> Path:
        """``slurm.conf``; slurmdbd looks for its own file beside it."""
        return self["etc/slurm.conf"]

    @property
    def munge_socket(self) -> Path:
        return self["run/munge.sock"]

    @property
    def mariadb_socket(self) -> Path:
        return self["run/mariadb.sock"]

    def log(self, name: str) -> Path:
        """The log of a daemon or a node."""
        return self[f"log/{name}.log"]

    def remove(self) -> bool:
        """Remove what a cluster has written; other files in its directory stay, and the directory with them.

        Returns whether there was anything.
        """
        if not self.directory.exists():
            return False
        self.settings.unlink(missing_ok=True)
        for name in (*_PARTS, "mysql", "mysql.new"):
            if self[name].exists():
                shutil.rmtree(self[name])
        with suppress(OSError):
            self.directory.rmdir()
        return True

    def make(self) -> None:
        """Make the directories. Users other than root may look into them, for their jobs need slurm.conf and munge."""
        for name in ("", *_PARTS):
            self[name].mkdir(parents=True, exist_ok=True)
            self[name].chmod(0o755)

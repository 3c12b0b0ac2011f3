"""A centre's root, into which several people install: its directories' group, and the umask of what is made there."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hidl_cli.errors import MissingPrecondition
from hidl_cli.quoting import sh
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation

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
    return site.install.root is not None and root == installation.root(site)


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

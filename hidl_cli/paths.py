"""Where hidl's files lie: the user's directories, and the data that ships with hidl."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

#: Names the directory of a centre's files where they do not lie in ``/etc``.
SYSTEM_CONFIG = "HIDL_SYSTEM_CONFIG"


def user_config() -> Path:
    """``$XDG_CONFIG_HOME/hidl``: a user's own sites, stacks, workloads and locks."""
    return platformdirs.user_config_path("hidl")


def system_config() -> Path:
    """A centre's sites, stacks, workloads and locks: what ``HIDL_SYSTEM_CONFIG`` names, else ``/etc/hidl``."""
    return Path(os.environ.get(SYSTEM_CONFIG) or "/etc/hidl").expanduser()


def user_data() -> Path:
    """``$XDG_DATA_HOME/hidl``: installations, where the site names no other place."""
    return platformdirs.user_data_path("hidl")


def user_state() -> Path:
    """``$XDG_STATE_HOME/hidl``: run directories, bisects, results."""
    return platformdirs.user_state_path("hidl")


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/hidl``: what can be made again."""
    return platformdirs.user_cache_path("hidl")


def runs() -> Path:
    """The directory that holds all run directories of this user."""
    return user_state() / "runs"


def bisects() -> Path:
    """The directory of all bisects of this user."""
    return user_state() / "bisects"


def shipped() -> Path:
    """Where the shipped ``recipes/``, ``templates/`` and ``site_configs/`` lie: in the checkout, or in the wheel."""
    packed = Path(__file__).parent / "_shipped"
    return packed if packed.is_dir() else Path(__file__).parent.parent


def results() -> Path:
    """The index of results: what ``HIDL_RESULTS`` names (a file, or a directory that holds it), or the user's own."""
    named = os.environ.get("HIDL_RESULTS")
    if not named:
        return user_state() / "results.sqlite"
    place = Path(named).expanduser()
    return place / "results.sqlite" if place.is_dir() else place


@contextmanager
def temporary_directory(name: str) -> Iterator[Path]:
    """Create a directory for temporary files that ``hidl prune`` leaves alone while this process uses it.

    Its name is ``hidl-NAME-`` and eight random characters; the process holds a lock on the directory itself.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix=f"hidl-{name}-") as directory:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without locks: then its age alone protects it
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield Path(directory)
        finally:
            os.close(descriptor)


def is_in_use(directory: Path) -> bool:
    """Return whether a process holds the lock of a ``temporary_directory``."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False

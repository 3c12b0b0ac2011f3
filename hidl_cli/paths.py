"""The directories of hidl's files: the user's, the site's, and the data shipped with hidl."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

#: Environment variable that replaces ``/etc/hidl`` as the directory of the site's own files.
SYSTEM_CONFIG = "HIDL_SYSTEM_CONFIG"


def user_config() -> Path:
    """Return ``$XDG_CONFIG_HOME/hidl``, which holds the user's sites, stacks, workloads and lockfiles."""
    return platformdirs.user_config_path("hidl")


def system_config() -> Path:
    """Return the directory of the site's own files (sites, stacks, ...): ``$HIDL_SYSTEM_CONFIG`` or ``/etc/hidl``."""
    return Path(os.environ.get(SYSTEM_CONFIG) or "/etc/hidl").expanduser()


def user_data() -> Path:
    """Return ``$XDG_DATA_HOME/hidl``, which holds the installations unless the site sets another directory."""
    return platformdirs.user_data_path("hidl")


def user_state() -> Path:
    """Return ``$XDG_STATE_HOME/hidl``, which holds run directories, bisects and results."""
    return platformdirs.user_state_path("hidl")


def user_cache() -> Path:
    """Return ``$XDG_CACHE_HOME/hidl``, which holds files that can be recreated."""
    return platformdirs.user_cache_path("hidl")


def runs() -> Path:
    """Return the directory that contains this user's runs."""
    return user_state() / "runs"


def bisects() -> Path:
    """Return the directory that contains this user's bisects."""
    return user_state() / "bisects"


def shipped() -> Path:
    """Return the directory that contains the shipped ``recipes/``, ``templates/`` and ``site_configs/``."""
    packed = Path(__file__).parent / "_shipped"
    return packed if packed.is_dir() else Path(__file__).parent.parent


def results() -> Path:
    """Return the file of the results index: ``HIDL_RESULTS`` (the file or its directory), or else the user's own."""
    named = os.environ.get("HIDL_RESULTS")
    path = Path(named).expanduser() if named else user_state()
    return path / "results.sqlite" if path.is_dir() or not named else path


@contextmanager
def temporary_directory(name: str) -> Iterator[Path]:
    """Create a temporary directory that ``hidl prune`` leaves alone while this process uses it.

    Its name is ``hidl-NAME-`` and eight random characters, and the process locks the directory itself.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix=f"hidl-{name}-") as directory:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # without file locks, prune only considers the age
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield Path(directory)
        finally:
            os.close(descriptor)


def is_in_use(directory: Path) -> bool:
    """Return whether a process has locked a ``temporary_directory``."""
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

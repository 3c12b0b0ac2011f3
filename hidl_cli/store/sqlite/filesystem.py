"""Do SQLite's locks (POSIX byte ranges, ``fcntl``) hold on a file system across all machines that mount it?"""

from __future__ import annotations

from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


def locks_hold(directory: Path) -> bool:
    """Return False if ``fcntl`` locks fail on the directory's file system, or hold only within one machine.

    These are Lustre without the mount option ``flock`` (mount.lustre(8): ``localflock``, ``noflock`` or, in older
    versions, nothing) and NFS with ``nolock``, ``local_lock=all`` or ``local_lock=posix`` (nfs(5)). All others are
    assumed to follow POSIX.
    """
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    kind, options = mount_of(directory.resolve(), mounts)
    if kind == "lustre":
        return "flock" in options
    if kind.startswith("nfs"):
        return not options & {"nolock", "local_lock=all", "local_lock=posix"}
    return True


def mount_of(directory: Path, mounts: str) -> tuple[str, frozenset[str]]:
    """Return the type and options of the directory's file system from the text of a ``mountinfo`` (proc(5)).

    The last of the longest mount points counts: a later mount hides an earlier one at the same place.
    """
    longest, found = -1, ("", frozenset[str]())
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        place = _unescaped(fields[4])
        if directory.is_relative_to(place) and len(place) >= longest:
            longest = len(place)
            found = (rest[0], frozenset(fields[5].split(",")) | frozenset(rest[2].split(",")))
    return found


def _unescaped(text: str) -> str:
    """``mountinfo`` writes blank, tab, line end and backslash as octal numbers."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text

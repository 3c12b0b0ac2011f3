"""Facts of the node that this runs on, as one line of JSON: ``python3 node_probe.py PREFIX``.

It needs nothing but Python 3.6, not even the package that it lies in: where a stack cannot be seen, its text is handed
to the system's own Python. A fact that cannot be learnt is null.
"""

import contextlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROOT = Path("/")
TOLD_BY = "HIDL_PROBED_BY"

_MOUNTS = "sys/fs/cgroup"
_V1_DIRECTORIES = {"cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",), "cpuset": ("cpuset",)}


def facts(prefix: "str | None" = None, root: Path = ROOT) -> "dict[str, Any]":
    """What ``hidl_workloads.doctor.node.Node`` holds, as plain values; ``prefix``: the stack's."""
    memlock, nofile = (resource.getrlimit(limit) for limit in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE))
    return {
        "host": os.uname().nodename,
        "time": time.time(),
        "told_by": os.environ.get(TOLD_BY, "python"),
        "boot": read(root / "proc/sys/kernel/random/boot_id") or None,
        "tmp": room(os.environ.get("TMPDIR") or "/tmp", root),
        "shm": room("/dev/shm", root),
        "memlock": memlock[0],
        "nofile": nofile[0],
        "memory": memory_total(root),
        "memory_limit": memory_limit(root),
        "rdma": any(True for _ in _entries(root / "sys/class/infiniband")),
        "prefix": prefix,
        "stack": stack(prefix),
        "versions": versions(root),
    }


def room(path: str, root: Path = ROOT) -> "dict[str, Any] | None":
    """A directory, and the file system that it lies on: bytes, files, and what tells it from others."""
    try:
        system, status = os.statvfs(path), Path(path).stat()
    except OSError:
        return None
    kind, source = mount_of(path, root)
    return {
        "path": path,
        "total": system.f_blocks * system.f_frsize,
        "free": system.f_bavail * system.f_frsize,
        "files_free": system.f_favail if system.f_files else None,
        "writable": os.access(path, os.W_OK | os.X_OK),
        "type": kind,
        "source": source,
        "identity": f"{status.st_dev}:{status.st_ino}",
    }


def mount_of(path: str, root: Path = ROOT) -> "tuple[str | None, str | None]":
    """The type and the source of the file system that holds ``path``: proc(5), ``/proc/[pid]/mountinfo``."""
    place, longest = os.path.realpath(path), -1
    found: tuple[str | None, str | None] = (None, None)
    for line in read(root / "proc/self/mountinfo").splitlines():
        fields, _, after = line.partition(" - ")
        words, rest = fields.split(), after.split()
        if len(words) < 5 or len(rest) < 2:
            continue
        point = words[4].replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # of two on one place, the later one is seen
            longest, found = len(point), (rest[0], rest[1])
    return found


def stack(prefix: "str | None") -> "dict[str, Any] | None":
    """Whether the stack's files are there, whether they can be executed, and the SHA-256 of its manifest."""
    if prefix is None:
        return None
    import hashlib  # takes longer to import than all else here, and only a named stack needs it

    digest = None
    with contextlib.suppress(OSError):
        digest = hashlib.sha256(Path(prefix, "manifest.json").read_bytes()).hexdigest()
    python = Path(prefix, "bin", "python")
    return {"seen": Path(prefix).is_dir(), "python": os.access(str(python), os.X_OK), "manifest": digest}


def versions(root: Path = ROOT) -> "dict[str, str]":
    """Versions of what stacks use and nodes bring along, as far as they can be had without starting anything."""
    found = {"kernel": os.uname().release}
    with contextlib.suppress(OSError, ValueError):
        found["C library"] = os.confstr("CS_GNU_LIBC_VERSION") or ""
    nvidia = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", read(root / "proc/driver/nvidia/version"))
    found["NVIDIA driver"] = nvidia.group(1) if nvidia else ""
    found["mlx5 driver"] = read(root / "sys/module/mlx5_core/version")
    return {name: version for name, version in found.items() if version}


def memory_total(root: Path = ROOT) -> "int | None":
    """The bytes of memory of the machine."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", read(root / "proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def memory_limit(root: Path = ROOT) -> "int | None":
    """The bytes of memory that this process may use by its control groups; None where they are not limited."""
    limits = []
    for group in groups(root, "memory"):
        limits += [number(read(group / name)) for name in ("memory.max", "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit is not None), default=None)


def groups(root: Path, controller: str) -> "Iterator[Path]":
    """The directories of the groups (v1 and v2) that this process is in, each with its ancestors.

    In a container the path may be that of the host, and name nothing below the container's mount; the mount itself is
    then the container's group.
    """
    for line in read(root / "proc/self/cgroup").splitlines():
        order, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if order == "0" and not controllers:
            mounts = [root / _MOUNTS, root / _MOUNTS / "unified"]
        elif controller in controllers.split(","):
            mounts = [root / _MOUNTS / name for name in _V1_DIRECTORIES[controller]]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            for group in (inside, *inside.parents):
                yield mount / group


def number(text: str) -> "int | None":
    """The number, or None for ``max``, -1, and a file that is not there."""
    return int(text) if text.isdecimal() and int(text) > 0 else None


def read(path: Path) -> str:
    """The text of a small file of the kernel, without the spaces around it; empty where there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _entries(directory: Path) -> "Iterator[Path]":
    try:
        yield from directory.iterdir()
    except OSError:
        return


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts(sys.argv[1] if sys.argv[1:] else None)) + "\n")

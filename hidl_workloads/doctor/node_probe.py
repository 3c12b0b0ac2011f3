"""Print the facts of this node as one line of JSON: ``python3 node_probe.py PREFIX``. Unknown facts are null.

This module only requires Python 3.6 and no other modules of its package: if a node does not see the stack, the source
of this module is run with the system's Python.
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
    """Return the fields of ``hidl_workloads.doctor.node.Node`` as plain values; ``prefix`` is that of the stack."""
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
    """Return the facts of a directory and its file system: bytes, files and identity."""
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
    """Return type and source of the file system that contains ``path`` (see ``/proc/[pid]/mountinfo`` in proc(5))."""
    target, longest = os.path.realpath(path), -1
    found: tuple[str | None, str | None] = (None, None)
    for line in read(root / "proc/self/mountinfo").splitlines():
        fields, _, after = line.partition(" - ")
        words, rest = fields.split(), after.split()
        if len(words) < 5 or len(rest) < 2:
            continue
        point = words[4].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # a later mount on the same mount point hides the earlier one
            longest, found = len(point), (rest[0], rest[1])
    return found


def stack(prefix: "str | None") -> "dict[str, Any] | None":
    """Return whether the stack's prefix exists, whether its Python is executable, and the SHA-256 of its manifest."""
    if prefix is None:
        return None
    import hashlib  # imported here, because it takes longer to import than all other modules together

    digest = None
    with contextlib.suppress(OSError):
        digest = hashlib.sha256(Path(prefix, "manifest.json").read_bytes()).hexdigest()
    python = Path(prefix, "bin", "python")
    return {"seen": Path(prefix).is_dir(), "python": os.access(str(python), os.X_OK), "manifest": digest}


def versions(root: Path = ROOT) -> "dict[str, str]":
    """Return versions of system software that stacks use, as far as they are known without starting processes."""
    found = {"kernel": os.uname().release}
    with contextlib.suppress(OSError, ValueError):
        found["C library"] = os.confstr("CS_GNU_LIBC_VERSION") or ""
    nvidia = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", read(root / "proc/driver/nvidia/version"))
    found["NVIDIA driver"] = nvidia.group(1) if nvidia else ""
    found["mlx5 driver"] = read(root / "sys/module/mlx5_core/version")
    return {name: version for name, version in found.items() if version}


def memory_total(root: Path = ROOT) -> "int | None":
    """Return the memory of the machine in bytes."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", read(root / "proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def memory_limit(root: Path = ROOT) -> "int | None":
    """Return the memory limit of this process' control groups in bytes; None if unlimited."""
    limits = []
    for group in groups(root, "memory"):
        limits += [number(read(group / name)) for name in ("memory.max", "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit is not None), default=None)


def groups(root: Path, controller: str) -> "Iterator[Path]":
    """Yield the directories of this process' control groups (v1 and v2) and of their ancestors.

    In a container, the path may be that of the host and not exist below the container's mount. In this case, the mount
    itself is the group of the container.
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
    """Parse a positive number; None for ``max``, -1 and missing files."""
    return int(text) if text.isdecimal() and int(text) > 0 else None


def read(path: Path) -> str:
    """Read a small file of the kernel without surrounding whitespace; empty if missing."""
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

"""Execute a ``settings.py`` of ReFrame where it can change nothing, and print its ``site_configuration`` as JSON.

::

    unshare --user --map-root-user --net --ipc --pid --fork --kill-child --mount \\
        python -I .../isolation.py '{"file": "/sw/settings.py", "hidden": ["/tmp", "/home/you"], "kept": ["/sw"], ...}'

All file systems become read-only, and the directories in ``hidden`` empty and temporary, except for what is in
``kept``. No process gets a terminal, a disk device, a socket or a capability. With ``"isolated": false``, and without
``unshare``, only the limits apply. The program imports nothing else of hidl, because it is executed by its path.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import re
import resource
import runpy
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

#: Exit status if the process cannot be isolated.
NOT_ISOLATED = 97
SECONDS = 20
#: Bytes that a process may allocate, that a file and a hidden directory may have, and the number of processes.
_MEMORY, _OUTPUT, _FILES, _PROCESSES = 2 << 30, 16 << 20, 64 << 20, 256

_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1 << 5, 1 << 12, 1 << 14, 1 << 18
#: Options of mounts that the kernel does not let a user change, and their flags.
_OPTIONS = {
    "nosuid": _NO_SUID,
    "nodev": _NO_DEVICES,
    "noexec": _NO_EXEC,
    "nosymfollow": 1 << 8,
    "noatime": 1 << 10,
    "nodiratime": 1 << 11,
    "relatime": 1 << 21,
}
#: The only devices that stay.
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SET_SECCOMP, _DROP_BOUND, _NO_NEW_PRIVILEGES = 22, 24, 38
_SET_CAPABILITIES = {"x86_64": 126, "aarch64": 91, "ppc64le": 184, "riscv64": 91}
_IO_URING, _X32 = 425, 0x40000000
#: The architecture as seccomp names it, and its system calls that create a socket or read the user's keys.
_REJECTED = {
    "x86_64": (0xC000003E, (41, 248, 249, 250, _IO_URING)),
    "aarch64": (0xC00000B7, (198, 217, 218, 219, _IO_URING)),
    "ppc64le": (0xC0000015, (102, 326, 269, 270, 271, _IO_URING)),
    "riscv64": (0xC00000F3, (198, 217, 218, 219, _IO_URING)),
}


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), target)


def _mount_points() -> list[tuple[str, int]]:
    """Return all mount points with the flags that the kernel requires to stay."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        words = line.split()
        place = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), words[4])
        options = words[5].decode().split(",")
        found.append((os.fsdecode(place), sum(_OPTIONS.get(option, 0) for option in options)))
    return found


def hide(hidden: Sequence[str], kept: Sequence[str]) -> None:
    """Make all file systems read-only, hide devices, and empty the hidden directories, except for what is kept.

    Raises ``OSError`` if the kernel does not permit it.
    """
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    inside = [place for place in kept if any(_is_below(place, directory) for directory in hidden)]
    open_ = {place: os.open(place, os.O_PATH) for place in inside}
    _hide_devices()
    for place, flags in _mount_points():
        if place.startswith("/dev/"):
            continue  # hidden, or one of the devices that stay
        try:
            _mount(None, place, None, _REMOUNT | _BIND | _READ_ONLY | _NO_DEVICES | flags)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES):  # not accessible for this process either
                raise
    for directory in hidden:
        _mount("tmpfs", directory, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={_FILES},mode=700")
    for place, descriptor in open_.items():
        target = Path(place)
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        _mount(f"/proc/self/fd/{descriptor}", place, None, _BIND | _RECURSIVE)
        os.close(descriptor)
    with suppress(OSError):  # in a container: the processes of the node stay visible, but not their variables
        _mount("proc", "/proc", "proc", _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_EXEC)


def _hide_devices() -> None:
    """Replace ``/dev``: a read-only file system permits writing to terminals and, for root, to disks."""
    open_ = {name: os.open(f"/dev/{name}", os.O_PATH) for name in _DEVICES if Path("/dev", name).exists()}
    _mount("tmpfs", "/dev", "tmpfs", _NO_SUID, "size=64k,mode=755")
    Path("/dev/shm").mkdir()
    for name, descriptor in open_.items():
        Path("/dev", name).touch()
        _mount(f"/proc/self/fd/{descriptor}", f"/dev/{name}", None, _BIND)
        os.close(descriptor)


def _is_below(place: str, directory: str) -> bool:
    return place == directory or place.startswith(directory.rstrip("/") + "/")


def give_up_rights() -> None:
    """Give up all capabilities, sockets and keys, for this process and those that it starts. Raises ``OSError``."""
    machine = platform.machine()
    if machine not in _REJECTED:
        raise OSError(errno.ENOSYS, f"unsupported architecture {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        if libc.prctl(_DROP_BOUND, capability, 0, 0, 0):
            break  # the kernel has no more
    _check(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    nothing = ctypes.create_string_buffer(24)
    _check(libc.syscall(_SET_CAPABILITIES[machine], header, nothing), "capset")
    code = _filter(*_REJECTED[machine])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    _check(libc.prctl(_SET_SECCOMP, 2, ctypes.create_string_buffer(program), 0, 0), "seccomp")


def _filter(architecture: int, calls: Sequence[int]) -> bytes:
    """Return the program that rejects these system calls with EPERM, and ends processes of other architectures."""
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    allow, reject, kill = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
    lines = [(load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, kill), (load, 0, 0, 0)]
    lines += [(at_least, len(calls) + 1, 0, _X32)]
    lines += [(equal, len(calls) - number, 0, call) for number, call in enumerate(calls)]
    lines += [(end, 0, 0, allow), (end, 0, 0, reject)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def execute(file: str) -> str:
    """Execute the settings, and return their ``site_configuration`` as JSON."""
    sys.path.insert(0, os.path.dirname(file))  # noqa: PTH120
    found = runpy.run_path(file).get("site_configuration")
    if not isinstance(found, dict):
        sys.exit("it defines no site_configuration")
    return json.dumps(found, default=_as_text)


def _as_text(one: object) -> str:
    return str(os.fspath(one)) if isinstance(one, os.PathLike) else f"<{type(one).__name__}>"


def main(document: str) -> None:
    """Isolate this process, execute the settings, and end it, without waiting for what they have started."""
    given = json.loads(document)
    if given["isolated"]:
        try:
            if str(Path("/proc/self/ns/mnt").readlink()) == given["outside"]:
                raise OSError(errno.EPERM, "unshare has isolated nothing")
            os.setsid()  # a controlling terminal would accept input for the user's shell
            hide(given["hidden"], given["kept"])
            give_up_rights()
            os.chdir("/tmp")
        except OSError as error:
            print(f"{error.filename or 'isolation'}: {error.strerror}", file=sys.stderr)
            sys.exit(NOT_ISOLATED)
    limits = {
        resource.RLIMIT_AS: _MEMORY,
        resource.RLIMIT_FSIZE: _OUTPUT,
        resource.RLIMIT_CPU: SECONDS,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: _PROCESSES,
    }
    for limit, wanted in limits.items():
        hard = resource.getrlimit(limit)[1]
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(limit, (most, most))
    result = os.dup(1)
    os.dup2(2, 1)
    text = execute(given["file"])
    with os.fdopen(result, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])

"""Check the size of MPI's world inside a container image, which need not have mpi4py.

::

    HIDL_WORLD_SIZE=2 mpiexec -n 2 ... python3 .../hidl_workloads/start.py hidl_workloads.container_world COMMAND...

The MPI library is that of COMMAND: the one that its executable is linked to, or that of the mpi4py of its Python. For
any other command, it is the only one that the dynamic linker finds. If the library remains unknown (there is none, or
there are several), the check fails, because N programs that are each alone would otherwise succeed.
In a run on GPUs, each rank must find its GPU in the image. Ranks on the same node exchange a long message, which MPI
libraries copy from the memory of the other rank: a runtime with a user namespace for each rank prevents it. The ranks
find each other by the kernel that they run on, because launchers place them in any order.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import filecmp
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXPECTED_SIZE = "HIDL_WORLD_SIZE"
WRONG_WORLD, NO_GPU = 86, 88
"""Exit statuses as of ``hidl_workloads.world``."""

_MOUNTED = "HIDL_MOUNTED_MPI"
_STARTED_BY = "HIDL_CHECKED_BY"
_NAMES = ("libmpi.so.12", "libmpich.so.12", "libmpi.so.40", "libmpi.so")
_LIBRARY = re.compile(
    r"\s*(?:\S*/)?lib(?:mpi|mpich|mpi_cray|mpi_gnu_\d+|mpi_abi)\.so[.\d]*(?:\s+=>\s+(?P<place>\S+))?(?:\s|$)"
)
_ABSENT = re.compile(r"libmpi\w*\.so[.\d]*")
_PYTHON = re.compile(r"python(?:[23](?:\.\d+)?)?")
_WORLD_OF_MPICH, _BYTE_OF_MPICH, _ERRORS_RETURN_OF_MPICH = 0x44000000, 0x4C00010D, 0x54000001
_MESSAGE = 1 << 20
_NODE = 16
_EXCHANGE_SECONDS = 120.0
_GATHERING_SECONDS = 2.0
_LONGEST = 8192
#: Size of the header of a 64-bit ELF file, and the type of the entry with the path of the dynamic linker.
_HEADER, _INTERPRETER = 64, 3
_HOW = "next: skip the check with --no-mpi if the program does not use MPI"
_HOW_MOUNTED = "next: mount the directories of the libraries that it requires with --mount, or omit --mpi"


class _Unknown(Exception):
    """The library cannot be determined or loaded; the message says why, and what to do."""


def main(command: Sequence[str]) -> int:
    """Return 0 if the world has the expected size, and an exit status otherwise."""
    if os.environ.get("HIDL_DEVICE") == "gpu" and (fault := _without_gpu()):
        _say(fault)
        return NO_GPU
    python = _python_of(command)
    if python and os.path.abspath(sys.executable) != python and _STARTED_BY not in os.environ:  # noqa: PTH100
        os.environ[_STARTED_BY] = sys.executable
        start = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py")  # noqa: PTH100, PTH118, PTH120
        os.execv(python, [python, start, "hidl_workloads.container_world", *command])
    try:
        world = _world_of_mpi4py() if python else None
        size, name = world or _world_of(_load(_library_of(command)))
    except _Unknown as error:
        return _fail(f"hidl: {error}")
    expected = int(os.environ[EXPECTED_SIZE])
    if size == expected:
        return 0
    return _fail(
        f"hidl: wrong world: MPI in the image has {size} rank(s), expected {expected} ({name})\n"
        "next: the launcher and the MPI library of the image do not understand each other: set `srun_mpi` of the "
        "library in the site file, or mount an MPI library of the site with --mpi NAME"
    )


def _fail(text: str) -> int:
    """Print the text on the first rank that fails. Others wait: a launcher ends all ranks when one has failed."""
    try:
        place = os.path.join(os.path.dirname(os.environ["HIDL_METRICS"]), ".container-world")  # noqa: PTH118, PTH120
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        time.sleep(_GATHERING_SECONDS)
        return WRONG_WORLD
    except (KeyError, OSError):
        pass
    _say(text)
    return WRONG_WORLD


def _python_of(command: Sequence[str]) -> str | None:
    """Return the interpreter of a Python program; None for any other program."""
    program = _find(command)
    if program is None:
        return None
    if _PYTHON.fullmatch(os.path.basename(program)):  # noqa: PTH119
        return os.path.abspath(program)  # noqa: PTH100
    with suppress(OSError), open(program, "rb") as file:  # noqa: PTH123
        if file.read(2) == b"#!":
            words = file.readline(_LONGEST).decode("utf-8", "replace").split()
            if words and os.path.basename(words[0]) == "env":  # noqa: PTH119
                words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            if words and _PYTHON.fullmatch(os.path.basename(words[0])):  # noqa: PTH119
                return shutil.which(words[0])
    return None


def _find(command: Sequence[str]) -> str | None:
    return shutil.which(command[0]) if command else None


def _world_of_mpi4py() -> tuple[int, str] | None:
    """Return the size of the world of this Python's mpi4py, and its library; None if it is not installed.

    The directory of this package may contain the mpi4py of a stack, which the program does not import.
    """
    if sys.path[0] == os.path.dirname(os.path.dirname(os.path.abspath(__file__))):  # noqa: PTH100, PTH120
        del sys.path[0]
    try:
        from mpi4py import MPI
    except ImportError as error:
        if error.name == "mpi4py":
            return None
        raise _Unknown(f"mpi4py in the image cannot be loaded: {error}\n{_how()}") from error
    except RuntimeError as error:
        raise _Unknown(f"mpi4py in the image cannot be loaded: {error}\n{_how()}") from error
    _require_mounted(_loaded())
    size = MPI.COMM_WORLD.Get_size()
    if size == int(os.environ[EXPECTED_SIZE]) and size > 1:
        sent, received = bytearray(_MESSAGE), bytearray(_MESSAGE)
        try:
            with _deadline():
                neighbors = _neighbors(MPI.COMM_WORLD.allgather(_node()), MPI.COMM_WORLD.Get_rank())
                if neighbors is not None:
                    MPI.COMM_WORLD.Sendrecv(sent, neighbors[0], 0, received, neighbors[1], 0)
        except MPI.Exception as error:
            raise _Unknown(_no_exchange(str(error))) from error
    return size, _first_line(MPI.Get_library_version())


def _mounted() -> list[str]:
    """Return the directories of the mounted MPI library for the dynamic linker; empty for the image's own library."""
    return [place for place in os.environ.get(_MOUNTED, "").split(os.pathsep) if place]


def _is_mounted(library: str) -> bool:
    below = tuple(os.path.dirname(place) + "/" for place in _mounted())  # noqa: PTH120
    return library.startswith((*below, *(os.path.realpath(place) + "/" for place in below)))


def _require_mounted(library: str) -> None:
    """Raise ``_Unknown`` if an MPI library is mounted, and the program loads another one."""
    if _mounted() and not _is_mounted(library):
        raise _Unknown(
            f"the program loads {library} of the image instead of the mounted MPI library, which must be in "
            f"{' or '.join(_mounted())}\n"
            "next: build the program without an RPATH to its own MPI library, or omit --mpi to use that one"
        )


def _loaded() -> str:
    """Return the path of the MPI library in this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123
        places = [line.split(maxsplit=5)[5].strip() for line in maps if _LIBRARY.search(line)]
    return os.path.realpath(places[0]) if places else "a library"


def _how() -> str:
    return _HOW_MOUNTED if _mounted() else _HOW


def _library_of(command: Sequence[str]) -> str:
    """Return the path of the MPI library that a command loads. Raises ``_Unknown`` if it cannot be determined."""
    program, name = _find(command), command[0] if command else "the program"
    if program is not None and (linked := _linked_to(program)):
        _require_mounted(linked)
        return linked
    found = _different(list(filter(None, map(_resolve, [*_NAMES, *_known_to_ldconfig()]))))
    if _mounted() and found:
        own = [each for each in found if _is_mounted(each)]
        _require_mounted(own[0] if own else found[0])
        return own[0]
    if not found:
        raise _Unknown(
            f"no MPI library found in the image: {name} is not linked to one, its Python has no mpi4py, and the "
            "dynamic linker finds none, so MPI's world cannot be checked\n"
            f"{_HOW}, or mount an MPI library with --mpi NAME"
        )
    if len(found) > 1:
        raise _Unknown(
            f"the image has several MPI libraries ({', '.join(found)}), and which one {name} loads is unknown\n"
            "next: start the executable itself instead of a shell, mount a library with --mpi NAME, or skip the check "
            "with --no-mpi"
        )
    return found[0]


def _different(places: Sequence[str]) -> list[str]:
    """Return the files without copies of the same library, which an image may have instead of links."""
    found: list[str] = []
    for place in places:
        if not any(place == other or filecmp.cmp(place, other, shallow=False) for other in found):
            found.append(place)
    return found


def _linked_to(program: str) -> str | None:
    """Return the MPI library that an executable is linked to, as the dynamic linker finds it; None if to none."""
    interpreter = _interpreter(program)
    if interpreter is None:
        return None
    words = [interpreter, "--list", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False, errors="replace")
    for line in done.stdout.splitlines():
        if found := _LIBRARY.match(line):
            return os.path.realpath(found["place"] or line.split()[0])
    if absent := _ABSENT.search(done.stderr):
        raise _Unknown(f"{program} requires an MPI library that the image lacks: {absent[0]}\n{_HOW}")
    return None


def _interpreter(program: str) -> str | None:
    """Return the dynamic linker of an executable; None for scripts. Raises ``_Unknown`` if it is linked statically."""
    with open(program, "rb") as file:  # noqa: PTH123
        head = file.read(_HEADER)
        if len(head) < _HEADER or head[:4] != b"\x7fELF":
            return None
        order = "<" if head[5] == 1 else ">"
        (at,) = struct.unpack_from(order + "Q", head, 32)
        size, count = struct.unpack_from(order + "HH", head, 54)
        for number in range(count):
            file.seek(at + number * size)
            entry = file.read(size)
            (kind,) = struct.unpack_from(order + "I", entry)
            if kind == _INTERPRETER:
                (place,), (length,) = (struct.unpack_from(order + "Q", entry, offset) for offset in (8, 32))
                file.seek(place)
                return file.read(length).rstrip(b"\0").decode()
    raise _Unknown(f"{program} is linked statically, so the world of its MPI library cannot be checked\n{_HOW}")


def _known_to_ldconfig() -> list[str]:
    return [name for name in map(ctypes.util.find_library, ("mpi", "mpich")) if name]


def _resolve(name: str) -> str | None:
    """Return the path of a library that the dynamic linker finds; None if there is none.

    A process of its own loads it, because two MPI libraries cannot share one. Raises ``_Unknown`` if it exists, but
    cannot be loaded.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, _try(name).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    kind, _, rest = text.partition(" ")
    if kind == "loaded":
        return rest
    if kind == "absent":
        return None
    raise _Unknown(f"the MPI library in the image cannot be loaded: {rest or name + ' ends the process'}\n{_how()}")


def _try(name: str) -> str:
    """Load a library, and return ``loaded PATH``, ``absent`` or ``failed REASON``."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        text = str(error)
        is_absent = text.startswith(f"{name}: cannot open shared object file: No such file") or text.startswith(
            f"Error loading shared library {name}: No such file"  # musl
        )
        is_text = name.endswith(".so") and text.endswith(("file too short", "invalid ELF header"))  # for the linker
        return "absent" if is_absent or is_text else f"failed {text[:_LONGEST]}"
    base = name.partition(".so")[0] + ".so"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123
        places = [line.split(maxsplit=5)[5].strip() for line in maps if f"/{base}" in line]
    return f"loaded {os.path.realpath(places[0] if places else name)}"


def _load(place: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(place, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _Unknown(f"the MPI library in the image cannot be loaded: {error}\n{_how()}") from error


def _world_of(library: ctypes.CDLL) -> tuple[int, str]:
    """Return the size of the world, and the name of the library."""
    if library.MPI_Init(None, None):
        raise _Unknown("MPI_Init failed in the image")
    world = _handle(library, "comm_world", _WORLD_OF_MPICH)
    size = ctypes.c_int()
    library.MPI_Comm_size(world, ctypes.byref(size))
    if size.value == int(os.environ[EXPECTED_SIZE]) and size.value > 1:
        with _deadline():
            _exchange(library, world, size.value)
    text, length = ctypes.create_string_buffer(_LONGEST), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    library.MPI_Finalize()
    return size.value, _first_line(text.value.decode("utf-8", "replace"))


def _handle(library: ctypes.CDLL, name: str, number: int) -> ctypes.c_void_p | ctypes.c_int:
    """Return a handle of MPI, which is an address in Open MPI and a number in MPICH."""
    with suppress(ValueError):
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, f"ompi_mpi_{name}")))
    return ctypes.c_int(number)


def _node() -> bytes:
    """Return 16 bytes that identify the kernel of this rank, which containers share with their node."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        text = os.uname().nodename.encode()
    return hashlib.sha256(text).digest()[:_NODE]


def _neighbors(nodes: Sequence[bytes], rank: int) -> tuple[int, int] | None:
    """Return the next and the previous rank on the node of ``rank``; None if it is alone there.

    Args:
        nodes: The node of each rank. All ranks have the same list, so each partner sends what its neighbor awaits.
        rank: This rank in MPI's world.
    """
    ranks = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    at = ranks.index(rank)
    return (ranks[(at + 1) % len(ranks)], ranks[at - 1]) if len(ranks) > 1 else None


@contextmanager
def _deadline() -> Iterator[None]:
    """End this process with a message if the ranks have not exchanged their messages in time."""

    def end() -> None:
        os._exit(_fail(f"hidl: {_no_exchange(f'not finished after {_EXCHANGE_SECONDS:g} s')}"))

    timer = threading.Timer(_EXCHANGE_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a thread that the end of Python interrupts requires libgcc_s, which the image may lack


def _exchange(library: ctypes.CDLL, world: ctypes.c_void_p | ctypes.c_int, size: int) -> None:
    """Exchange a long message with other ranks on this node. Raises ``_Unknown`` if MPI cannot."""
    is_open_mpi = isinstance(world, ctypes.c_void_p)
    library.MPI_Comm_set_errhandler(world, _handle(library, "errors_return", _ERRORS_RETURN_OF_MPICH))
    kind, tag, rank = _handle(library, "byte", _BYTE_OF_MPICH), ctypes.c_int(0), ctypes.c_int()
    library.MPI_Comm_rank(world, ctypes.byref(rank))
    own, every = ctypes.create_string_buffer(_node(), _NODE), ctypes.create_string_buffer(_NODE * size)
    length = ctypes.c_int(_NODE)
    if status := library.MPI_Allgather(own, length, kind, every, length, kind, world):
        raise _Unknown(_no_exchange(f"MPI_Allgather returned {status}"))
    neighbors = _neighbors([every.raw[at : at + _NODE] for at in range(0, _NODE * size, _NODE)], rank.value)
    if neighbors is None:
        return
    sent, received = (ctypes.create_string_buffer(_MESSAGE) for _ in range(2))
    destination, source = map(ctypes.c_int, neighbors)
    count, ignored = ctypes.c_int(_MESSAGE), ctypes.c_void_p(None if is_open_mpi else 1)
    arguments = (sent, count, kind, destination, tag, received, count, kind, source, tag, world, ignored)
    if status := library.MPI_Sendrecv(*arguments):
        raise _Unknown(_no_exchange(f"MPI_Sendrecv returned {status}"))


def _no_exchange(reason: str) -> str:
    return (
        f"ranks on {os.uname().nodename} cannot exchange a message of {_MESSAGE >> 20} MiB in the image: {reason}\n"
        "next: use one rank per node, or a setting of the MPI library without cross-memory attach (UCX: --env-var "
        "UCX_TLS=^cma), because each rank may have a user namespace of its own"
    )


def _first_line(text: str) -> str:
    return " ".join(text.splitlines()[0].split()) if text.strip() else "MPI"


def _without_gpu() -> str | None:
    """Return what to say if this rank has no GPU in the image."""
    from hidl_workloads import gpus

    try:
        gpus.take(dict(os.environ), int(os.environ.get("LOCAL_RANK", "0")), first=False)
    except gpus.NoGpu as error:
        return gpus.message(f"in the image, {error}", os.uname().nodename, int(os.environ.get("RANK", "0")))
    return None


def _say(text: str) -> None:
    from hidl_workloads import streams

    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    with suppress(OSError):  # it is closed
        streams.wait_until_read(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

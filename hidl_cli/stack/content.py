"""Record and compare the sizes, SHA-256 digests and owners of the files in an installation.

``content.json`` in the prefix is written once, before the manifest. For files installed from wheels, it contains the
hashes in the wheels' ``RECORD`` files, so that a comparison also reveals files that were already damaged in uv's cache.
All other files are hashed. ``__pycache__`` directories are excluded.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hidl_cli import documents
from hidl_cli.errors import BuildFailed, MissingPrecondition
from hidl_cli.mpi import abi_of
from hidl_cli.quoting import sh
from hidl_cli.stack.installation import MANIFEST
from hidl_workloads.doctor.finding import Evidence, Finding

_MAGIC = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")  # type, flags, offset, address, physical address, size, in memory, align
_ENTRY = struct.Struct("<QQ")


def needed(file: Path) -> tuple[str, ...] | None:
    """Return the libraries that a 64-bit ELF file needs, such as ``libmpi.so.12``, or None for other files."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return tuple(_needed(data)) if data[: len(_MAGIC)] == _MAGIC else None
    except (OSError, OverflowError, ValueError, struct.error):  # ValueError: an empty file cannot be mapped
        return None


def _needed(data: mmap.mmap) -> Iterator[str]:
    (headers,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [_PROGRAM_HEADER.unpack_from(data, headers + size * number) for number in range(count)]
    for dynamic in (segment for segment in segments if segment[0] == _PT_DYNAMIC):
        start, length = dynamic[2], dynamic[5]
        entries = [_ENTRY.unpack_from(data, start + place) for place in range(0, length - 15, _ENTRY.size)]
        address = next((value for tag, value in entries if tag == _DT_STRTAB), None)
        table = next((s[2] + address - s[3] for s in segments if s[0] == _PT_LOAD and _holds(s, address)), None)
        for tag, value in entries:
            if tag == _DT_NEEDED and table is not None:
                yield data[table + value : data.find(b"\0", table + value)].decode("utf-8", "replace")


def _holds(segment: tuple[int, ...], address: int | None) -> bool:
    return address is not None and segment[3] <= address < segment[3] + segment[5]


# MPI ABIs that compiled Python packages were built for.


#: The ABI in mpi4py's wheels that works with any MPI library.
ANY = "mpiabi"

#: Modules in mpi4py wheels, one per ABI. An mpi4py that was compiled here has a single module.
_ABI_MODULE = re.compile(r"MPI\.(mpich|openmpi|impi|mpiabi|msmpi)\.")
_ABI_ALIASES = {"impi": "mpich"}


def mpi4py_abis(package: Path) -> frozenset[str]:
    """Return the ABIs that the mpi4py in this directory was built for, or an empty result if unknown."""
    found: set[str] = set()
    for module in package.glob("MPI.*.so"):
        if match := _ABI_MODULE.match(module.name):
            found.add(_ABI_ALIASES.get(match[1], match[1]))
        else:
            found |= linked_abis([module])
    return frozenset(found)


def linked_abis(modules: Iterable[Path]) -> frozenset[str]:
    """Return the ABIs of the MPI libraries that compiled modules are linked to."""
    return frozenset(abi for module in modules for name in needed(module) or () if (abi := abi_of(name)))


FILE = "content.json"
#: Files that describe the installation, but are not part of its content.
ABOUT = (FILE, MANIFEST, "verification.json")
SCHEMA = "hidl.content/1"
#: Reading with more threads is not faster on a single disk.
THREADS = 8

_BLOCK = 1 << 20
_CACHES = "__pycache__"
_RECORD = "lib/python*/site-packages/*.dist-info/RECORD"


@dataclass(frozen=True)
class File:
    """A file's size in bytes, its hexadecimal SHA-256, and the distribution that owns it (empty if none does)."""

    size: int
    digest: str
    owner: str = ""


@dataclass(frozen=True)
class Content:
    """An installation's files and the targets of its symbolic links, by path relative to the prefix."""

    files: Mapping[str, File]
    links: Mapping[str, str]


@dataclass(frozen=True)
class ContentDifference:
    """Differences from the recorded content, as paths below the prefix; ``read`` is the number of hashed bytes."""

    damaged: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    read: int = 0
    files: int = field(default=0, compare=False)

    @property
    def is_whole(self) -> bool:
        """Return True if no file is damaged or missing; extra files are ignored."""
        return not (self.damaged or self.missing)


def record(prefix: Path) -> Content:
    """Record a new prefix's content. Raises ``BuildFailed`` if a file's size differs from that in its wheel."""
    recorded = dict(_wheel_files(prefix))
    found, links = _scan(prefix)
    wrong = [path for path, file in recorded.items() if found.get(path) != file.size]
    if wrong:
        owner = recorded[wrong[0]].owner
        raise BuildFailed(
            f"{len(wrong)} file(s) from wheels are damaged or missing after installation: {', '.join(wrong[:3])}",
            hint=f"uv's cache is damaged: run uv cache clean {owner.partition('==')[0]}, then install again",
        )
    others = [path for path in found if path not in recorded and path not in ABOUT]
    digests = _digests(prefix, others)
    files = recorded | {path: File(found[path], digests[path]) for path in others if path in digests}
    documents.write_text(prefix / FILE, _text(files, links))
    return Content(files, links)


def read(prefix: Path) -> Content:
    """Read the recorded content. Without a record, the content is limited to files installed from wheels.

    Raises ``MissingPrecondition`` if the record is damaged.
    """
    if not (prefix / FILE).exists():
        return Content(dict(_wheel_files(prefix)), {})
    try:
        document = documents.read_json(prefix / FILE)
        files = {path: File(*values) for path, values in document["files"].items()}
        return Content(files, document["links"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MissingPrecondition(
            f"{prefix / FILE} cannot be read: {error}", hint="uninstall the stack and install it again"
        ) from error


def compare(prefix: Path, content: Content, *, deep: bool) -> ContentDifference:
    """Compare a prefix with its recorded content by size, and also by hash if ``deep``."""
    found, links = _scan(prefix)
    missing = [path for path in content.files if path not in found]
    missing += [path for path in content.links if path not in links]
    damaged = [path for path, file in content.files.items() if path in found and found[path] != file.size]
    damaged += [path for path, target in content.links.items() if path in links and links[path] != target]
    read_bytes = 0
    if deep:
        same = [path for path, file in content.files.items() if found.get(path) == file.size]
        digests = _digests(prefix, same)
        damaged += [path for path in same if digests.get(path) != content.files[path].digest]
        read_bytes = sum(content.files[path].size for path in same)
    known = {*content.files, *content.links, *ABOUT}
    foreign = [path for path in (*found, *links) if path not in known] if content.links else []
    return ContentDifference(
        tuple(sorted(damaged)), tuple(sorted(missing)), tuple(sorted(foreign)), read_bytes, len(content.files)
    )


def make_read_only(prefix: Path, content: Content) -> None:
    """Make the files read-only, except those with hard links elsewhere."""
    for path in content.files:
        file = prefix / path
        status = file.stat()
        if status.st_nlink == 1:
            file.chmod(status.st_mode & ~0o222)


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises ``OSError`` if it cannot be read."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _wheel_files(prefix: Path) -> Iterator[tuple[str, File]]:
    """Yield the files listed in the wheels' records, except compiled files and files without a hash.

    Python replaces compiled files, one of which is listed in NumPy 1.26's record.
    """
    for file in sorted(prefix.glob(_RECORD)):
        name, _, version = file.parent.name.removesuffix(".dist-info").partition("-")
        place = file.parent.parent.relative_to(prefix)
        with file.open(newline="", encoding="utf-8") as rows:
            for row in csv.reader(rows):
                path, digest, size = (*row, "", "")[:3]
                kind, _, value = digest.partition("=")
                if kind == "sha256" and size.isdecimal():
                    inside = os.path.normpath(place / path)
                    if not inside.startswith("..") and _CACHES not in Path(inside).parts:
                        yield inside, File(int(size), _hexadecimal(value), f"{name}=={version}")


def _hexadecimal(digest: str) -> str:
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()


def _scan(prefix: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return the sizes of all files below the prefix and the targets of all links."""
    sizes: dict[str, int] = {}
    links: dict[str, str] = {}
    cut = len(str(prefix)) + 1
    directories = [str(prefix)]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    links[entry.path[cut:]] = os.readlink(entry.path)  # noqa: PTH115 - tens of thousands of files
                elif entry.is_dir():
                    if entry.name != _CACHES:
                        directories.append(entry.path)
                else:
                    sizes[entry.path[cut:]] = entry.stat(follow_symlinks=False).st_size
    return sizes, links


def _digests(prefix: Path, paths: list[str]) -> dict[str, str]:
    """Return the SHA-256 of each readable file."""

    def one(path: str) -> str | None:
        try:
            return digest_of(prefix / path)
        except OSError:
            return None

    with ThreadPoolExecutor(THREADS) as pool:
        found = zip(paths, pool.map(one, paths, chunksize=64), strict=True)
        return {path: digest for path, digest in found if digest is not None}


def _text(files: Mapping[str, File], links: Mapping[str, str]) -> str:
    import json

    document: dict[str, Any] = {
        "schema": SCHEMA,
        "files": {path: [file.size, file.digest, file.owner] for path, file in sorted(files.items())},
        "links": dict(sorted(links.items())),
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


# Rule HD085, which the doctor and the diagnosis of failed runs use to report damaged files.


RULE = "HD085"
TITLE = "Files of the installation are damaged or missing"
WHY = "Programs may crash, fail to start, or run code that was never verified."

_SHOWN = 3


def look(prefix: Path, *, deep: bool) -> Evidence | None:
    """Compare the installation at ``prefix`` with its recorded content (see ``compare``).

    Returns None if it is intact.
    """
    stack = prefix.parent.name
    if not prefix.is_dir():
        return Evidence(f"{prefix} no longer exists", f"hidl install {sh(stack)}, then run it again", str(prefix))
    try:
        found = compare(prefix, read(prefix), deep=deep)
    except (MissingPrecondition, OSError) as error:
        return Evidence(str(error), f"hidl uninstall {sh(stack)}, then install it again", where=str(prefix))
    wrong = [*found.damaged, *found.missing]
    if not wrong:
        return None
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return Evidence(
        f"{len(found.damaged)} file(s) damaged and {len(found.missing)} missing in {prefix}: "
        f"{', '.join(wrong[:_SHOWN])}{more}",
        f"hidl stack verify {sh(stack)} --repair (does not disturb running jobs)",
        where=str(prefix),
    )


def finding(evidence: Evidence) -> Finding:
    """Return the finding for this evidence."""
    return Finding(RULE, "error", TITLE, evidence.seen, WHY, evidence.fix, evidence.where)

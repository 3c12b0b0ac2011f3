"""RPM packages as the vendor's are laid out, made byte by byte: no rpmbuild is needed, and hostile ones can be had."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STRING, _STRING_ARRAY, _INT32 = 6, 8, 4
_NAME, _COMPRESSOR, _PAYLOAD_DIGEST, _PAYLOAD_DIGEST_KIND = 1000, 1125, 5092, 5093
_COMPRESSORS = {"gzip": lambda data: gzip.compress(data, 1), "xz": lzma.compress}


@dataclass(frozen=True)
class Member:
    """One entry of the payload: its name as it is written there, its mode with type, its content or a link's target."""

    name: str
    mode: int
    content: bytes = b""
    inode: int = 0
    links: int = 1


def file(name: str, content: bytes = b"", mode: int = 0o644) -> Member:
    """A plain file."""
    return Member(name, stat.S_IFREG | mode, content)


def link(name: str, target: str) -> Member:
    """A symbolic link."""
    return Member(name, stat.S_IFLNK | 0o777, target.encode())


def directory(name: str) -> Member:
    """A directory."""
    return Member(name, stat.S_IFDIR | 0o755)


def below(root: Path, prefix: str, paths: Sequence[str]) -> list[Member]:
    """Members for these files, links and folders of ``root``, with their content, under ``./<prefix>``."""
    members = []
    for path in sorted(found for name in paths for found in (root / name, *(root / name).rglob("*"))):
        name = f".{prefix}/{path.relative_to(root)}"
        if path.is_symlink():
            members.append(link(name, str(path.readlink())))
        elif path.is_dir():
            members.append(directory(name))
        else:
            members.append(file(name, path.read_bytes(), stat.S_IMODE(path.stat().st_mode)))
    return members


def write(rpm: Path, members: Sequence[Member], *, compressor: str = "xz", digest: str | None = None) -> str:
    """Make the file ``rpm``, and return its SHA-256; ``digest`` is another one for the payload than the right one."""
    payload = _COMPRESSORS[compressor](_cpio(members))
    header = _header(
        [
            (_NAME, _STRING, ["mvapich2-gdr"]),
            (_COMPRESSOR, _STRING, [compressor]),
            (_PAYLOAD_DIGEST, _STRING_ARRAY, [digest or hashlib.sha256(payload).hexdigest()]),
            (_PAYLOAD_DIGEST_KIND, _INT32, [8]),
        ]
    )
    lead = b"\xed\xab\xee\xdb\x03\x00".ljust(96, b"\0")
    signature = _header([(_NAME, _STRING, ["signature"])])
    rpm.write_bytes(lead + signature + b"\0" * (-len(signature) % 8) + header + payload)
    return hashlib.sha256(rpm.read_bytes()).hexdigest()


def _header(entries: Sequence[tuple[int, int, list[str] | list[int]]]) -> bytes:
    index, store = b"", b""
    for tag, kind, values in entries:
        if kind == _INT32:
            store += b"\0" * (-len(store) % 4)
        index += struct.pack(">IIII", tag, kind, len(store), len(values))
        store += b"".join(struct.pack(">I", v) if isinstance(v, int) else v.encode() + b"\0" for v in values)
    return b"\x8e\xad\xe8\x01\0\0\0\0" + struct.pack(">II", len(entries), len(store)) + index + store


def _cpio(members: Sequence[Member]) -> bytes:
    archive = b""
    for number, member in enumerate((*members, Member("TRAILER!!!", 0)), 1):
        name = member.name.encode() + b"\0"
        fields = [
            member.inode or number,
            member.mode,
            0,
            0,
            member.links,
            0,
            len(member.content),
            0,
            0,
            0,
            0,
            len(name),
            0,
        ]
        archive += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        archive += b"\0" * (-len(archive) % 4) + member.content
        archive += b"\0" * (-len(archive) % 4)
    return archive

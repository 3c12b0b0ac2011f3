"""RPMs made byte by byte, as RPM 4 writes them: lead, signature, header, and a compressed cpio archive."""

from __future__ import annotations

import gzip
import hashlib
import stat
import struct
from pathlib import Path

_LEAD = struct.pack(">4sBBHH66sHH16x", b"\xed\xab\xee\xdb", 3, 0, 0, 1, b"test", 1, 5)
_COMPRESSOR, _DIGESTS, _DIGEST_KIND = 1125, 5092, 5093
_SHA256 = 8

#: A member: its path, its mode and its content (of a link: its target).
Member = tuple[str, int, bytes]


def file(path: str, content: bytes = b"", mode: int = 0o755) -> Member:
    """A plain file."""
    return path, stat.S_IFREG | mode, content


def link(path: str, target: str) -> Member:
    """A symbolic link."""
    return path, stat.S_IFLNK | 0o777, target.encode()


def tree(directory: Path, below: str) -> list[Member]:
    """All files and links of a directory, as they would be installed in ``below``."""
    members = []
    for path in sorted(directory.rglob("*")):
        name = f"{below}/{path.relative_to(directory).as_posix()}"
        if path.is_symlink():
            members.append(link(name, str(path.readlink())))
        elif path.is_file():
            members.append(file(name, path.read_bytes(), path.stat().st_mode & 0o777))
    return members


def make(rpm: Path, members: list[Member], *, digest: str | None = None) -> Path:
    """Write the RPM; ``digest``: what it says of its payload, None: the truth."""
    payload = gzip.compress(_cpio(members), mtime=0)
    signature = _header({})
    said = digest or hashlib.sha256(payload).hexdigest()
    header = _header({_COMPRESSOR: ["gzip"], _DIGESTS: [said], _DIGEST_KIND: _SHA256})
    rpm.write_bytes(_LEAD + signature + b"\0" * (-len(signature) % 8) + header + payload)
    return rpm


def _header(values: dict[int, list[str] | int]) -> bytes:
    entries, store = b"", b""
    for tag, value in values.items():
        if isinstance(value, int):
            store += b"\0" * (-len(store) % 4)
            entries += struct.pack(">IIII", tag, 4, len(store), 1)
            store += struct.pack(">I", value)
        else:
            entries += struct.pack(">IIII", tag, 8, len(store), len(value))
            store += b"".join(text.encode() + b"\0" for text in value)
    return b"\x8e\xad\xe8\x01\0\0\0\0" + struct.pack(">II", len(values), len(store)) + entries + store


def _cpio(members: list[Member]) -> bytes:
    archive = b""
    for number, (path, mode, content) in enumerate([*members, ("TRAILER!!!", 0, b"")], start=1):
        name = (path if path == "TRAILER!!!" or path.startswith("/") else f"./{path}").encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name
        archive += head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)
    return archive

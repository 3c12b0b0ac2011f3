"""RPM packages, unpacked into a directory by anybody: no root, no RPM database, no rpm2cpio.

It uses the standard library alone and imports nothing of Spack. The format is RPM's version 4
(https://rpm-software-management.github.io/rpm/manual/format_v4.html), its payload a cpio archive ``newc`` (cpio(5)).
"""

import bz2
import gzip
import hashlib
import lzma
import os
import stat
import struct
import subprocess

_LEAD = b"\xed\xab\xee\xdb"
_LEAD_SIZE = 96
_HEADER = b"\x8e\xad\xe8\x01"
_COMPRESSOR, _PAYLOAD_DIGEST, _PAYLOAD_DIGEST_KIND = 1125, 5092, 5093
_INT32, _STRINGS = 4, (6, 8, 9)
_SHA256 = 8
_CPIO, _CPIO_END = b"070701", "TRAILER!!!"


class RpmError(Exception):
    """An RPM is damaged, or holds what must not be unpacked; the message says which."""


def unpack(rpm, directory):
    """Unpack the file ``rpm`` below ``directory``; returns the paths of what it holds, relative to it and sorted.

    Permissions are kept, but for the right of others to write. Before anything is written, ``RpmError`` is raised for
    a path that is absolute, has ``..`` or passes through a link, for a link that leads out of ``directory``, for a
    file with set-user-id or set-group-id, for a device, and for a payload that is not the one that the header names.
    """
    members = _members(_payload(rpm), rpm)
    links = {path for path, mode, _ in members if stat.S_ISLNK(mode)}
    for path, mode, content in members:
        reason = _objection(path, mode, content, links)
        if reason:
            raise RpmError(f"{rpm} is not unpacked: {path} {reason}")
    for path, mode, content in members:
        target = os.path.join(directory, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if stat.S_ISDIR(mode):
            os.makedirs(target, exist_ok=True)
        elif stat.S_ISLNK(mode):
            os.symlink(os.fsdecode(content), target)
        else:
            with open(target, "wb") as file:
                file.write(content)
            os.chmod(target, stat.S_IMODE(mode) & 0o755 | stat.S_IWUSR)
    return sorted(path for path, _, _ in members)


def _objection(path, mode, content, links):
    """Why this member is not unpacked; None where it may be."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        return "leads out of the directory"
    if any("/".join(parts[:depth]) in links for depth in range(1, len(parts))):
        return "lies below a link"
    if stat.S_ISLNK(mode):
        return _objection_to_link(os.fsdecode(content), depth=len(parts) - 1)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "is neither a file nor a directory nor a link"
    if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
        return "would run with the rights of its owner (set-user-id or set-group-id)"
    return None


def _objection_to_link(target, depth):
    """Only its first parts may be ``..``: after another link, ``..`` leads nobody knows where."""
    parts = target.split("/")
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    if target.startswith("/") or ups > depth or ".." in parts[ups:]:
        return f"is a link that leads out of the directory, to {target}"
    return None


def _payload(rpm):
    """The cpio archive inside."""
    with open(rpm, "rb") as file:
        data = file.read()
    if data[:4] != _LEAD:
        raise RpmError(f"{rpm} is no RPM")
    try:
        _, end = _header(data, _LEAD_SIZE)
        tags, end = _header(data, end + -end % 8)
        compressed = data[end:]
        if tags.get(_PAYLOAD_DIGEST_KIND) == [_SHA256]:
            _compare(compressed, tags[_PAYLOAD_DIGEST])
        return _decompressed(compressed, tags.get(_COMPRESSOR, ["gzip"])[0])
    except (struct.error, KeyError, ValueError, OSError, EOFError, lzma.LZMAError) as error:
        raise RpmError(f"{rpm} cannot be unpacked: {error}") from error


def _header(data, begin):
    """The numbers and texts of one header structure by their tags, and where it ends."""
    if data[begin : begin + 4] != _HEADER:
        raise ValueError(f"there is no header at byte {begin}")
    entries, size = struct.unpack_from(">II", data, begin + 8)
    store = begin + 16 + 16 * entries
    values = {}
    for number in range(entries):
        tag, kind, offset, count = struct.unpack_from(">IIII", data, begin + 16 + 16 * number)
        if kind == _INT32:
            values[tag] = list(struct.unpack_from(f">{count}I", data, store + offset))
        elif kind in _STRINGS:
            texts = data[store + offset : store + size].split(b"\0", count)[:count]
            values[tag] = [text.decode("utf-8", "replace") for text in texts]
    return values, store + size


def _compare(payload, digests):
    if digests != [hashlib.sha256(payload).hexdigest()]:
        raise ValueError("its payload has another SHA-256 than its header says")


def _decompressed(data, compressor):
    if compressor == "zstd":
        return _piped(["zstd", "-dc"], data)  # Python has it from 3.14 on; the RPMs of EL 9 use it
    known = {"gzip": gzip.decompress, "bzip2": bz2.decompress, "xz": lzma.decompress, "lzma": lzma.decompress}
    if compressor not in known:
        raise ValueError(f"its compression {compressor} is not known here")
    return known[compressor](data)


def _piped(command, data):
    try:
        done = subprocess.run(command, input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise ValueError(f"the program {command[0]} is needed, and is not on PATH") from None
    if done.returncode != 0:
        raise ValueError(done.stderr.decode("utf-8", "replace").strip())
    return done.stdout


def _members(archive, rpm):
    """``(path, mode, content)`` of each member; a link's content is its target."""
    members, shared = [], {}
    begin = 0
    while True:
        try:
            if archive[begin : begin + 6] != _CPIO:
                raise ValueError("its payload is no cpio archive of the format newc")
            fields = [int(archive[at : at + 8], 16) for at in range(begin + 6, begin + 110, 8)]
        except ValueError as error:
            raise RpmError(f"{rpm} cannot be unpacked: {error}") from error
        inode, mode, links, size, name_size = fields[0], fields[1], fields[4], fields[6], fields[11]
        name_end = begin + 110 + name_size
        name = os.fsdecode(archive[begin + 110 : name_end - 1])
        if name == _CPIO_END:
            break
        content_begin = name_end + -name_end % 4
        content_end = content_begin + size
        if content_end > len(archive):
            raise RpmError(f"{rpm} cannot be unpacked: it ends within {name}")
        begin = content_end + -content_end % 4
        content = archive[content_begin:content_end]
        several = stat.S_ISREG(mode) and links > 1
        if several and content:
            shared[inode] = content
        path = name[2:] if name.startswith("./") else name
        if path not in ("", "."):
            members.append((path, mode, content, inode if several else None))
    # Of the names of one file, only the last comes with the content.
    return [(path, mode, shared.get(inode, content)) for path, mode, content, inode in members]

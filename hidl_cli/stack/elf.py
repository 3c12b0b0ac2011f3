"""Libraries that a compiled module requires: ``DT_NEEDED`` entries of a 64-bit little-endian ELF file (elf(5)).

The dynamic segment refers to strings by their offset in a table that is given by its address.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")  # type, flags, offset, address, physical address, size, in memory, align
_ENTRY = struct.Struct("<QQ")


def needed(file: Path) -> tuple[str, ...] | None:
    """The names, such as ``libmpi.so.12``; None if the file cannot be read, or is not such an ELF file."""
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

"""Data sets in tar archives, in the layout of WebDataset: read in any order, and made for tests and benchmarks.

A data set is a directory of archives (shards), or one of them. A sample is the files of an archive whose names differ
only behind the first dot:

- images: ``0000.npy`` (bytes, height x width x 3), ``0000.jpg`` or ``0000.png``, and ``0000.cls``, the number of the
  class. JPEG and PNG require Pillow.
- tokens: ``0000.npy``, unsigned integers. A file without an archive (``tokens.npy``) is a data set too.

Archives must not be compressed: each sample is read at its position.
"""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_OPEN = 64  # archives that a reader keeps open
_END = 2 * tarfile.BLOCKSIZE  # zeros at the end of an archive
_BLOCK = 2**20  # bytes read at once
_ENTRY = np.dtype([("shard", "i4"), ("offset", "i8"), ("size", "i8"), ("kind", "U8"), ("label", "i4")])
#: Readers of the headers of NumPy's files. Version 3 only differs in the encoding of names of fields.
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,
}
_IMAGES = ("npy", "jpg", "jpeg", "png")
_CLASS = "cls"


def find_shards(path: Path) -> list[Path]:
    """Return the archives and arrays of a data set, sorted by name.

    Raises:
        ValueError: If there are none.
    """
    if path.is_file():
        return [path]
    found = sorted(each for each in path.glob("*") if each.suffix in (".tar", ".npy"))
    if not found:
        raise ValueError(f"no data in {path}: expected a directory with *.tar or *.npy, or one such file")
    return found


def index_images(shards: Sequence[Path], numbers: Sequence[int]) -> NDArray[Any]:
    """Return the entries of the images in the shards with these numbers.

    Raises:
        ValueError: If an archive cannot be read, or a sample does not have one image and one class.
    """
    return _entries(entry for number in numbers for entry in _images_of(shards[number], number))


def index_tokens(shards: Sequence[Path], numbers: Sequence[int]) -> NDArray[Any]:
    """Return the entries of the arrays in the shards with these numbers; their size is in tokens, their kind a type.

    Raises:
        ValueError: If an archive cannot be read, or an array is not one of unsigned integers.
    """
    return _entries(entry for number in numbers for entry in _tokens_of(shards[number], number))


class ShardReader:
    """Reads parts of archives, the newest of which stay open; any number of threads use it at the same time."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self._shards = shards
        self._open: OrderedDict[int, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Return ``size`` bytes; raise ``OSError`` if the archive has been cut short."""
        with self._lock:
            file = self._open.get(shard)
        if file is None:
            file = _Descriptor(os.open(self._shards[shard], os.O_RDONLY))
        with self._lock:
            self._open[shard] = file
            self._open.move_to_end(shard)
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        found = os.pread(file.number, size, offset)
        if len(found) < size:
            raise OSError(f"{self._shards[shard]} ends within a sample at byte {offset}: it has changed")
        return found


class _Descriptor:
    """A descriptor that is closed when nothing refers to it: another thread may read from a file that is dropped."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


def name_sample(shard: Path, offset: int) -> str:
    """Return a description of the file of an archive that contains the byte at ``offset``."""
    with suppress(OSError, ValueError):  # damaged, or not an archive
        for _, member, _, _ in _members(shard):
            if 0 <= offset - member.offset_data < max(member.size, 1):
                return f"{member.name} in {shard} (byte {offset})"
    return f"{shard} (byte {offset})"


def require_decoder(kinds: Iterable[str]) -> None:
    """Raise ``ValueError`` if images of one of these kinds require Pillow, and it is missing."""
    found = sorted({*kinds} - {"npy"})
    if found and find_spec("PIL") is None:
        kind, stack = ", ".join(found), os.environ.get("HIDL_STACK") or "pytorch"
        raise ValueError(
            f"images in {kind} require Pillow: hidl install {stack} --with pillow --as with-pillow, "
            "then --stack with-pillow"
        )


def decode_image(data: bytes, kind: str) -> NDArray[np.uint8]:
    """Return an image as bytes, height x width x 3.

    Raises:
        ValueError: If it is not an image of bytes, or Pillow is missing.
    """
    if kind == "npy":
        image: NDArray[np.uint8] = np.load(io.BytesIO(data), allow_pickle=False)
    else:
        require_decoder([kind])
        from PIL import Image

        with Image.open(io.BytesIO(data)) as opened:
            if opened.mode.startswith(("I", "F")):  # Pillow would clip their values to those of a byte
                raise ValueError(f"expected at most 8 bits for each colour, got Pillow's mode {opened.mode}")
            image = np.asarray(opened.convert("RGB"))
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"expected bytes of height x width x 3, got {image.dtype} of {image.shape}")
    return image


def make_images(directory: Path, *, samples: int, side: int, classes: int, shards: int, seed: int) -> list[Path]:
    """Write images of one colour for each class, with noise, in a random order; return the archives.

    Args:
        directory: Where to write, created if it does not exist.
        samples: Number of images.
        side: Height and width in pixels.
        classes: Number of classes, all of which are as frequent as possible.
        shards: Number of archives.
        seed: Seed of the data.
    """
    random = np.random.default_rng(seed)
    colours = random.integers(64, 192, size=(classes, 3))

    def sample(number: int) -> dict[str, bytes]:
        label = number % classes
        noise = np.random.default_rng((seed, number)).integers(-64, 64, size=(side, side, 3))
        return {"npy": _npy((colours[label] + noise).astype(np.uint8)), _CLASS: str(label).encode()}

    order = random.permutation(samples)
    return _write(directory, "images", [(int(each), sample) for each in order], shards)


def make_tokens(directory: Path, *, tokens: int, vocabulary: int, shards: int, seed: int) -> list[Path]:
    """Write tokens, each of which follows from the one before it in most cases; return the archives.

    Args:
        directory: Where to write, created if it does not exist.
        tokens: Number of tokens.
        vocabulary: Number of different tokens.
        shards: Number of archives, each with an equal part of the tokens.
        seed: Seed of the data.
    """
    kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
    following = np.random.default_rng(seed).permutation(vocabulary)

    def sample(number: int) -> dict[str, bytes]:
        random = np.random.default_rng((seed, number))
        length = tokens * (number + 1) // shards - tokens * number // shards
        found = random.integers(vocabulary, size=length)
        for place in np.flatnonzero(random.random(length - 1) < 0.9) + 1 if length else ():
            found[place] = following[found[place - 1]]
        return {"npy": _npy(found.astype(kind))}

    return _write(directory, "tokens", [(number, sample) for number in range(shards)], shards)


def _write(directory: Path, name: str, samples: Sequence[tuple[int, Any]], shards: int) -> list[Path]:
    """Write archives whose bytes only depend on the samples; each appears when it is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for number in range(shards):
        target = directory / f"{name}-{number:06d}.tar"
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as archive:
            for key, sample in samples[len(samples) * number // shards : len(samples) * (number + 1) // shards]:
                for extension, data in sample(key).items():
                    member = tarfile.TarInfo(f"{key:09d}.{extension}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        temporary.replace(target)
        written.append(target)
    return written


def _npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _entries(found: Iterator[tuple[Any, ...]]) -> NDArray[Any]:
    return np.array(list(found), dtype=_ENTRY)


def _members(shard: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo, str, str]]:
    """Yield the files of an archive with their sample and their extension."""
    with shard.open("rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    folder, slash, name = member.name.rpartition("/")
                    if member.isfile() and not name.startswith("."):
                        key, _, extension = name.partition(".")
                        yield archive, member, f"{folder}{slash}{key}", extension.lower()
                end = archive.offset
        except tarfile.TarError as error:
            raise ValueError(
                f"{shard} cannot be read as an uncompressed tar archive: {error} (byte {file.tell()})"
            ) from error
        _require_end(shard, file, end)


def _require_end(shard: Path, file: BinaryIO, offset: int) -> None:
    """Raise ``ValueError`` unless an archive ends at ``offset``: ``tarfile`` ignores what follows a damaged header."""
    file.seek(offset)
    zeros = 0
    while block := file.read(_BLOCK):
        rest = block.lstrip(b"\0")
        zeros += len(block) - len(rest)
        if rest:
            raise ValueError(
                f"{shard} is damaged at byte {offset}, or consists of several archives: unexpected data at byte "
                f"{offset + zeros}"
            )
    if zeros < _END:
        raise ValueError(f"{shard} is incomplete: the end of the archive is missing at byte {offset}")


def _images_of(shard: Path, number: int) -> Iterator[tuple[Any, ...]]:
    images: dict[str, tuple[int, int, str]] = {}
    labels: dict[str, int] = {}
    for archive, member, key, extension in _members(shard):
        if extension in _IMAGES:
            if key in images:
                raise ValueError(f"{shard}: {member.name} is another image of sample {key}, which must have one")
            images[key] = (member.offset_data, member.size, extension)
        elif extension == _CLASS:
            file = archive.extractfile(member)
            assert file is not None  # it is a regular file
            if key in labels:
                raise ValueError(f"{shard}: {member.name} is another class of sample {key}, which must have one")
            labels[key] = _parse_class(shard, member.name, file.read())
    for key, (offset, size, extension) in images.items():
        if key not in labels:
            raise ValueError(f"{shard}: image {key} has no class: expected {key}.{_CLASS}")
        yield number, offset, size, extension, labels[key]
    for key in sorted(labels.keys() - images.keys()):
        raise ValueError(f"{shard}: class {key}.{_CLASS} has no image: expected {key}.{', '.join(_IMAGES)}")


def _parse_class(shard: Path, name: str, text: bytes) -> int:
    try:
        label = int(text)
    except ValueError:
        label = -1
    if not 0 <= label <= np.iinfo(_ENTRY["label"]).max:
        shown = text[:20].decode("ascii", "replace")
        raise ValueError(f"{shard}: {name} must contain the number of a class, not {shown!r}")
    return label


def _tokens_of(shard: Path, number: int) -> Iterator[tuple[Any, ...]]:
    if shard.suffix == ".npy":
        places = [(0, shard.stat().st_size, shard.name)]
    else:
        places = [
            (member.offset_data, member.size, member.name)
            for _, member, _, extension in _members(shard)
            if extension == "npy"
        ]
    with shard.open("rb") as file:
        for offset, size, name in places:
            file.seek(offset)
            try:
                version = np.lib.format.read_magic(file)
                if version not in _HEADERS:
                    raise ValueError(f"unknown version {version}")
                shape, _, kind = _HEADERS[version](file)
            except Exception as error:  # NumPy parses Python, which can fail in many ways
                raise ValueError(f"{shard}: {name} at byte {offset} is not an array of NumPy: {error}") from error
            if len(shape) != 1 or kind.kind not in "ui":
                raise ValueError(f"{shard}: {name} must be a list of integers, not {kind} of {shape}")
            if file.tell() - offset + shape[0] * kind.itemsize > size:
                raise ValueError(f"{shard}: {name} at byte {offset} is incomplete: it should have {shape[0]} integers")
            yield number, file.tell(), shape[0], kind.str, 0

"""Read an image that Pillow wrote in several formats, and write how far each is from the array: OUT DIRECTORY.

The largest difference of the normalised values, or the error, by the name of the file.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
from mpi4py import MPI
from PIL import Image

from hidl_workloads.training.data import ImageData

OUT, DIRECTORY = map(Path, sys.argv[1:])
SIDE = 40


def encode(image: Image.Image, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def read(name: str, data: bytes) -> np.ndarray:
    """Return the pixels of the only image of an archive, which are cropped and mirrored alike."""
    shard, extension = DIRECTORY / f"{name}.tar", name.partition(".")[2]
    with tarfile.open(shard, "w", format=tarfile.USTAR_FORMAT) as archive:
        for member_name, content in ((f"0.{extension}", data), ("0.cls", b"3")):
            member = tarfile.TarInfo(member_name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    batch = ImageData(MPI.COMM_WORLD, shard, side=32, classes=10, seed=0).read([(1, 0)])
    assert batch.targets.tolist() == [3]
    return batch.inputs


rows, columns = np.mgrid[:SIDE, :SIDE]
pixels = np.stack([rows * 6, columns * 6, (rows + columns) * 3], axis=2).astype(np.uint8)
rgb = Image.fromarray(pixels)
grey, palette = rgb.convert("L"), rgb.quantize(16)
jpeg = encode(rgb, "JPEG", quality=95)
cases = {
    "rgb.png": (encode(rgb, "PNG"), rgb),
    "upper.PNG": (encode(rgb, "PNG"), rgb),
    "rgba.png": (encode(Image.merge("RGBA", (*rgb.split(), grey)), "PNG"), rgb),
    "grey.png": (encode(grey, "PNG"), grey.convert("RGB")),
    "palette.png": (encode(palette, "PNG"), palette.convert("RGB")),
    "rgb.jpg": (jpeg, rgb),
    "rgb.jpeg": (jpeg, rgb),
    "cmyk.jpg": (encode(rgb.convert("CMYK"), "JPEG", quality=95), rgb),
    "deep.png": (encode(Image.fromarray((rows * 1000).astype(np.uint16)), "PNG"), grey),
    "cut.jpg": (jpeg[: len(jpeg) // 2], rgb),
}
found: dict[str, float | str] = {}
for name, (data, expected) in cases.items():
    try:
        found[name] = float(np.abs(read(name, data) - read(f"expected {name[0]}.npy", npy(expected))).max())
    except Exception as error:
        found[name] = str(error)
OUT.write_text(json.dumps(found))

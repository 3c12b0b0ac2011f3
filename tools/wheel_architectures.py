"""Read from wheels which GPU architectures their kernels serve, without a GPU; prints rows of the table of wheels.

Usage: python tools/wheel_architectures.py WHEEL...        (the table: recipes/facts/wheels.yaml)

PyTorch keeps its flags as text in ``torch/lib/libtorch_python.so`` (``torch.cuda.get_arch_list()``, which asks for a
driver first), TensorFlow in ``tensorflow/python/platform/build_info.py``. A build for processors has none.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

_FLAGS = re.compile(rb"(?:(?:sm|compute)_\d{2,3}[af]?[ \0]){2,}")
_ONE_FLAG = re.compile(r"(?:sm|compute)_\d{2,3}[af]?")
_NAME = re.compile(r"(?P<package>[A-Za-z0-9_]+)-(?P<version>[^-]+)(?:-\d\w*)?-[^-]+-[^-]+-(?P<platform>[^-]+)\.whl")
_TORCH_FLAGS = "torch/lib/libtorch_python.so"
_TORCH_CUDA = re.compile(r"^cuda[^=\n]*= '([\d.]+)'", re.MULTILINE)
_TENSORFLOW_INFO = "tensorflow/python/platform/build_info.py"
_BLOCK = 1 << 24
_OVERLAP = 1 << 12


def main(files: list[str]) -> None:
    """Print a row for each wheel."""
    for file in files:
        print(f"  - {json.dumps(read(Path(file)))}")


def read(wheel: Path) -> dict[str, object]:
    """Return package, version, platform, CUDA and architectures of a wheel; ``ValueError`` for other packages."""
    name = _NAME.fullmatch(wheel.name)
    if name is None:
        raise ValueError(f"{wheel.name} is not a wheel's name")
    about = {"package": name["package"], "version": name["version"], "platform": _platform(name["platform"])}
    with zipfile.ZipFile(wheel) as archive:
        if name["package"] == "torch":
            cuda = _TORCH_CUDA.search(archive.read("torch/version.py").decode())
            return {**about, "cuda": cuda[1] if cuda else None, "architectures": _flags(archive)}
        if name["package"].startswith("tensorflow"):
            text = archive.read(_TENSORFLOW_INFO).decode()
            found = re.search(r'"cuda_version"\s*:\s*"([\d.]+)"', text)
            listed = re.search(r'"cuda_compute_capabilities"\s*:\s*\[([^\]]*)\]', text)
            flags = _ONE_FLAG.findall(listed[1]) if listed else []
            return {**about, "cuda": found[1] if found else None, "architectures": flags}
    raise ValueError(f"{wheel.name}: only wheels of torch and tensorflow say what they serve")


def _flags(archive: zipfile.ZipFile) -> list[str]:
    """Return the first list of architectures in PyTorch's library, read in blocks."""
    rest = b""
    with archive.open(_TORCH_FLAGS) as file:
        while block := file.read(_BLOCK):
            if found := _FLAGS.search(rest + block):
                return _ONE_FLAG.findall(found[0].decode())
            rest = block[-_OVERLAP:]
    return []


def _platform(tag: str) -> str:
    """``manylinux_2_28_x86_64`` -> ``linux-x86_64``."""
    return "linux-" + re.sub(r"^.*linux(?:\d+|_\d+_\d+)?_", "", tag)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Read from wheels which GPU architectures their kernels serve, without a GPU; prints rows of the table of wheels.

Usage: python tools/wheel_architectures.py WHEEL...        (the table: recipes/facts/wheels.yaml)

PyTorch keeps its flags as text in ``torch/lib/libtorch_python.so`` (``torch.cuda.get_arch_list()``, which asks for a
driver first), TensorFlow in ``tensorflow/python/platform/build_info.py``. A build for processors has none.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

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
            info = _build_info(archive.read(_TENSORFLOW_INFO).decode())
            flags = info.get("cuda_compute_capabilities", [])
            return {**about, "cuda": info.get("cuda_version"), "architectures": flags}
    raise ValueError(f"{wheel.name}: only wheels of torch and tensorflow say what they serve")


def _build_info(text: str) -> dict[str, Any]:
    """Return what TensorFlow's module assigns to ``build_info``: a literal, or a call with one as its argument."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "build_info":
            value = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
            return dict(ast.literal_eval(value))
    return {}


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

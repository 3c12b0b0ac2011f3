"""Small wheels made for tests, and indexes in directories that hold them."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path


def make_wheel(directory: Path, name: str, version: str, requires: Sequence[str] = (), content: str = "") -> Path:
    """Write a pure Python wheel of one module ``name``."""
    directory.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {requirement}" for requirement in requires)]
    file = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}.py", content)
        wheel.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *metadata, ""]))
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return file


def make_index(directory: Path, wheels: Sequence[Path]) -> str:
    """Write a simple index of the wheels; returns its ``file:`` URL."""
    for wheel in wheels:
        page = directory / wheel.name.split("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        with page.open("a") as file:
            file.write(f'<a href="{wheel.as_uri()}#sha256={digest}">{wheel.name}</a>\n')
    directory.mkdir(parents=True, exist_ok=True)
    return directory.as_uri()

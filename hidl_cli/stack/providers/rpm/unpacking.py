"""An RPM's MPI library, put into a directory where it works: unpacked without root, its paths rewritten.

The reader is the one of hidl's Spack repository (``recipes/spack_repo/hidl/rpm.py``), which imports nothing of Spack.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

from hidl_cli import paths
from hidl_cli.errors import BuildFailed, HidlError

_LARGEST_TEXT = 4 << 20


def install(rpm: Path, directory: Path) -> None:
    """Unpack the MPI library of ``rpm`` to ``directory``, which is not there yet.

    Raises ``BuildFailed`` where the RPM is damaged, holds what must not be unpacked (paths or links that lead out,
    set-user-id files, devices), or holds no MPI library.
    """
    reader = _reader()
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".rpm-") as unpacked:
        try:
            files = reader.unpack(str(rpm), unpacked)
        except reader.RpmError as error:
            raise BuildFailed(str(error), hint="nothing was published; download the RPM again") from error
        tops = sorted({str(Path(file).parent.parent) for file in files if Path(file).parts[-2:] == ("bin", "mpicc")})
        if len(tops) != 1:
            raise BuildFailed(
                f"{rpm} holds {len(tops)} MPI libraries (by bin/mpicc), and one is wanted",
                hint="the RPM of the library itself is meant, not that of its sources or documentation",
            )
        Path(unpacked, tops[0]).replace(directory)
    rewrite(directory, old=f"/{tops[0]}", new=str(directory))


def rewrite(directory: Path, *, old: str, new: str) -> list[Path]:
    """Put ``new`` in the place of the prefix ``old`` in every text file below ``directory``; the files that changed.

    These are the compiler wrappers, what pkg-config and libtool read, and scripts. Binaries find their libraries by
    paths relative to themselves, or by the activated stack.
    """
    changed = []
    for file in sorted(directory.rglob("*")):
        if file.is_symlink() or not file.is_file() or file.stat().st_size > _LARGEST_TEXT:
            continue
        content = file.read_bytes()
        if b"\0" in content or old.encode() not in content:
            continue
        file.write_bytes(content.replace(old.encode(), new.encode()))
        changed.append(file)
    return changed


def _reader() -> ModuleType:
    file = paths.shipped() / "recipes" / "spack_repo" / "hidl" / "rpm.py"
    spec = importlib.util.spec_from_file_location("hidl_rpm", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise HidlError(f"hidl is not whole: {file} is missing", hint="install hidl again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

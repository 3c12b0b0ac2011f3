"""A container image made from this machine's own files: Python, a shell and the libraries that they load."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

PYTHON = Path("/usr/bin/python3")
_PROGRAMS = ("bash", "cat", "ls", "env", "hostname", "sleep")
_DIRECTORIES = ("dev", "proc", "sys", "tmp", "home", "root", "run", "var", "mnt", "opt", "etc", "usr/bin", "usr/lib")


def make_image(directory: Path, *, libraries: Iterable[Path] = ()) -> Path:
    """Make an image in a directory, with additional libraries and directories of libraries.

    ``/etc/in-the-image`` only exists in the image. The machine's /bin and /lib must be links into /usr, as in Debian.
    """
    for name in _DIRECTORIES:
        (directory / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        (directory / name).symlink_to(f"usr/{name}")
    for name in ("hosts", "resolv.conf", "passwd", "group", "in-the-image"):
        (directory / "etc" / name).touch()
    python = PYTHON.resolve()
    shutil.copytree(f"/usr/lib/{python.name}", directory / "usr/lib" / python.name, symlinks=True)
    programs = [python, *(Path("/usr/bin", name) for name in _PROGRAMS)]
    for program in programs:
        shutil.copy(program, directory / "usr/bin")
    (directory / "usr/bin/python3").symlink_to(python.name)
    (directory / "usr/bin/sh").symlink_to("bash")
    extensions = Path(f"/usr/lib/{python.name}/lib-dynload").glob("*.so")
    libraries = list(libraries)
    own = [file for one in libraries for file in (one.rglob("*.so*") if one.is_dir() else [one])]
    for library in _needed([*programs, *extensions, *own]):
        target = directory / "usr" / os.path.relpath(library, "/").removeprefix("usr/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    for library in libraries:
        if library.is_dir():
            shutil.copytree(library, directory / "usr/lib" / library.name)
        else:
            shutil.copy(library, directory / "usr/lib")
    return directory


def _needed(files: Iterable[Path]) -> set[str]:
    """Return the libraries of the system that these files load."""
    done = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False)
    return set(re.findall(r"\s(/(?:usr|lib|lib64)/\S+)(?= \(0x)", done.stdout))

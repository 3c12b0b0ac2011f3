"""Build the recorder for an MPI library with that library's compiler wrapper."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from mpitraffic import wrappers
from mpitraffic.errors import TrafficError

_SOURCES = Path(__file__).parent / "recorder"
#: Variables by which compiler wrappers of MPI libraries let the user choose the compiler.
_COMPILER = ("MPICH_CC", "OMPI_CC", "I_MPI_CC")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unused")


def build(library: Path, compiler: str = "mpicc") -> Path:
    """Build the recorder and return its path.

    The recorder is not linked with MPI. It is written beside ``library`` and moved there when it is complete. If the
    wrapper finds no compiler, that of the package ``ziglang`` is used.

    Args:
        library: The shared library to write.
        compiler: MPI's compiler wrapper, a path or a name on PATH.
    """
    wrapper = shutil.which(compiler)
    if wrapper is None:
        raise TrafficError(f"MPI compiler {compiler!r} not found", "load the MPI library, or set --mpicc to its mpicc")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".recorder-") as name:
        try:
            built = _build(Path(name), wrapper, dict(os.environ))
        except TrafficError:
            if find_spec("ziglang") is None:
                raise
            built = _build(Path(name), wrapper, {**os.environ, **dict.fromkeys(_COMPILER, str(_zig(Path(name))))})
        built.replace(library)
    return library


def _build(directory: Path, wrapper: str, environment: dict[str, str]) -> Path:
    """Build the recorder in a directory and return its path."""
    (directory / "header.c").write_text("#include <mpi.h>\n", encoding="utf-8")
    header = _run(environment, wrapper, "-E", str(directory / "header.c"))
    (directory / "wrappers.c").write_text(wrappers.source(header), encoding="utf-8")
    # As needed: nothing refers to MPI, and programs without MPI must not load it.
    built = directory / "recorder.so"
    link = ("-shared", "-Wl,--as-needed", str(directory / "wrappers.c"), "-o", str(built), "-ldl", "-lpthread")
    _run(environment, wrapper, *_FLAGS, f"-I{_SOURCES}", *link)
    return built


def _zig(directory: Path) -> Path:
    """Write a script that starts zig's C compiler, since wrappers take one word for the compiler."""
    script = directory / "cc"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ziglang cc "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def cached(directory: Path, compiler: str = "mpicc") -> Path:
    """Return the recorder for this compiler from a directory, building it first if it is missing or outdated."""
    wrapper = shutil.which(compiler)
    digest = hashlib.sha256(str(wrapper and Path(wrapper).resolve()).encode())
    for source in (*sorted(_SOURCES.iterdir()), Path(wrappers.__file__)):
        digest.update(source.read_bytes())
    library = directory / f"libmpitraffic-{digest.hexdigest()[:16]}.so"
    return library if library.exists() else build(library, compiler)


def _run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        cause = next((line for line in lines if "error" in line.lower() or "not found" in line), lines[0])
        raise TrafficError(
            f"recorder cannot be built: {command[0]} exited with status {done.returncode}: {cause}",
            "install a C compiler or the package ziglang (pip install ziglang), or set --mpicc to another wrapper",
        )
    return done.stdout

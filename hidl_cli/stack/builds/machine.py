"""The machine that compiles: who its compilers are, what it shows to a build, and how much it can do at once."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from hidl_cli import process
from hidl_cli.errors import MissingPrecondition, ProcessFailed
from hidl_cli.site import cgroups

#: Variables of the user that decide what comes of a build; they are part of its identity.
DECIDING = (
    "CC", "CXX", "FC", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "FFLAGS", "LDFLAGS",
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "PKG_CONFIG_PATH",
)  # fmt: skip
#: What a build sees of the user's environment besides: no other setting can change what comes of it unnoticed.
SHOWN = ("HOME", "USER", "LOGNAME", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "XDG_CACHE_HOME")

_GIB = 2**30


def identity(environ: Mapping[str, str]) -> dict[str, str]:
    """The compilers' versions, the C library, the processor's kind, and the variables that decide; for comparisons."""
    found = {"machine": platform.machine(), "libc": "-".join(platform.libc_ver())}
    for role, variable in (("cc", "CC"), ("c++", "CXX")):
        compiler = shutil.which(environ.get(variable) or role, path=environ.get("PATH"))
        found[role] = _version(compiler) if compiler else "none"
    return found | {name: environ[name] for name in DECIDING if name in environ}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a build sees of ``environ``."""
    return {name: environ[name] for name in (*SHOWN, *DECIDING) if name in environ}


def require(programs: Sequence[str], what: str, environ: Mapping[str, str]) -> None:
    """Raise ``MissingPrecondition`` where one of the programs is not on PATH."""
    lacking = [program for program in programs if shutil.which(program, path=environ.get("PATH")) is None]
    if lacking:
        raise MissingPrecondition(
            f"{what} is compiled on this machine, and {', '.join(lacking)} is not on PATH",
            hint="install a compiler (Debian: apt install g++ make; elsewhere: load the module of a GCC)",
        )


def jobs(memory_per_job_gib: float) -> int:
    """How many compilers may run at once: as many as there are cores, and as the free memory holds; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroups.cpu_quota(Path("/"))
    free = _free_memory()
    limits = [cores, max(1, round(quota))] if quota else [cores]
    limits += [int(free / (memory_per_job_gib * _GIB))] if free is not None else []
    return max(1, min(limits))


def _free_memory() -> int | None:
    """Bytes that new processes can have; None where the system does not say."""
    lines = cgroups.read(Path("/proc/meminfo")).splitlines()
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limits = [*available, *([limit] if (limit := cgroups.memory_limit(Path("/"))) else [])]
    return min(limits, default=None)


def _version(compiler: str) -> str:
    try:
        return process.run([compiler, "--version"], timeout=60).stdout.partition("\n")[0]
    except ProcessFailed as failure:
        raise MissingPrecondition(
            f"the compiler {compiler} does not work: {failure.output.strip()}", hint="correct CC and CXX, or unset them"
        ) from failure

"""Software that Spack can take from a system: which program prints its version, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hidl_cli.site.probes.host import Host

#: Who tells the version of an external: a program below its prefix, and its arguments.
TELL: Mapping[str, tuple[str, ...]] = {
    "python": ("bin/python3", "--version"),
    "cuda": ("bin/nvcc", "--version"),
    "cmake": ("bin/cmake", "--version"),
    "hip": ("bin/hipconfig", "--version"),
    "perl": ("bin/perl", "-e", "print $^V"),
    "gmake": ("bin/make", "--version"),
    "ninja": ("bin/ninja", "--version"),
    "hwloc": ("bin/hwloc-info", "--version"),
    "openssl": ("bin/openssl", "version"),
    "slurm": ("bin/sinfo", "--version"),
}
_SECONDS = 20.0
#: A version as programs print it: 1.1.1k (OpenSSL), 9.4p1 (OpenSSH), 5.0.0rc1 (Open MPI).
VERSION = re.compile(r"\d+(?:\.\d+)+(?:-?(?:rc|alpha|beta|dev|pl|[abp])\.?\d+|[a-z](?![A-Za-z0-9]))?")
_BEFORE_RELEASE = frozenset(("rc", "alpha", "beta", "dev", "a", "b"))


def version(host: Host, name: str, program: str) -> str | None:
    """What ``program`` says of the version of the external ``name``; None where it says none."""
    said = host.ask(program, *TELL[name][1:], seconds=_SECONDS, stderr=True)
    found = VERSION.search(said or "")
    return found[0] if found else None


def same_version(one: str, other: str) -> bool:
    """Whether one version is a prefix of the other: 2.3.7 and 2.3.7-1, 5 and 5.0.2, 1.1.1 and 1.1.1k.

    A release is not its own candidate: 5.0.0 and 5.0.0rc1 differ.
    """
    short, long = sorted((re.findall(r"\d+|[a-z]+", version.lower()) for version in (one, other)), key=len)
    rest = long[len(short) :]
    is_candidate = len(rest) > 1 and rest[0] in _BEFORE_RELEASE and rest[1].isdigit()
    return long[: len(short)] == short and not is_candidate

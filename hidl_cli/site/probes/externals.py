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
_NUMBER = re.compile(r"\d+(?:\.\d+)+")


def version(host: Host, name: str, program: str) -> str | None:
    """What ``program`` says of the version of the external ``name``; None where it says none."""
    said = host.ask(program, *TELL[name][1:], seconds=_SECONDS, stderr=True)
    found = _NUMBER.search(said or "")
    return found[0] if found else None


def same_version(one: str, other: str) -> bool:
    """Whether one version is a prefix of the other: 2.3.7 and 2.3.7-1, 5 and 5.0.2."""
    return all(a == b for a, b in zip(re.split(r"[.-]", one), re.split(r"[.-]", other), strict=False))

"""The Spack that is used: where it is, and its version, read without starting it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.errors import MissingPrecondition
from hidl_cli.site.schema import Site

#: How a user names it, beside --spack.
VARIABLE = "HIDL_SPACK"
#: The first release that hidl writes environments for, and the first whose compilers are packages.
OLDEST = (0, 23)
COMPILERS_ARE_PACKAGES = (1, 0)

_VERSION = re.compile(r'^__version__ = "(\d+)\.(\d+)([^"]*)"$', re.MULTILINE)


@dataclass(frozen=True)
class Instance:
    """One Spack. ``version`` is its text, ``release`` the first two numbers of it."""

    root: Path
    version: str
    release: tuple[int, int]

    @property
    def program(self) -> Path:
        """The command."""
        return self.root / "bin" / "spack"


def find(site: Site, given: Path | None, environ: Mapping[str, str]) -> Instance:
    """The Spack that the user names (--spack, $HIDL_SPACK), else the site's, else $SPACK_ROOT, else that on PATH.

    Raises ``MissingPrecondition`` where there is none, or one that is too old.
    """
    on_path = shutil.which("spack", path=environ.get("PATH"))
    places = (
        ("--spack", given),
        (f"${VARIABLE}", environ.get(VARIABLE)),
        (f"`spack.root` of site {site.name}", site.spack.root),
        ("$SPACK_ROOT", environ.get("SPACK_ROOT")),
        ("PATH", Path(on_path).resolve().parents[1] if on_path else None),
    )
    for origin, place in places:
        if place:
            return _at(Path(os.path.expandvars(place)).expanduser().absolute(), origin)
    raise MissingPrecondition(
        "Spack is not here: it is neither named nor on PATH",
        hint=f"get it (git clone https://github.com/spack/spack), and name its directory with --spack or ${VARIABLE}",
    )


def _at(root: Path, origin: str) -> Instance:
    try:
        text = (root / "lib" / "spack" / "spack" / "__init__.py").read_text(encoding="utf-8")
    except OSError as error:
        raise MissingPrecondition(
            f"{root}, which {origin} names, is not a Spack: {error.strerror}",
            hint="name the directory that holds bin/spack",
        ) from error
    found = _VERSION.search(text)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    if found is None or release < OLDEST:
        told = f"{found[1]}.{found[2]}{found[3]}" if found else "of an unknown version"
        raise MissingPrecondition(
            f"the Spack in {root} is {told}, and hidl needs {'.'.join(map(str, OLDEST))} or later",
            hint="name a newer one with --spack; 1.0 and later can use all of hidl's packages",
        )
    return Instance(root, f"{found[1]}.{found[2]}{found[3]}", release)

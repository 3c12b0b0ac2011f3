"""A requirement as packaging tools write it (PEP 508), and why a stack cannot take one.

What a stack keeps is one line: ``name[extra]>=1; marker --hash=sha256:...``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hidl_cli.mpi import ABI_TITLES, TRAITS, WHEELS

if TYPE_CHECKING:
    from hidl_cli.mpi import Family
    from hidl_cli.stack.architectures import Accelerator

#: What to do with a package that no index has.
OF_A_WHEEL = "a package of an index or a wheelhouse: build a wheel (uv build --wheel) and name its directory in \
PIP_FIND_LINKS"

_HASH = re.compile(r"\s--hash[= ](\S+)")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_OPTION = re.compile(r"\s(--?[a-z][a-z-]*)")
_FILE = re.compile(r"(\.{0,2}/|~).*|.*\.(whl|tar\.gz|zip)|\S*://.*|\.{1,2}")
_GPU_BUILD = re.compile(r"\+(cu\d+|rocm\S*|xpu)$")


class Unusable(ValueError):
    """A requirement that no stack can take: what is wrong with it, and what was expected."""

    def __init__(self, message: str, expected: str) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected


def parse(text: str) -> str:
    """Return the requirement in the form that a stack keeps; ``Unusable`` if it is invalid or names no package."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    hashes = tuple(sorted(set(_HASH.findall(text))))
    if others := [value for value in hashes if not _SHA256.fullmatch(value)]:
        raise Unusable(f"unsupported hash {others[0][:20]!r}", "--hash=sha256: and 64 hexadecimal digits")
    bare = _HASH.sub("", text).strip()
    if option := _OPTION.search(bare):
        raise Unusable(f"unsupported option {option[1]} of a requirement", "no option other than --hash")
    if _FILE.fullmatch(bare):
        raise Unusable("a URL or a file cannot be locked", OF_A_WHEEL)
    try:
        requirement = Requirement(bare)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise Unusable(f"invalid requirement: {reason}", "name==1.2, name[extra]>=1,<2 or name (PEP 508)") from None
    if requirement.url is not None:
        raise Unusable("a URL or a file cannot be locked", OF_A_WHEEL)
    requirement.name = canonicalize_name(requirement.name)
    requirement.extras = {canonicalize_name(extra) for extra in requirement.extras}
    return " ".join([str(requirement), *(f"--hash={value}" for value in hashes)])


def name_of(requirement: str) -> str:
    """Return the name of the package."""
    return re.split(r"[^a-z0-9.-]", requirement, maxsplit=1)[0]


def bare(requirement: str) -> str:
    """Return the requirement without hashes."""
    return requirement.partition(" --hash=")[0]


def hashes_of(requirement: str) -> frozenset[str]:
    """Return the SHA-256 of the files that may serve, in hexadecimal; empty: any file."""
    return frozenset(re.findall(r" --hash=sha256:([0-9a-f]{64})", requirement))


def refuse_other_build(requirement: str, *, mpi: Family, accelerator: Accelerator | None = None) -> None:
    """Raise ``Unusable`` for a requirement that replaces the stack's MPI library, or torch by a build for other nodes.

    ``accelerator``: of the site's nodes, None if unknown.
    """
    name = name_of(requirement)
    if name in WHEELS and name != mpi:
        title = ABI_TITLES[TRAITS[mpi].abi]
        raise Unusable(
            f"{name} brings an MPI library of its own; the stack's is {mpi}",
            f"mpi4py, which the stack has for {title}; or a stack with another MPI library (hidl stack list)",
        )
    version = bare(requirement).partition(";")[0].strip()
    if accelerator == "cpu" and (build := _GPU_BUILD.search(version)):
        raise Unusable(
            f"{version} is a build for GPUs, and the site's nodes have none",
            f"{version.removesuffix(build[0])}: hidl takes the CPU build",
        )

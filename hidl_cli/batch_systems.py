"""Schedulers by name, and the traits of batch systems, a row each. What hidl does with one: ``schedulers/<name>/``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hidl_cli.plugins import Registry

#: The "scheduler" of hosts without a queue.
SSH = "ssh"


@dataclass(frozen=True)
class Attached:
    """A command that runs its arguments in a new allocation and returns when they end.

    ``begin`` is what lines of a job script's header begin with. Their options follow the command, without ``left_out``.
    """

    command: tuple[str, ...]
    begin: str
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class BatchSystem:
    """What the rest of hidl must know of a batch system.

    ``submit``: the program that takes job scripts; ``shows``: a program that no other system has, by which it is
    recognized (empty: there is none). ``job_id``: the variable in which a job finds its id; ``submit_directory``: the
    directory that it was submitted from (None: jobs start there). ``variables``: prefixes of what a job finds in its
    environment; ``configuration``: variables that say which installation the programs speak to. ``cluster_command``
    prints the cluster's name, matched by ``cluster_name``; ``cluster_variable`` holds it within jobs. ``access``
    matches header lines by which a job gets into a partition. ``reframe``: ReFrame's scheduler (None: hidl registers
    its own), and one that needs no accounting; ``reframe_writes`` matches header lines that ReFrame writes itself.
    ``attached``: None if it starts no command at once. ``time_limits``: jobs get one even if the user requests none,
    since others wait.
    """

    name: str
    title: str
    submit: str
    shows: str
    job_id: str
    submit_directory: str | None
    variables: tuple[str, ...]
    configuration: tuple[str, ...]
    cluster_command: tuple[str, ...]
    cluster_name: str
    access: str
    reframe: str | None
    reframe_writes: str | None = None
    reframe_without_records: str | None = None
    cluster_variable: str | None = None
    attached: Attached | None = None
    time_limits: bool = True


_ROWS = (
    BatchSystem(
        name="slurm",
        title="Slurm",
        submit="sbatch",
        shows="scontrol",
        job_id="SLURM_JOB_ID",
        submit_directory="SLURM_SUBMIT_DIR",
        variables=("SLURM_",),
        configuration=("SLURM_CONF",),
        cluster_command=("scontrol", "show", "config"),
        cluster_name=r"^ClusterName\s*= (\S+)$",
        cluster_variable="SLURM_CLUSTER_NAME",
        access=r"#SBATCH --(partition|account|qos|constraint|reservation)=",
        reframe="slurm",
        reframe_writes=(
            r"#SBATCH --(job-name|output|error|open-mode|time|partition|account|qos|constraint|reservation)\b"
        ),
        reframe_without_records="squeue",
        attached=Attached(
            ("srun", "--ntasks=1"), "#SBATCH", ("--ntasks-per-node", "--output", "--error", "--open-mode", "--export")
        ),
    ),
    BatchSystem(
        name="lsf",
        title="LSF",
        submit="bsub",
        shows="lsid",
        job_id="LSB_JOBID",
        submit_directory="LS_SUBCWD",
        variables=("LSB_", "LS_"),
        configuration=("LSF_ENVDIR",),
        cluster_command=("lsid",),
        cluster_name=r"^My cluster name is (\S+)\s*$",
        access=r"#BSUB -[qPGU] ",
        reframe="lsf",
        reframe_writes=r"#BSUB -(J|o|e|W|q|P|G|U)\b",
        attached=Attached(("bsub", "-I"), "#BSUB", ("-o", "-e")),
    ),
    BatchSystem(
        name="pbs",
        title="PBS",
        submit="qsub",
        shows="pbsnodes",
        job_id="PBS_JOBID",
        submit_directory="PBS_O_WORKDIR",
        variables=("PBS_",),
        configuration=("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_SERVER"),
        cluster_command=("qstat", "-B", "-f"),
        cluster_name=r"^Server: (\S+)",
        access=r"#PBS -[qA] ",
        reframe="pbs",
        reframe_writes=r"#PBS -(N|o|e|j|q|A|l walltime)\b",
    ),
    BatchSystem(
        name="flux",
        title="Flux",
        submit="flux",
        shows="flux",
        job_id="FLUX_ENCLOSING_ID",
        submit_directory="PWD",
        variables=("FLUX_",),
        configuration=("FLUX_URI",),
        cluster_command=("flux", "getattr", "hostlist"),
        cluster_name=r"^([A-Za-z][A-Za-z_-]*)",
        access=r"# flux: --(queue|bank|requires)=",
        reframe=None,  # its own needs Flux's Python bindings in the Python that runs it
        attached=Attached(("flux", "run"), "# flux:", ("--output", "--error")),
    ),
    BatchSystem(
        name=SSH,
        title="ssh",
        submit="ssh",
        shows="",  # every machine has ssh
        job_id="HIDL_SSH_JOB",
        submit_directory=None,
        variables=("HIDL_SSH_",),
        configuration=("SSH_AUTH_SOCK",),
        cluster_command=("uname", "-n"),
        cluster_name=r"^(\S+)$",
        access=r"# ssh: --hosts=",
        reframe=None,
        time_limits=False,
    ),
)
SYSTEMS: Mapping[str, BatchSystem] = {row.name: row for row in _ROWS}
"""Those that come with hidl."""

#: What the registry gives is a ``Backend`` of a batch system, or a ``Scheduler`` as a whole.
SCHEDULERS: Registry[Any] = Registry(
    "hidl.schedulers",
    "scheduler",
    {"local": "hidl_cli.schedulers.local:Local", **{name: f"hidl_cli.schedulers.{name}:BACKEND" for name in SYSTEMS}},
    members=("name", "header", "submit"),
    make=lambda found: found(),
)
UNSUPPORTED = ("pjm", "sunway")
"""Schedulers that site files may name, though hidl cannot submit to them."""


def system(name: str | None) -> BatchSystem | None:
    """Return the traits of a batch system, also of a plug-in's; None if ``name`` is none."""
    if name is None or name in SYSTEMS or name not in SCHEDULERS:
        return SYSTEMS.get(name or "")
    traits = getattr(SCHEDULERS.get(name), "traits", None)
    return traits if isinstance(traits, BatchSystem) else None


def systems() -> Iterator[BatchSystem]:
    """Yield the traits of all batch systems, without plug-ins that cannot be loaded."""
    yield from SYSTEMS.values()
    for name, found in SCHEDULERS.usable():
        if name not in SYSTEMS and isinstance(getattr(found, "traits", None), BatchSystem):
            yield found.traits

"""The schedulers by name, and a table of the traits of each batch system.

The backends that communicate with them are in ``schedulers/<name>.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hidl_cli.plugins import Registry

#: Name of the scheduler for hosts that have no queue.
SSH = "ssh"


@dataclass(frozen=True)
class Attached:
    """A command such as ``bsub -I``, which runs another command in a new allocation and returns when that command ends.

    Attributes:
        command: The words of the command.
        begin: Prefix of the lines in a job script's header whose options are passed to the command.
        left_out: Options of the header that are not passed on.
        cancel: Shell command that cancels the user's jobs with the name ``$1``.
    """

    command: tuple[str, ...]
    begin: str
    left_out: tuple[str, ...]
    cancel: str


@dataclass(frozen=True)
class BuildJob:
    """A command prefix that runs a build in a new job, and the command that cancels this job."""

    command: tuple[str, ...]
    cancel: tuple[str, ...]


@dataclass(frozen=True)
class NextJob:
    """Shell code with which a job submits ``./job.sh`` again, to run after the job has ended, successfully or not.

    Attributes:
        words: Statements that set the array ``words`` to the command. The variable ``script`` is the path of the job
            script, and ``job`` is the id of this job, which the script gets as its argument or in ``HIDL_AFTER``.
        id: Extended regular expression of ``sed``, whose first group is the new job's id in the command's output.
        cancel: Command that cancels the job ``$1``.
        held: Pattern of the header lines by which a user holds the first job.
        begin: Prefix of the header lines whose options must also be passed to the command, as ``${options[@]}``.
        why_ended: Statements that print CANCELLED if a user has cancelled the running job ``$job``, or NODE_FAIL if it
            has lost a node. Without them, a signal counts as a preemption.
    """

    words: str
    id: str
    cancel: str
    held: str = r"(?!)"
    begin: str | None = None
    why_ended: str = ":"


@dataclass(frozen=True)
class BatchSystem:
    """Traits of a batch system that hidl needs even if it does not submit a job.

    Attributes:
        submit: Program that submits job scripts.
        shows: Program that only this system has, which identifies it (empty if there is none).
        job_id: Variable that holds the job's id within the job.
        submit_directory: Variable that holds the submission directory, or None if jobs start in that directory.
        variables: Prefixes of the variables that the system sets in a job's environment.
        configuration: Variables that select the installation that its programs communicate with.
        cluster_command: Command that prints the name of the cluster.
        cluster_name: Pattern of the cluster's name in the output of ``cluster_command``.
        access: Pattern of the header lines that give a job access to a partition.
        reframe: Name of ReFrame's scheduler, or None if hidl registers its own.
        reframe_writes: Pattern of the header lines that ReFrame writes itself.
        reframe_without_records: ReFrame's scheduler that works without accounting.
        cluster_variable: Variable that holds the cluster's name within a job.
        attached: Command that starts a program immediately, or None if the system has none.
        requeue: Command in a job that puts it back into the queue, as shell code, or None if the system has none.
        no_requeue: Pattern of the header lines that forbid requeueing.
        next_job: Submission of a job that depends on the running one, or None if hidl does not use any.
        is_repeated: Whether the process that starts the job script starts it again if the file ``continued`` exists.
        accepts_node_range: Whether a job may request a smallest and a largest number of nodes.
        limit_unit: Unit of time limits in seconds; a limit is rounded up to a multiple.
        shortest_limit: Shortest time limit in seconds; a shorter one is raised to it.
        time_limits: Whether to set a time limit on jobs even if the user requests none, because other jobs wait for the
            resources.
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
    requeue: str | None = None
    no_requeue: str = r"(?!)"
    next_job: NextJob | None = None
    is_repeated: bool = False
    accepts_node_range: bool = False
    limit_unit: int = 1
    shortest_limit: int = 1
    time_limits: bool = True

    def may_requeue(self, header: Sequence[str]) -> bool:
        """Return whether a job with this header can be requeued."""
        return self.requeue is not None and not any(re.match(self.no_requeue, line) for line in header)

    def round_limit(self, seconds: float) -> int:
        """Return the time limit in seconds that a job gets if ``seconds`` are requested."""
        return max(self.shortest_limit, math.ceil(seconds / self.limit_unit) * self.limit_unit)


#: In squeue's text output, the state of a job that is ending is COMPLETING, whatever the reason. In JSON, Slurm 23.02
#: and later also list the state that gives the reason.
_SLURM_WHY_ENDED = """\
local state
state=$(timeout 10 squeue --json --jobs="$job" 2> /dev/null | tr -d '[:space:]' |
    grep -oE '"job_state":\\[[^]]*') ||
    state=$(timeout 10 squeue --noheader --states=all --jobs="$job" --format='%T %r' 2> /dev/null) || true
case $state in
    *NODE_FAIL* | *NodeDown*) echo NODE_FAIL ;;
    *CANCELLED* | COMPLETING*) echo CANCELLED ;;
esac"""

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
            ("srun", "--ntasks=1"),
            "#SBATCH",
            ("--ntasks-per-node", "--output", "--error", "--open-mode", "--export"),
            'scancel --user="$(id -u)" --name="$1"',
        ),
        requeue='scontrol requeue "$SLURM_JOB_ID"',
        no_requeue=r"#SBATCH --no-requeue\b",
        next_job=NextJob(
            # The user's sbatch defaults (SBATCH_*), which sbatch does not find in a job's environment. SBATCH_CLUSTERS
            # is left out, because the new job depends on a job of this cluster.
            words=(
                'words=(sbatch --parsable "--dependency=afterany:$job"'
                ' ${SLURM_JOB_ACCOUNT:+"--account=$SLURM_JOB_ACCOUNT"} ${SLURM_JOB_QOS:+"--qos=$SLURM_JOB_QOS"}'
                ' ${SLURM_JOB_PARTITION:+"--partition=$SLURM_JOB_PARTITION"}'
                ' ${SLURM_JOB_RESERVATION:+"--reservation=$SLURM_JOB_RESERVATION"}'
                ' ${SBATCH_WCKEY:+"--wckey=$SBATCH_WCKEY"} "$script" "$job")'
            ),
            id="^([0-9]+)(;.*)?$",
            cancel='scancel "$1"',
            held=r"#SBATCH (--hold|-H)( |$)",
            why_ended=_SLURM_WHY_ENDED,
        ),
        accepts_node_range=True,
        limit_unit=60,
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
        attached=Attached(("bsub", "-I"), "#BSUB", ("-o", "-e"), 'bkill -J "$1" 0'),
        next_job=NextJob(
            words=(
                'words=(bsub -w "ended($job)" "${options[@]}" -Jd "$HIDL_RUN_ID")\n'
                'if [[ $PWD != *%* ]]; then words+=(-cwd "$PWD"); fi\n'
                'words+=("$script" "$job")'
            ),
            id="^Job <([0-9]+)> is submitted to .*$",
            cancel='bkill "$1"',
            held=r"#BSUB -H( |$)",
            begin="#BSUB",
        ),
        limit_unit=60,
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
        next_job=NextJob(
            words='words=(qsub -W "depend=afterany:$job" -v "HIDL_AFTER=$job" "$script")',
            id=r"^([0-9]+(\[[0-9]*\])?\.[^[:space:]]+)$",
            cancel='qdel "$1"',
            held=r"#PBS -h( |$)",
        ),
        shortest_limit=60,
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
        reframe=None,  # ReFrame's backend needs Flux's bindings in its own Python
        attached=Attached(
            ("flux", "run"),
            "# flux:",
            ("--output", "--error"),
            'flux jobs --no-header --format="{id}" --name="$1" | xargs -r flux cancel',
        ),
        # A batch job is a separate Flux instance; the queue belongs to the parent instance.
        next_job=NextJob(
            words='words=(flux --parent batch "--dependency=afterany:$job" "$script" "$job")',
            id="^(f[1-9A-HJ-NP-Za-km-z]+)$",
            cancel='flux --parent cancel "$1"',
            held="# flux: --urgency=0( |$)",
        ),
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
        is_repeated=True,
        time_limits=False,
    ),
)
SYSTEMS: Mapping[str, BatchSystem] = {row.name: row for row in _ROWS}
"""The batch systems that are built in."""

#: Schedulers by name. ``get`` returns a ``Backend`` for a batch system, or a complete ``Scheduler``.
SCHEDULERS: Registry[Any] = Registry(
    "hidl.schedulers",
    "scheduler",
    {"local": "hidl_cli.schedulers.local:Local", **{name: f"hidl_cli.schedulers.{name}:BACKEND" for name in SYSTEMS}},
    members=("name", "header", "submit"),
    make=lambda found: found(),
)
UNSUPPORTED = ("pjm", "sunway")
"""Schedulers that site files may name although hidl cannot submit to them."""


def system(name: str | None) -> BatchSystem | None:
    """Return the traits of a batch system, built in or from a plug-in, or None if ``name`` is not a batch system."""
    if name is None or name in SYSTEMS or name not in SCHEDULERS:
        return SYSTEMS.get(name or "")
    traits = getattr(SCHEDULERS.get(name), "traits", None)
    return traits if isinstance(traits, BatchSystem) else None


def systems() -> Iterator[BatchSystem]:
    """Yield the traits of all batch systems; plug-ins that cannot be loaded are skipped."""
    yield from SYSTEMS.values()
    for name, found in SCHEDULERS.usable():
        if name not in SYSTEMS and isinstance(getattr(found, "traits", None), BatchSystem):
            yield found.traits

"""Every output that hidl reads: the program, by what its text is recognized, and how it is read. One row each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hidl_cli.site.outputs import cards, hosts, queues
from hidl_cli.site.outputs.told import Misread, Told
from hidl_cli.site.probes import flux, gpus, lscpu, lsf, pbs, slurm
from hidl_cli.site.probes.facts import Batch


@dataclass(frozen=True)
class Output:
    """``title``: the command as people know it. ``looks_like``: a pattern that its text has, and no other's before it.

    ``read``: what it tells of a host. Else it is ``part`` of what ``scheduler`` is described by, after ``convert``, or
    ``batch`` reads it alone. ``command``: as probes ask it; ``convert`` and ``batch`` raise ``Misread``, as ``read``.
    """

    title: str
    looks_like: re.Pattern[str]
    read: Callable[[str], Told] | None = None
    scheduler: str | None = None
    part: str | None = None
    convert: Callable[[str], Any] = str
    batch: Callable[[str], Batch] | None = None
    command: tuple[str, ...] = ()


#: How a scheduler is described by the parts that were saved.
DESCRIBE: Mapping[str, Callable[..., Batch]] = {
    "slurm": slurm.describe,
    "lsf": lsf.describe,
    "pbs": pbs.describe,
    "flux": flux.describe,
}


#: A line of ``nvidia-smi --query-gpu=name,compute_cap,memory.total``.
_CARD = r"[^,\n]{3,80}, (?:\d{1,3}\.\d|\[N/A\]), (?:\d{1,9}|\[N/A\])"
_SAMPLE, _LINE = 100_000, 4000  # characters of a text, and of a line, by which it is recognized


def _lines(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def _json(*keys: str) -> re.Pattern[str]:
    """An object that begins with one of these keys, or has it soon."""
    return re.compile(r"\A\s*[\[{]" + "".join(rf"(?=[\s\S]{{0,4000}}\"{key}\")" for key in keys))


def _config(text: str) -> str:
    _require(text, r"^ClusterName\s*= \S", "a line `ClusterName = ...`")
    return text


def _nodes(text: str) -> str:
    return _assignments(text, "NodeName")


def _partitions(text: str) -> str:
    return _assignments(text, "PartitionName")


def _assignments(text: str, first: str) -> str:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and "=" not in line:
            raise Misread(number, f"`{first}=...`, or fields of it", f"`{line.strip()[:60]}`")
    return text


def _require(text: str, pattern: str, what: str) -> None:
    if not re.search(pattern, text, re.MULTILINE):
        raise Misread(0, what, "none")


def _resources(text: str) -> str:
    return queues.rows_fit(text, "STATE", "NNODES", "NODELIST", numbers=("NNODES", "NCORES", "NGPUS"))


def _queues_of_flux(text: str) -> str:
    return queues.rows_fit(text, "QUEUE", "NNODES")


def _hosts_of_lsf(text: str) -> str:
    return queues.rows_fit(text, "HOST_NAME", "STATUS", "MAX")


#: Those of more telling text come first.
OUTPUTS: Sequence[Output] = (
    # schedulers
    Output(
        "scontrol show config",
        _lines(r"^(?:Configuration data as of|SLURM_VERSION[ \t]+= |SlurmctldHost\[0\][ \t]+= )"),
        scheduler="slurm",
        part="config",
        convert=_config,
        command=slurm.CONFIG,
    ),
    Output(
        "scontrol show node",
        _lines(r"^NodeName=\S+ "),
        scheduler="slurm",
        part="nodes",
        convert=_nodes,
        command=slurm.NODES,
    ),
    Output(
        "scontrol show partition",
        _lines(r"^PartitionName=\S+"),
        scheduler="slurm",
        part="partitions",
        convert=_partitions,
        command=slurm.PARTITIONS,
    ),
    Output(
        "sinfo",
        _lines(r"^(?=.*\bPARTITION\b)(?=.*\b(?:AVAIL|STATE|NODELIST|TIMELIMIT)\b)[A-Z(): /_]+$"),
        scheduler="slurm",
        batch=queues.sinfo,
    ),
    Output("srun --mpi=list", _lines(r"MPI plugin types are"), hosts.mpi_types, command=slurm.MPI),
    Output("lsid", _lines(r"^My cluster name is \S"), scheduler="lsf", part="identity", command=lsf.IDENTITY),
    Output("bqueues -l", _lines(r"^QUEUE:[ \t]*\S+[ \t]*$"), scheduler="lsf", part="queues", command=lsf.QUEUES),
    Output("bqueues", _lines(r"^QUEUE_NAME[ \t]+PRIO[ \t]+STATUS\b"), scheduler="lsf", batch=queues.bqueues),
    Output(
        "bhosts",
        _lines(r"^HOST_NAME[ \t]+STATUS[ \t]+JL/U\b"),
        scheduler="lsf",
        part="running",
        convert=_hosts_of_lsf,
        command=lsf.RUNNING,
    ),
    Output(
        "bhosts -gpu",
        _lines(r"^HOST_NAME[ \t]+(?:GPU_)?ID[ \t]+MODEL\b"),
        scheduler="lsf",
        batch=queues.gpus_of_lsf,
    ),
    Output(
        "lshosts -gpu",
        _lines(r"^HOST_NAME[ \t]+gpu_id[ \t]+gpu_model\b"),
        scheduler="lsf",
        batch=queues.gpus_of_lsf,
    ),
    Output("lshosts", _lines(r"^HOST_NAME[ \t]+type[ \t]+model\b"), scheduler="lsf", part="hosts", command=lsf.HOSTS),
    Output("bparams", _lines(r"^Default Queues:[ \t]"), scheduler="lsf", part="parameters", command=lsf.PARAMETERS),
    Output(
        "qstat -Bf -F json",
        _json("pbs_version", "Server"),
        scheduler="pbs",
        part="server",
        convert=queues.document,
        command=pbs.SERVER,
    ),
    Output(
        "qstat -Qf -F json",
        _json("pbs_version", "Queue"),
        scheduler="pbs",
        part="queues",
        convert=queues.document,
        command=pbs.QUEUES,
    ),
    Output(
        "pbsnodes -a -F json",
        _json("pbs_version", "nodes"),
        scheduler="pbs",
        part="nodes",
        convert=queues.document,
        command=pbs.NODES,
    ),
    Output("qstat -Qf", _lines(r"^Queue:[ \t]*\S+[ \t]*$"), scheduler="pbs", part="queues", convert=queues.pbs_queues),
    Output("qstat -Bf", _lines(r"^Server:[ \t]*\S+[ \t]*$"), scheduler="pbs", part="server", convert=queues.pbs_server),
    Output(
        "qstat -q",
        _lines(r"^Queue[ \t]+Memory[ \t]+CPU Time[ \t]+Walltime\b"),
        scheduler="pbs",
        part="queues",
        convert=queues.pbs_queue_table,
    ),
    Output(
        "pbsnodes -aSj",
        _lines(r"^vnode[ \t]+state[ \t]+njobs\b"),
        scheduler="pbs",
        part="nodes",
        convert=queues.pbs_node_table,
    ),
    Output(
        "pbsnodes -a",
        _lines(r"^[ \t]+(?:resources_available\.ncpus = \d|ntype = )"),
        scheduler="pbs",
        part="nodes",
        convert=queues.pbs_nodes,
    ),
    Output(
        "flux resource list",
        _lines(r"^[ \t]*STATE[ \t]+(?:\w+[ \t]+)*NNODES[ \t].*NODELIST[ \t]*$"),
        scheduler="flux",
        part="resources",
        convert=_resources,
        command=flux.RESOURCES,
    ),
    Output(
        "flux queue list",
        _lines(r"^[ \t]*QUEUE[ \t]+(?:\w+[ \t]+)*NNODES[ \t]"),
        scheduler="flux",
        part="queues",
        convert=_queues_of_flux,
        command=flux.QUEUES,
    ),
    Output(
        "flux resource R",
        _json("execution", "R_lite"),
        scheduler="flux",
        part="resource_set",
        command=flux.RESOURCE_SET,
    ),
    Output("flux version", _lines(r"^libflux-core:[ \t]+\S"), scheduler="flux", part="version", command=flux.VERSION),
    # processors, GPUs and networks
    Output("lscpu", _lines(r"^[ \t]*Architecture:[ \t]+\S"), hosts.processor),
    Output("lscpu --json", _json("lscpu"), hosts.processor, command=lscpu.JSON),
    Output("numactl --hardware", _lines(r"^available: \d+ nodes? \("), hosts.numa),
    Output("nvidia-smi -L", _lines(r"^GPU \d+: .* \(UUID: GPU-"), cards.nvidia_list),
    Output("nvidia-smi -q", _lines(r"^=+NVSMI LOG=+[ \t]*$"), cards.nvidia_query),
    Output("nvidia-smi", _lines(r"^\|[ \t]*NVIDIA-SMI \d"), cards.nvidia_table),
    Output(
        "nvidia-smi --query-gpu=name,compute_cap,memory.total --format=csv,noheader,nounits",
        re.compile(rf"\A(?:{_CARD}\n)*{_CARD}[ \t\n]*\Z"),
        cards.answered(gpus.of_nvidia),
        command=gpus.NVIDIA,
    ),
    Output("rocm-smi --csv", _lines(r"^device,"), cards.rocm_csv),
    Output("rocm-smi --showproductname", _lines(r"^GPU\[\d+\][ \t]*: (?:Card|GFX|VRAM)"), cards.rocm_product),
    Output(
        "rocm-smi",
        _lines(r"^=+ (?:ROCm System Management Interface|ROCM-SMI\w*) ?=+|^GPU[ \t]+Temp[ \t]"),
        cards.rocm_table,
    ),
    Output(
        "rocm-smi --json", re.compile(r"\A\s*\{\s*\"card\d+\":"), cards.answered(gpus.of_amd_json), command=gpus.AMD
    ),
    Output(
        "amd-smi static --asic --vram --json",
        _json("asic", "market_name"),
        cards.answered(gpus.of_amd_smi),
        command=gpus.AMD_NEW,
    ),
    Output("xpu-smi discovery", _lines(r"^\| Device ID +\| Device Information"), cards.intel_table),
    Output("xpu-smi discovery -j", _json("device_list"), cards.answered(gpus.of_intel), command=gpus.INTEL),
    Output("ibstat", _lines(r"^CA '[^'\n]+'"), hosts.network("ibstat"), command=("ibstat",)),
    Output("ibv_devinfo -v", _lines(r"^hca_id:[ \t]*\S"), hosts.network("ibv_devinfo"), command=("ibv_devinfo", "-v")),
    # software
    Output("ucx_info -v", _lines(r"^#?[ \t]*(?:Library version: |UCT version=|UCX version )\d"), hosts.ucx),
    Output("mpiname -a", _lines(r"^MVAPICH\S*[ \t]+\d\S*[ \t]"), hosts.library("mpiname"), command=("mpiname", "-a")),
    Output(
        "mpichversion",
        _lines(r"^(?:MPICH2?|MVAPICH\S*|CRAY MPICH)[ \t]+Version:[ \t]"),
        hosts.library("mpichversion"),
        command=("mpichversion",),
    ),
    Output(
        "mpirun --version", _lines(r"^(?:mpirun|mpiexec|mpirun\.real|prterun) \(|^HYDRA build details:"), hosts.launcher
    ),
    Output(
        "ompi_info",
        _lines(r"^[ \t]*(?:Package: )?(?:Open MPI|Spectrum MPI):? v?\d|^ompi:version:full:\d"),
        hosts.library("ompi_info"),
        command=("ompi_info", "--version"),
    ),
    Output("impi_info", _lines(r"^Intel\(R\) MPI Library.*, Version \d"), hosts.library("impi_info")),
    Output("module avail", _lines(r"^[ \t]*---.*---$|^/\S{1,500}:[ \t]*$"), hosts.offered),
)


def recognize(text: str) -> Output | None:
    """The output that a text is, None where it is none that hidl reads."""
    sample = "\n".join(line[:_LINE].rstrip() for line in text[:_SAMPLE].splitlines())
    return next((output for output in OUTPUTS if output.looks_like.search(sample)), None)

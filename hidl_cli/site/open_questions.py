"""What outputs that were saved by hand leave open, and the command that would tell it."""

from __future__ import annotations

from typing import Literal

from hidl_cli.site.probes.survey import Found

Topic = Literal["scheduler", "nodes", "queues", "processor", "GPUs", "interconnect", "MPI", "launchers"]

_ON_LOGIN, _ON_NODE = "on a login node", "on a compute node"
_SCHEDULER = (
    "`scontrol show config > scontrol-show-config.txt` (Slurm), `lsid > lsid.txt` (LSF), "
    "`qstat -Bf > qstat-Bf.txt` (PBS) or "
    f"`flux resource list > flux-resource-list.txt` (Flux) {_ON_LOGIN}"
)
_GPUS = (
    "`nvidia-smi -L > nvidia-smi.txt`, `rocm-smi --showproductname > rocm-smi.txt` or "
    f"`xpu-smi discovery > xpu-smi.txt` {_ON_NODE} with GPUs"
)
_MPI = (
    "`module avail > module-avail.txt 2>&1`, `mpichversion > mpichversion.txt` or "
    f"`ompi_info > ompi_info.txt` {_ON_LOGIN}"
)
_NODES = {
    "slurm": "`scontrol show node > scontrol-show-node.txt`",
    "lsf": "`lshosts -w > lshosts-w.txt` and `bhosts -w > bhosts-w.txt`",
    "pbs": "`pbsnodes -a > pbsnodes-a.txt`",
    "flux": "`flux resource list > flux-resource-list.txt`",
}
_QUEUES = {
    "slurm": "`scontrol show partition > scontrol-show-partition.txt`",
    "lsf": "`bqueues -l > bqueues-l.txt`",
    "pbs": "`qstat -Qf > qstat-Qf.txt`",
    "flux": "`flux queue list > flux-queue-list.txt`",
}


def open_questions(found: Found) -> dict[Topic, str]:
    """What is not recorded, each with how to record it; none where a machine itself was asked."""
    if not found.read:
        return {}
    asked: dict[Topic, str] = {}
    batch = found.batch
    if batch is None:
        asked["scheduler"] = _SCHEDULER
    else:
        if not any(node.hardware.cores or node.hardware.processors for node in batch.nodes):
            asked["nodes"] = f"{_NODES[batch.scheduler]} {_ON_LOGIN}"
        if not batch.queues:
            asked["queues"] = f"{_QUEUES[batch.scheduler]} {_ON_LOGIN}"
    if not found.machine.cpu:
        asked["processor"] = f"`lscpu > lscpu.txt` {_ON_NODE}"
    if not found.cards and not (batch and any(node.hardware.gpus is not None for node in batch.nodes)):
        asked["GPUs"] = _GPUS
    if found.interconnect is None:
        asked["interconnect"] = f"`ibstat > ibstat.txt` {_ON_NODE}"
    if not found.libraries:
        asked["MPI"] = _MPI
    if not found.launchers and (batch is None or batch.scheduler == "lsf"):
        asked["launchers"] = f"`mpirun --version > mpirun.txt` {_ON_LOGIN}, or name what starts ranks"
    return asked


def sentence(topic: Topic, how: str) -> str:
    """``processor: not recorded; run ...``."""
    return f"{topic}: not recorded; run {how}"

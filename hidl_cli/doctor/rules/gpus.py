"""Rules: GPUs and the MPI library."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.gpus import Gpus, probe
from hidl_workloads.doctor.finding import Finding, Rules, Seen

RULES: Rules[Gpus] = Rules()


def examine(context: Context) -> list[Finding]:
    """What is wrong between GPUs and MPI."""
    return RULES.findings(probe(context))


@RULES.rule(
    "HD020",
    "The MPI library has no CUDA support, and GPUs are asked for",
    severity="error",
    why="A library that was built without CUDA takes the address of GPU memory for one of the host, and the rank dies "
    "of a segmentation fault. What copies through the host first works, and is slower.",
)
def not_cuda_aware(facts: Gpus) -> Iterator[Seen]:
    """An error where the planned program hands GPU memory to MPI; else good to know, as others must not try."""
    library = facts.job.library
    if library is None or facts.cuda_aware is not False:
        return
    built = f"{library.family} {library.version or ''}".strip()
    if facts.device_buffers:
        yield Seen(
            f"the program hands GPU memory to MPI, and {built} ({library.name}) was built without CUDA",
            "--set gpu_buffers=staged or --set buffer=numpy; or a CUDA-aware library: hidl run --mpi NAME",
        )
    elif facts.per_node and not facts.job.planned:
        yield Seen(
            f"nodes have {facts.per_node} GPU(s), and {built} ({library.name}) was built without CUDA",
            "keep GPU memory out of MPI calls, or use a CUDA-aware library (mvapich2-gdr, mvapich-plus)",
            severity="info",
        )

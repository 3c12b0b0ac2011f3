"""GPUs: whether the job passes GPU memory to MPI, and whether its library accepts it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.doctor.examine import PlannedJob, plan_job
from hidl_cli.mpi import Library, Query
from hidl_cli.site.probes.host import Host
from hidl_workloads.doctor.finding import Evidence, Rules


@dataclass(frozen=True)
class Gpus:
    """``per_node``: GPUs of a node, None if unknown. ``cuda_aware``: the library accepts pointers to GPU memory, None
    if unknown."""

    job: PlannedJob
    per_node: int | None = None
    cuda_aware: bool | None = None


def probe(context: Context) -> Gpus:
    """Query the library only if the nodes have GPUs, or may have."""
    one, plan = plan_job(context), context.plan
    per_node = context.gpus
    asked = one.device_buffers if plan else per_node
    return Gpus(
        job=one,
        per_node=per_node,
        cuda_aware=cuda_aware(context.host, one.library) if asked and one.library else None,
    )


def cuda_aware(host: Host, library: Library) -> bool | None:
    """Return whether the library accepts pointers to GPU memory (``FamilyTraits.gpu_aware``); None if unknown."""
    aware = library.traits.gpu_aware
    if not isinstance(aware, Query):
        return True if aware == "always" else None
    said = host.ask(library.program(aware.argv[0]), *aware.argv[1:]) or ""
    if re.search(aware.yes, said):
        return True
    return False if re.search(aware.no, said) else None


RULES: Rules[Gpus] = Rules()


@RULES.rule(
    "HD020",
    "The MPI library has no CUDA support, but GPUs are used",
    severity="error",
    why="A library built without CUDA treats addresses of GPU memory as host addresses, and the rank dies with a "
    "segmentation fault. Programs that copy through host memory work, but slower.",
)
def not_cuda_aware(facts: Gpus) -> Iterator[Evidence]:
    """An error if the planned program passes GPU memory to MPI, else an info."""
    library = facts.job.library
    if library is None or facts.cuda_aware is not False:
        return
    built = f"{library.family} {library.version or ''}".strip()
    if facts.job.device_buffers:
        yield Evidence(
            f"the program passes GPU memory to MPI, but {built} ({library.name}) was built without CUDA",
            "--set gpu_buffers=staged, buffer=numpy or places=H-H, as the workload has it; or a CUDA-aware library: "
            "hidl run --mpi NAME",
        )
    elif facts.per_node and not facts.job.planned:
        yield Evidence(
            f"nodes have {facts.per_node} GPU(s), but {built} ({library.name}) was built without CUDA",
            "pass only host memory to MPI, or use a CUDA-aware library (mvapich2-gdr, mvapich-plus)",
            severity="info",
        )


SUBJECT = Subject(probe, RULES, before_runs=True)

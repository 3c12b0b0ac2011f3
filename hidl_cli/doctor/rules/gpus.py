"""GPU support of the MPI library, for jobs that pass GPU memory to MPI."""

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
class GpuSupport:
    """The number of GPUs per node, and whether the MPI library accepts pointers to GPU memory (None if unknown)."""

    job: PlannedJob
    per_node: int | None = None
    cuda_aware: bool | None = None


def probe(context: Context) -> GpuSupport:
    """Query the MPI library if the plan passes GPU memory to MPI or, without a plan, if the nodes have GPUs."""
    job = plan_job(context)
    relevant = job.device_buffers if context.plan else context.gpus
    return GpuSupport(
        job=job,
        per_node=context.gpus,
        cuda_aware=cuda_aware(context.host, job.library) if relevant and job.library else None,
    )


def cuda_aware(host: Host, library: Library) -> bool | None:
    """Return whether the library accepts pointers to GPU memory (``FamilyTraits.gpu_aware``); None if unknown."""
    aware = library.traits.gpu_aware
    if not isinstance(aware, Query):
        return True if aware == "always" else None
    output = host.ask(library.program(aware.argv[0]), *aware.argv[1:]) or ""
    if re.search(aware.yes, output):
        return True
    return False if re.search(aware.no, output) else None


RULES: Rules[GpuSupport] = Rules()


@RULES.rule(
    "HD020",
    "The MPI library has no CUDA support, but GPUs are used",
    severity="error",
    why="A library built without CUDA treats addresses of GPU memory as host addresses, and the rank dies with a "
    "segmentation fault. Programs that copy data through host memory work, but are slower.",
)
def not_cuda_aware(facts: GpuSupport) -> Iterator[Evidence]:
    """Report an error if the planned program passes GPU memory to MPI, and an info otherwise."""
    library = facts.job.library
    if library is None or facts.cuda_aware is not False:
        return
    built = f"{library.family} {library.version or ''}".strip()
    if facts.job.device_buffers:
        yield Evidence(
            f"the program passes GPU memory to MPI, but {built} ({library.name}) was built without CUDA",
            "--set gpu_buffers=staged, buffer=numpy or places=H-H, depending on the workload; or use a CUDA-aware "
            "library: hidl run --mpi NAME",
        )
    elif facts.per_node and not facts.job.planned:
        yield Evidence(
            f"nodes have {facts.per_node} GPU(s), but {built} ({library.name}) was built without CUDA",
            "pass only host memory to MPI, or use a CUDA-aware library (mvapich2-gdr, mvapich-plus)",
            severity="info",
        )


SUBJECT = Subject(probe, RULES, before_runs=True)

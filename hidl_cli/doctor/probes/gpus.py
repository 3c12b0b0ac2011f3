"""GPUs: does the job hand their memory to MPI, and can its library take it?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes import job
from hidl_cli.doctor.probes.job import Job
from hidl_cli.mpi import Library
from hidl_cli.runs.plan import Plan
from hidl_cli.runs.workload import Value
from hidl_cli.site.probes.host import Host

_GPU_ARRAYS = ("cupy", "numba")


@dataclass(frozen=True)
class Gpus:
    """``per_node``: how many a node has, None where that is unknown; ``cuda_aware``: does the library take pointers
    to their memory, None where it does not tell."""

    job: Job
    per_node: int | None = None
    device_buffers: bool = False
    cuda_aware: bool | None = None


def probe(context: Context) -> Gpus:
    """The library is asked only where the nodes have GPUs, or may have some."""
    one, plan = job.probe(context), context.plan
    per_node = context.site.node_type(plan.partition if plan else None).gpus
    wanted = plan is not None and wants_device_buffers(plan)
    asked = wanted if plan else per_node
    return Gpus(
        job=one,
        per_node=per_node,
        device_buffers=wanted,
        cuda_aware=cuda_aware(context.host, one.library) if asked and one.library else None,
    )


def wants_device_buffers(plan: Plan) -> bool:
    """Does any step hand arrays that lie on a GPU to MPI?"""
    return any(_on_device({**plan.parameters, **step.point}) for step in plan.steps)


def _on_device(parameters: Mapping[str, Value]) -> bool:
    """By the words that the shipped workloads use: OMB-Py's buffers, the learners' direct ones, Dask over MPI."""
    of_dask = parameters.get("device") == "gpu" and parameters.get("protocol") == "mpi"
    direct = parameters.get("device") == "gpu" and parameters.get("gpu_buffers") == "direct"
    return of_dask or direct or parameters.get("buffer") in _GPU_ARRAYS


def cuda_aware(host: Host, library: Library) -> bool | None:
    """By the library's family, or by what its own program says of how it was built; None: nobody says it."""
    if library.family in ("mvapich2-gdr", "mvapich-plus"):
        return True
    if library.family == "openmpi":
        said = host.ask(library.program("ompi_info"), "--parsable", "--all") or ""
        found = re.search(r"built_with_cuda_support:value:(true|false)", said)
        return found[1] == "true" if found else None
    if library.family in ("mpich", "mvapich2"):
        program = ("mpichversion",) if library.family == "mpich" else ("mpiname", "-a")
        said = host.ask(library.program(program[0]), *program[1:]) or ""
        return bool(re.search(r"--(with|enable)-cuda(?!=no)", said)) if said else None
    return None

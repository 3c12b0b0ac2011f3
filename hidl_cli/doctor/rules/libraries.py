"""A job's MPI library: the programs that start its ranks, and its GPU support."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.doctor.examine import PlannedJob, plan_job
from hidl_cli.launchers import LAUNCHERS
from hidl_cli.mpi import ABI_TITLES, Abi, Library, Query
from hidl_cli.quoting import sh
from hidl_cli.site.probes.host import Host
from hidl_cli.site.probes.software import runtime
from hidl_cli.stack import content
from hidl_cli.stack.installation import Installation
from hidl_workloads.doctor.finding import Evidence, Rules


@dataclass(frozen=True)
class Starter:
    """An ``mpiexec``: its path, and the ABI of the ranks that it starts (None if unknown)."""

    path: str
    starts: Abi | None


@dataclass(frozen=True)
class Libraries:
    """A job's libraries and launchers.

    Attributes:
        abi: ABI of the job's MPI library.
        prefix: Prefix of the installation.
        mpiexec: First mpiexec on PATH.
        mpi4py: ABIs that the installation's mpi4py was built for, or None if unknown.
        requested_abi: Value of ``$MPI4PY_MPIABI`` in the ranks.
        program_exists: Whether the launcher's program exists on this host, or None if that depends on the job's
            modules.
        supported_types: Types that ``srun --mpi=`` supports, or None if unknown.
        on_this_host: Whether the ranks run on this machine.
    """

    job: PlannedJob
    abi: Abi | None = None
    prefix: str | None = None
    mpiexec: Starter | None = None
    mpi4py: frozenset[str] | None = None
    requested_abi: str | None = None
    program_exists: bool | None = None
    supported_types: tuple[str, ...] | None = None
    on_this_host: bool = True


def probe(context: Context) -> Libraries:
    """Examine the job's libraries. On a host outside the site, only files are read."""
    job = plan_job(context)
    return Libraries(
        job=job,
        abi=job.library.traits.abi if job.library else None,
        mpiexec=_mpiexec(context, job) if context.is_here else None,
        prefix=str(context.installation.prefix) if context.installation else None,
        mpi4py=built_for(context.installation) if context.installation else None,
        requested_abi=job.environment.get("MPI4PY_MPIABI"),
        program_exists=_program_exists(context, job) if context.is_here else None,
        supported_types=(_mpi_types(context.host) or None) if context.is_here and job.mpi_type else None,
        on_this_host=context.site.scheduler == "local",
    )


def built_for(installation: Installation) -> frozenset[str] | None:
    """Return the ABIs that an installation's mpi4py was built for, or None if unknown or not installed."""
    patterns = ("lib/python3*", "view/lib*/python3*")  # locations in wheels and in Spack views
    packages = (path for pattern in patterns for path in installation.prefix.glob(f"{pattern}/site-packages/mpi4py"))
    return frozenset[str]().union(*map(content.mpi4py_abis, packages)) or None


def _mpi_types(host: Host) -> tuple[str, ...]:
    from hidl_cli.site.probes.slurm import mpi_types  # not loaded for launchers other than srun

    return mpi_types(host)


def _mpiexec(context: Context, job: PlannedJob) -> Starter | None:
    """Return the mpiexec that the planned job or a user finds on PATH, or None if the job uses an absolute path."""
    if not job.planned:
        path = context.host.which("mpiexec")
    elif job.launcher in ("mpiexec", "mpirun") and os.sep not in (job.program or os.sep):
        path = _program(context, job)
    else:
        return None
    if path is None:
        return None
    is_own = context.installation is not None and path == str(context.installation.mpiexec)
    return Starter(path, None if is_own else runtime(context.host, path))


def _program_exists(context: Context, job: PlannedJob) -> bool | None:
    if job.program is None or (os.sep not in job.program and _has_modules(context)):
        return None
    return context.host.which(_program(context, job) or job.program) is not None


def _program(context: Context, job: PlannedJob) -> str | None:
    """Return the path of the job's launcher, or None if it is missing or depends on the job's modules.

    If the MPI library is on PATH, the job script uses the programs next to ``mpicc`` (templates/job.sh.j2).
    """
    program, host = job.program, context.host
    if program is None or os.sep in program or not (job.launcher and LAUNCHERS.get(job.launcher).of_library):
        return program and host.which(program)
    if _has_modules(context):
        return None
    wrapper = host.which("mpicc") or ""
    if wrapper.endswith("/bin/mpicc"):
        return wrapper.removesuffix("mpicc") + program
    return str(context.installation.prefix / "bin" / program) if context.installation else host.which(program)


def _has_modules(context: Context) -> bool:
    """Return whether the job loads modules, which may change the job's PATH."""
    if context.plan is not None:
        return bool(context.plan.modules)
    library = context.site.mpi.get(context.site.default_mpi or "")
    return bool(context.site.policies.modules or (library and library.modules))


RULES: Rules[Libraries] = Rules()
_SINGLETONS = (
    "Launcher and library must share a process-management interface. Otherwise N ranks start as N worlds of one rank: "
    "each does all the work, and exits with status 0."
)


@RULES.rule("HD002", "mpiexec on PATH belongs to another MPI library", severity="error", why=_SINGLETONS)
def another_mpiexec(facts: Libraries) -> Iterator[Evidence]:
    """Report an error if the plan or a shell with the activated stack calls mpiexec by name.

    Otherwise, report an informational finding.
    """
    found, job = facts.mpiexec, facts.job
    if found is None or found.starts in (None, facts.abi) or facts.abi is None or job.library is None:
        return
    seen = f"{found.path} starts ranks of {ABI_TITLES[found.starts]}, but the ranks are linked to {job.library.family}"
    if job.planned:
        yield Evidence(seen, f"correct `prefix` or `modules` of MPI library {job.library.name} in the site file")
    elif job.is_active:
        yield Evidence(f"{seen}, the library of the activated stack", f"source {sh(f'{facts.prefix}/activate.sh')}")
    else:
        yield Evidence(
            f"{seen}; hidl run uses the library's own mpiexec, but your shell finds this one",
            f"source {sh(f'{facts.prefix}/activate.sh')} before calling mpiexec",
            severity="info",
        )


@RULES.rule(
    "HD004",
    "mpi4py was built for another MPI library",
    severity="error",
    why="MPICH and its derivatives share one binary interface (libmpi.so.12), Open MPI has another (libmpi.so.40). A "
    "module built for one fails to load with the other, or crashes at its first call.",
)
def another_abi(facts: Libraries) -> Iterator[Evidence]:
    """Report an error if mpi4py's modules or ``MPI4PY_MPIABI`` have a different ABI than the library."""
    library, requested = facts.job.library, facts.requested_abi
    if library is None or facts.abi is None:
        return
    if facts.mpi4py and not facts.mpi4py & {facts.abi, "mpiabi"}:
        built = " and ".join(ABI_TITLES.get(name, name) for name in sorted(facts.mpi4py))
        yield Evidence(
            f"the stack's mpi4py was built for {built}, but the ranks use {library.family} ({library.name})",
            "hidl run --mpi stack, or use a library of the site with the same ABI",
        )
    if requested and requested != facts.abi and requested in ABI_TITLES:
        yield Evidence(
            f"MPI4PY_MPIABI={requested} is set for the ranks, which use {library.family} ({library.name})",
            "unset MPI4PY_MPIABI",
        )


@RULES.rule(
    "HD005",
    "srun does not support the --mpi type that the library requires",
    severity="error",
    why="srun does not find the plug-in and exits before it starts any rank.",
)
def type_not_offered(facts: Libraries) -> Iterator[Evidence]:
    """Report an error if ``srun --mpi=list`` does not list the type given in ``--mpi=``."""
    required = facts.job.mpi_type
    if required and facts.supported_types and required not in facts.supported_types:
        yield Evidence(
            f"srun --mpi={required} is required, but this Slurm only supports {', '.join(facts.supported_types)}",
            "set `srun_mpi` of the MPI library in the site file, or use another launcher: hidl run --launcher mpiexec",
        )


@RULES.rule(
    "HD007",
    "The launcher's program is not found",
    severity="error",
    why="The job would wait for its nodes and exit with status 127 when it starts the ranks.",
)
def program_missing(facts: Libraries) -> Iterator[Evidence]:
    """Report a warning on login nodes, which may lack programs that compute nodes have, and an error elsewhere."""
    job = facts.job
    if facts.program_exists is not False or job.program is None or job.library is None:
        return
    in_the_stack = facts.prefix is not None and job.program.startswith(f"{facts.prefix}/")
    if in_the_stack:
        fix = f"hidl uninstall {sh(job.library.name)} && hidl install {sh(job.library.name)}"
    elif "/" in job.program:
        fix = "correct `prefix` of the MPI library in the site file, then: hidl site check --on-host"
    else:
        fix = f"add {job.launcher} to PATH (load its module), or use another launcher: hidl run --launcher NAME"
    yield Evidence(
        f"launcher {job.launcher}: {job.program} not found on this host",
        fix,
        severity=None if facts.on_this_host or in_the_stack else "warning",
    )


@dataclass(frozen=True)
class GpuSupport:
    """The number of GPUs per node, and whether the MPI library accepts pointers to GPU memory (None if unknown)."""

    job: PlannedJob
    per_node: int | None = None
    cuda_aware: bool | None = None


def probe_gpu(context: Context) -> GpuSupport:
    """Query the MPI library if the plan passes GPU memory to MPI or, without a plan, if the nodes have GPUs."""
    job = plan_job(context)
    relevant = job.device_buffers if context.plan else context.gpus
    return GpuSupport(
        job=job,
        per_node=context.gpus,
        cuda_aware=cuda_aware(context.host, job.library) if relevant and job.library else None,
    )


def cuda_aware(host: Host, library: Library) -> bool | None:
    """Return whether the library accepts pointers to GPU memory (``FamilyTraits.gpu_aware``), or None if unknown."""
    aware = library.traits.gpu_aware
    if not isinstance(aware, Query):
        return True if aware == "always" else None
    output = host.ask(library.program(aware.argv[0]), *aware.argv[1:]) or ""
    if re.search(aware.yes, output):
        return True
    return False if re.search(aware.no, output) else None


GPU_RULES: Rules[GpuSupport] = Rules()


@GPU_RULES.rule(
    "HD020",
    "The MPI library has no CUDA support, but GPUs are used",
    severity="error",
    why="A library built without CUDA treats addresses of GPU memory as host addresses, and the rank dies with a "
    "segmentation fault. Programs that copy data through host memory work, but are slower.",
)
def not_cuda_aware(facts: GpuSupport) -> Iterator[Evidence]:
    """Report an error if the planned program passes GPU memory to MPI.

    If no program is planned, report an informational finding for nodes with GPUs.
    """
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


SUBJECTS = (
    Subject(probe, RULES, before_runs=True),
    Subject(probe_gpu, GPU_RULES, before_runs=True),
)

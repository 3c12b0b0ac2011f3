"""The MPI library that ranks are linked to, and the launchers that start them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.doctor.examine import PlannedJob, plan_job
from hidl_cli.launchers import LAUNCHERS
from hidl_cli.mpi import ABI_TITLES, Abi
from hidl_cli.quoting import sh
from hidl_cli.site.probes.slurm import mpi_types
from hidl_cli.site.probes.software import runtime
from hidl_cli.stack import content
from hidl_cli.stack.installation import Installation
from hidl_workloads.doctor.finding import Evidence, Rules


@dataclass(frozen=True)
class Starter:
    """An ``mpiexec``: its path, and the ABI of the ranks that it starts (None: unknown)."""

    place: str
    starts: Abi | None


@dataclass(frozen=True)
class Libraries:
    """Libraries and launchers of a job.

    ``abi``: of the job's MPI library. ``prefix``: of the installation. ``mpiexec``: the first on PATH. ``mpi4py``: the
    ABIs that the installation's mpi4py was built for, None if unknown. ``asked_abi``: ``$MPI4PY_MPIABI`` of the ranks.
    ``program_is_there``: the launcher's program exists here; None if that depends on modules that the job loads.
    ``offered``: the types of ``srun --mpi=``, None if unknown. ``on_this_host``: the ranks run on this machine.
    """

    job: PlannedJob
    abi: Abi | None = None
    prefix: str | None = None
    mpiexec: Starter | None = None
    mpi4py: frozenset[str] | None = None
    asked_abi: str | None = None
    program_is_there: bool | None = None
    offered: tuple[str, ...] | None = None
    on_this_host: bool = True


def probe(context: Context) -> Libraries:
    """The libraries of the job on this host; on a host outside the site, only what files say."""
    one = plan_job(context)
    return Libraries(
        job=one,
        abi=one.library.traits.abi if one.library else None,
        mpiexec=_mpiexec(context, one) if context.is_here else None,
        prefix=str(context.installation.prefix) if context.installation else None,
        mpi4py=built_for(context.installation) if context.installation else None,
        asked_abi=one.environment.get("MPI4PY_MPIABI"),
        program_is_there=_is_there(context, one) if context.is_here else None,
        offered=(mpi_types(context.host) or None) if context.is_here and one.mpi_type else None,
        on_this_host=context.site.scheduler == "local",
    )


def built_for(installation: Installation) -> frozenset[str] | None:
    """The ABIs that an installation's mpi4py was built for; None if unknown or not installed."""
    patterns = ("lib/python3*", "view/lib*/python3*")  # wheels; what Spack shows
    places = (place for pattern in patterns for place in installation.prefix.glob(f"{pattern}/site-packages/mpi4py"))
    return frozenset[str]().union(*map(content.mpi4py_abis, places)) or None


def _mpiexec(context: Context, one: PlannedJob) -> Starter | None:
    """The mpiexec that the planned job or a user finds on PATH; None if the job uses an absolute path."""
    if not one.planned:
        place = context.host.which("mpiexec")
    elif one.launcher in ("mpiexec", "mpirun") and os.sep not in (one.program or os.sep):
        place = _program(context, one)
    else:
        return None
    if place is None:
        return None
    own = context.installation is not None and place == str(context.installation.mpiexec)
    return Starter(place, None if own else runtime(context.host, place))


def _is_there(context: Context, one: PlannedJob) -> bool | None:
    if one.program is None or (os.sep not in one.program and _has_modules(context)):
        return None
    return context.host.which(_program(context, one) or one.program) is not None


def _program(context: Context, one: PlannedJob) -> str | None:
    """The path of the job's launcher; None if it depends on the job's modules, or is missing.

    For an MPI library on PATH the job script uses the programs beside ``mpicc`` (templates/job.sh.j2).
    """
    program, host = one.program, context.host
    if program is None or os.sep in program or not (one.launcher and LAUNCHERS.get(one.launcher).of_library):
        return program and host.which(program)
    if _has_modules(context):
        return None
    wrapper = host.which("mpicc") or ""
    if wrapper.endswith("/bin/mpicc"):
        return wrapper.removesuffix("mpicc") + program
    return str(context.installation.prefix / "bin" / program) if context.installation else host.which(program)


def _has_modules(context: Context) -> bool:
    """Whether the job loads modules, which may change its PATH."""
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
    """An error if the plan or a shell with the activated stack calls it by name, else an info."""
    found, job = facts.mpiexec, facts.job
    if found is None or found.starts in (None, facts.abi) or facts.abi is None or job.library is None:
        return
    what = f"{found.place} starts ranks of {ABI_TITLES[found.starts]}, but the ranks are linked to {job.library.family}"
    if job.planned:
        yield Evidence(what, f"correct `prefix` or `modules` of MPI library {job.library.name} in the site file")
    elif job.is_active:
        yield Evidence(f"{what} of the activated stack", f"source {sh(f'{facts.prefix}/activate.sh')}")
    else:
        yield Evidence(
            f"{what}; hidl run uses the library's own, but a manual mpiexec is this one",
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
    """Neither mpi4py's modules nor ``MPI4PY_MPIABI`` may have another ABI than the library."""
    library, asked = facts.job.library, facts.asked_abi
    if library is None or facts.abi is None:
        return
    if facts.mpi4py and not facts.mpi4py & {facts.abi, "mpiabi"}:
        built = " and ".join(ABI_TITLES.get(name, name) for name in sorted(facts.mpi4py))
        yield Evidence(
            f"the stack's mpi4py was built for {built}, but the ranks use {library.family} ({library.name})",
            "hidl run --mpi stack, or a library of the site with the same ABI",
        )
    if asked and asked != facts.abi and asked in ABI_TITLES:
        yield Evidence(
            f"MPI4PY_MPIABI={asked} reaches the ranks, which use {library.family} ({library.name})",
            "unset MPI4PY_MPIABI",
        )


@RULES.rule(
    "HD005",
    "srun does not support the --mpi type that the library requires",
    severity="error",
    why="srun does not find the plugin, and exits before it starts a rank.",
)
def type_not_offered(facts: Libraries) -> Iterator[Evidence]:
    """The type of ``--mpi=`` is not in ``srun --mpi=list``."""
    wanted = facts.job.mpi_type
    if wanted and facts.offered and wanted not in facts.offered:
        yield Evidence(
            f"srun --mpi={wanted} is required; this Slurm supports {', '.join(facts.offered)}",
            "set `srun_mpi` of the MPI library in the site file, or use another launcher: hidl run --launcher mpiexec",
        )


@RULES.rule(
    "HD007",
    "The launcher's program is not found",
    severity="error",
    why="The job gets its nodes, and exits with status 127 when it starts the ranks.",
)
def program_missing(facts: Libraries) -> Iterator[Evidence]:
    """A warning on a login node, which may lack programs of compute nodes; else an error."""
    job = facts.job
    if facts.program_is_there is not False or job.program is None or job.library is None:
        return
    in_the_stack = facts.prefix is not None and job.program.startswith(f"{facts.prefix}/")
    if in_the_stack:
        fix = f"hidl uninstall {sh(job.library.name)} && hidl install {sh(job.library.name)}"
    elif "/" in job.program:
        fix = "correct `prefix` of the MPI library in the site file; hidl site check --on-host"
    else:
        fix = f"put {job.launcher} on PATH (load its module), or use another: hidl run --launcher NAME"
    yield Evidence(
        f"launcher {job.launcher}: {job.program} not found on this host",
        fix,
        severity=None if facts.on_this_host or in_the_stack else "warning",
    )


SUBJECT = Subject(probe, RULES, before_runs=True)

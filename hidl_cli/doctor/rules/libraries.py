"""Rules: the MPI library that ranks are linked to, and who starts them."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.libraries import Libraries, probe
from hidl_cli.quoting import sh
from hidl_workloads.doctor.finding import Finding, Rules, Seen

RULES: Rules[Libraries] = Rules()

_NAMES = {"mpich": "MPICH or its kin", "openmpi": "Open MPI"}
_SINGLETONS = (
    "Launcher and library must share a process-management interface. Where they do not, N ranks come up as N worlds "
    "of one rank each: every one of them does all the work, and ends with status 0."
)


def examine(context: Context) -> list[Finding]:
    """What is wrong with the libraries and launchers of the job."""
    return RULES.findings(probe(context))


@RULES.rule("HD002", "mpiexec on PATH is not that of the linked MPI library", severity="error", why=_SINGLETONS)
def another_mpiexec(facts: Libraries) -> Iterator[Seen]:
    """Wrong where somebody calls it: the plan by its bare name, or a person in a shell with the stack activated."""
    found, job = facts.mpiexec, facts.job
    if found is None or found.starts in (None, facts.abi) or facts.abi is None or job.library is None:
        return
    what = f"{found.place} starts ranks of {_NAMES[found.starts]}; the ranks are linked to {job.library.family}"
    if job.planned:
        yield Seen(what, f"`prefix` or `modules` of MPI library {job.library.name} in the site's file: hidl site show")
    elif job.is_active:
        yield Seen(f"{what} of the stack that is activated", f"source {sh(f'{facts.prefix}/activate.sh')}")
    else:
        yield Seen(
            f"{what}; hidl run takes the library's own, but by hand it would be this one",
            f"source {sh(f'{facts.prefix}/activate.sh')}, before mpiexec is called by hand",
            severity="info",
        )


@RULES.rule(
    "HD004",
    "mpi4py was built for another MPI library",
    severity="error",
    why="MPICH and its kin share one binary interface (libmpi.so.12), Open MPI has another (libmpi.so.40). A module "
    "that was built for one takes the other's handles for its own: it fails to load, or crashes at its first call.",
)
def another_abi(facts: Libraries) -> Iterator[Seen]:
    """The modules that mpi4py has, or the one that a variable names, are not of the library's ABI."""
    library, asked = facts.job.library, facts.asked_abi
    if library is None or facts.abi is None:
        return
    if facts.mpi4py and not facts.mpi4py & {facts.abi, "mpiabi"}:
        built = " and ".join(_NAMES.get(name, name) for name in sorted(facts.mpi4py))
        yield Seen(
            f"the stack's mpi4py was built for {built}; the ranks run on {library.family} ({library.name})",
            "hidl run --mpi stack, or one of the site's libraries that is of the same kin",
        )
    if asked and asked != facts.abi and asked in _NAMES:
        yield Seen(
            f"MPI4PY_MPIABI={asked} reaches the ranks, which run on {library.family} ({library.name})",
            "unset MPI4PY_MPIABI",
        )


@RULES.rule(
    "HD005",
    "srun does not offer the --mpi type that the library needs",
    severity="error",
    why="srun ends before it starts a rank: it does not find the plugin.",
)
def type_not_offered(facts: Libraries) -> Iterator[Seen]:
    """The type of ``--mpi=`` that the launch line has is not in ``srun --mpi=list``."""
    wanted = facts.job.mpi_type
    if wanted and facts.offered and wanted not in facts.offered:
        yield Seen(
            f"srun --mpi={wanted} is wanted; this Slurm offers {', '.join(facts.offered)}",
            "`srun_mpi` of the MPI library in the site's file, or another launcher: hidl run --launcher mpiexec",
        )


@RULES.rule(
    "HD007",
    "The launcher's program is not there",
    severity="error",
    why="The job gets its nodes, and ends with status 127 when it comes to starting the ranks.",
)
def program_missing(facts: Libraries) -> Iterator[Seen]:
    """Sure where ranks start here, or the program lies beside the stack; a login node may lack what nodes have."""
    job = facts.job
    if facts.program_is_there is not False or job.program is None or job.library is None:
        return
    in_the_stack = facts.prefix is not None and job.program.startswith(f"{facts.prefix}/")
    if in_the_stack:
        mend = f"hidl uninstall {sh(job.library.name)} && hidl install {sh(job.library.name)}"
    elif "/" in job.program:
        mend = "`prefix` of the MPI library in the site's file: hidl site check --on-host"
    else:
        mend = f"put {job.launcher} on PATH (a module?), or take another: hidl run --launcher NAME"
    yield Seen(
        f"launcher {job.launcher}: there is no {job.program} on this host",
        mend,
        severity=None if facts.on_this_host or in_the_stack else "warning",
    )

"""An environment of the user's own: do its compiled packages fit the MPI library and the nodes of the run?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.launch.library import OF_THE_STACK
from hidl_cli.mpi import ABI_TITLES, TRAITS, Abi
from hidl_cli.quoting import sh
from hidl_cli.stack.content import ANY
from hidl_workloads.doctor.finding import Evidence, Rules

_STACKS: dict[Abi, str] = {"mpich": "mpi", "openmpi": "openmpi"}


@dataclass(frozen=True)
class UserEnvironment:
    """The environment in ``directory``, and the MPI library of the ranks.

    ``linked``: the ABIs that its packages were built for; ``own``: the ABI of its own MPI library, None without one.
    ``library``: the name of the ranks' library, with its ``family`` and ``abi``; ``is_own``: it is the environment's.
    ``uses_mpi``: the program is known to use MPI; ``fitting``: a library of the site with the ABI of the packages.
    ``torch``: its version, None without PyTorch; ``gpus``: of each node.
    """

    directory: str = ""
    kind: str = "venv"
    linked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own: Abi | None = None
    library: str = ""
    family: str = ""
    abi: Abi | None = None
    is_own: bool = False
    uses_mpi: bool = True
    fitting: str | None = None
    torch: str | None = None
    gpus: int = 0


def probe(context: Context) -> UserEnvironment | None:
    """The environment of the planned run, as it was read; None without one."""
    plan = context.plan
    if plan is None or plan.user_environment is None:
        return None
    one, program = plan.user_environment, plan.workload.program
    wanted = {abi for abis in one.linked.values() for abi in abis}
    fitting = (name for name, mpi in context.site.mpi.items() if TRAITS[mpi.family].abi in wanted)
    return UserEnvironment(
        directory=one.directory,
        kind=one.kind,
        linked=one.linked,
        own=TRAITS[one.mpi].abi if one.mpi else None,
        library=plan.mpi.name,
        family=plan.mpi.family,
        abi=plan.mpi.traits.abi,
        is_own=plan.mpi_of_the_stack,
        uses_mpi=program.mpi or program.module is not None,
        fitting=next(fitting, None),
        torch=one.packages.get("torch") or one.packages.get("pytorch"),
        gpus=context.gpus or 0,
    )


RULES: Rules[UserEnvironment] = Rules()


@RULES.rule(
    "HD070",
    "A package of the environment was built for another MPI library",
    severity="error",
    why="MPICH and its derivatives share one binary interface (libmpi.so.12), Open MPI has another (libmpi.so.40). A "
    "module built for one does not load with the other, or loads a library that the launcher does not know: N ranks "
    "come up as N worlds of one rank.",
)
def another_library(facts: UserEnvironment) -> Iterator[Evidence]:
    """A warning if the program is started without MPI."""
    for package, abis in facts.linked.items():
        if facts.abi is None or not abis or {facts.abi, ANY} & {*abis}:
            continue
        built = " and ".join(ABI_TITLES.get(abi, abi) for abi in abis)
        yield Evidence(
            f"{package} in {facts.directory} was built for {built}, but the ranks use {facts.family} ({facts.library})",
            _fix(facts, package, abis),
            where=facts.directory,
            severity=None if facts.uses_mpi else "warning",
        )


def _fix(facts: UserEnvironment, package: str, abis: tuple[str, ...]) -> str:
    again = (
        f"{sh(facts.directory)}/bin/python -m pip install --force-reinstall mpi4py (its wheels serve both)"
        if package == "mpi4py"
        else f"build {package} again, with the mpicc of that library"
    )
    if facts.own in abis and not facts.is_own:
        return f"hidl run --mpi {OF_THE_STACK} (the environment's own library), or {again}"
    if facts.fitting is not None:
        return f"hidl run --mpi {facts.fitting}, or {again}"
    stack = next((name for abi, name in _STACKS.items() if abi in abis), "mpi")
    return f"hidl run --stack {stack} --mpi {OF_THE_STACK}, or {again}"


@RULES.rule(
    "HD071",
    "The environment has an MPI library of its own beside the run's",
    severity="warning",
    why="Conda's packages find their own libmpi first, whatever LD_LIBRARY_PATH says. Ranks that load it are singletons"
    " under another library's launcher, and use no fast network; the check before the program finds that.",
)
def own_library_beside(facts: UserEnvironment) -> Iterator[Evidence]:
    """Only for conda: wheels of mpi4py take the library of LD_LIBRARY_PATH."""
    if facts.kind != "conda" or facts.own is None or facts.is_own or facts.own != facts.abi or not facts.linked:
        return
    package = "mpich" if facts.own == "mpich" else "openmpi"
    yield Evidence(
        f"{facts.directory} has {ABI_TITLES[facts.own]}; the ranks are to use {facts.family} ({facts.library})",
        f"conda install '{package}=*=external_*' (a package without the library), or hidl run --mpi {OF_THE_STACK}",
        where=facts.directory,
    )


@RULES.rule(
    "HD072",
    "PyTorch of the environment is its CPU build, but the nodes have GPUs",
    severity="warning",
    why="torch.cuda.is_available() is false: the GPUs are paid for and idle.",
)
def cpu_build(facts: UserEnvironment) -> Iterator[Evidence]:
    """By the local version of the wheel."""
    if facts.gpus and facts.torch and facts.torch.endswith("+cpu"):
        yield Evidence(
            f"torch {facts.torch} in {facts.directory}; the nodes have {facts.gpus} GPU(s) each",
            f"{sh(facts.directory)}/bin/python -m pip install --force-reinstall torch, from an index of CUDA builds",
            where=facts.directory,
        )


SUBJECT = Subject(probe, RULES, before_runs=True)

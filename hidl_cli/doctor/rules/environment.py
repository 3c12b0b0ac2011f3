"""The user's own Python environment, and whether its compiled packages fit the MPI library and the nodes."""

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
class PythonEnvironment:
    """A Python environment and the MPI library of the ranks.

    Attributes:
        directory: Directory of the environment.
        linked: ABIs that each package was built for.
        own_abi: ABI of the environment's own MPI library, or None.
        library: Name of the MPI library of the ranks.
        family: Family of that library.
        abi: ABI of that library.
        is_own: Whether that library is the environment's own.
        uses_mpi: Whether the program is known to use MPI.
        fitting: One of the site's MPI libraries that has the ABI of the packages.
        torch: Version of PyTorch, or None.
        gpus: Number of GPUs per node.
    """

    directory: str = ""
    kind: str = "venv"
    linked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_abi: Abi | None = None
    library: str = ""
    family: str = ""
    abi: Abi | None = None
    is_own: bool = False
    uses_mpi: bool = True
    fitting: str | None = None
    torch: str | None = None
    gpus: int = 0


def probe(context: Context) -> PythonEnvironment | None:
    """Return the environment of the planned run, or None if it has none."""
    plan = context.plan
    if plan is None or plan.user_environment is None:
        return None
    environment, program = plan.user_environment, plan.workload.program
    required = {abi for abis in environment.linked.values() for abi in abis}
    fitting = (name for name, mpi in context.site.mpi.items() if TRAITS[mpi.family].abi in required)
    return PythonEnvironment(
        directory=environment.directory,
        kind=environment.kind,
        linked=environment.linked,
        own_abi=TRAITS[environment.mpi].abi if environment.mpi else None,
        library=plan.mpi.name,
        family=plan.mpi.family,
        abi=plan.mpi.traits.abi,
        is_own=plan.mpi_of_the_stack,
        uses_mpi=program.mpi or program.module is not None,
        fitting=next(fitting, None),
        torch=environment.packages.get("torch") or environment.packages.get("pytorch"),
        gpus=context.gpus or 0,
    )


RULES: Rules[PythonEnvironment] = Rules()


@RULES.rule(
    "HD070",
    "A package of the environment was built for another MPI library",
    severity="error",
    why="MPICH and its derivatives share one binary interface (libmpi.so.12), Open MPI has another (libmpi.so.40). A "
    "module built for one does not load with the other, or it loads a library that the launcher does not support, and "
    "N ranks start as N worlds of one rank.",
)
def another_library(facts: PythonEnvironment) -> Iterator[Evidence]:
    """Report an error if a package was built for a different ABI, or a warning if the program does not use MPI."""
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


def _fix(facts: PythonEnvironment, package: str, abis: tuple[str, ...]) -> str:
    rebuild = (
        f"{sh(facts.directory)}/bin/python -m pip install --force-reinstall mpi4py (its wheels support both)"
        if package == "mpi4py"
        else f"rebuild {package} with the mpicc of that library"
    )
    if facts.own_abi in abis and not facts.is_own:
        return f"hidl run --mpi {OF_THE_STACK} (the environment's own library), or {rebuild}"
    if facts.fitting is not None:
        return f"hidl run --mpi {facts.fitting}, or {rebuild}"
    stack = next((name for abi, name in _STACKS.items() if abi in abis), "mpi")
    return f"hidl run --stack {stack} --mpi {OF_THE_STACK}, or {rebuild}"


@RULES.rule(
    "HD071",
    "The environment contains another MPI library than that of the run",
    severity="warning",
    why="Conda packages load their own libmpi regardless of LD_LIBRARY_PATH. Under the launcher of another library, "
    "ranks that load it are singletons and do not use the fast network. The check before the program detects this.",
)
def own_library_beside(facts: PythonEnvironment) -> Iterator[Evidence]:
    """Report a warning, for conda environments only: mpi4py wheels use the library in LD_LIBRARY_PATH."""
    if facts.kind != "conda" or facts.own_abi is None or facts.is_own or facts.own_abi != facts.abi or not facts.linked:
        return
    package = "mpich" if facts.own_abi == "mpich" else "openmpi"
    yield Evidence(
        f"{facts.directory} contains {ABI_TITLES[facts.own_abi]}, but the ranks use {facts.family} ({facts.library})",
        f"conda install '{package}=*=external_*' (a package without the library), or hidl run --mpi {OF_THE_STACK}",
        where=facts.directory,
    )


@RULES.rule(
    "HD072",
    "The environment has a CPU build of PyTorch, but the nodes have GPUs",
    severity="warning",
    why="torch.cuda.is_available() returns false, and the allocated GPUs are idle.",
)
def cpu_build(facts: PythonEnvironment) -> Iterator[Evidence]:
    """Report a warning if the version of PyTorch ends in ``+cpu`` and the nodes have GPUs."""
    if facts.gpus and facts.torch and facts.torch.endswith("+cpu"):
        yield Evidence(
            f"torch {facts.torch} in {facts.directory} does not support the {facts.gpus} GPU(s) of each node",
            f"{sh(facts.directory)}/bin/python -m pip install --force-reinstall torch, from an index of CUDA builds",
            where=facts.directory,
        )


SUBJECT = Subject(probe, RULES, before_runs=True)

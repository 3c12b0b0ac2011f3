"""A stack's or program's Python environment: modules on its search path, and packages that were built for MPI."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.doctor.examine import plan_job
from hidl_cli.launch.library import OF_THE_STACK
from hidl_cli.mpi import ABI_TITLES, TRAITS, Abi
from hidl_cli.quoting import sh
from hidl_cli.site.probes.host import Host
from hidl_cli.stack.content import ANY
from hidl_cli.stack.installation import Installation
from hidl_workloads.doctor.finding import Evidence, Rules, Severity

_LIBRARY = re.compile(r"python(3\.\d+)")
_MODULE = re.compile(r"([A-Za-z_]\w*)(?:\.py|\.(?:cpython|abi3)[\w.-]*\.so|\.so)?", re.ASCII)
_OF_PYTHON = sys.stdlib_module_names - {"test"}  # `test` is a common name, and Python's own tests are never imported
_NO_MODULES = ("__pycache__", "__init__")


@dataclass(frozen=True)
class SearchedDirectory:
    """A directory that Python searches before the stack's directories.

    ``shadows`` lists modules that are also part of the stack or of Python. ``python`` is the Python version in the
    directory's name, such as 3.9.
    """

    directory: str
    shadows: tuple[str, ...] = ()
    python: str | None = None


@dataclass(frozen=True)
class Python:
    """Directories outside of the stack that the stack's Python searches.

    Attributes:
        version: Version of the stack's Python, such as 3.11.
        configured: Directories in the PYTHONPATH that the site file sets for jobs.
        shell: Directories in the PYTHONPATH of a shell in which the stack is activated. Activating a stack unsets an
            earlier PYTHONPATH, as do jobs.
        user_site: The user's site-packages, if this Python searches it.
    """

    stack: str | None = None
    version: str | None = None
    configured: tuple[SearchedDirectory, ...] = ()
    shell: tuple[SearchedDirectory, ...] = ()
    user_site: SearchedDirectory | None = None


def probe(context: Context) -> Python:
    """Examine the directories that the installation's Python searches."""
    installation = context.installation
    if installation is None:
        return Python()
    host, prefix = context.host, str(installation.prefix)
    version = next((found[1] for name in host.list(f"{prefix}/lib") if (found := _LIBRARY.fullmatch(name))), None)
    job = plan_job(context)
    configured = _entries(job.configured.get("PYTHONPATH", ""))
    shell = _entries(host.environment.get("PYTHONPATH", "")) if context.is_active and not job.planned else []
    user = _user_site(host, installation, version)
    if version is None or not (configured or shell or user):
        return Python(context.stack, version)
    own = _modules(host, f"{prefix}/lib/python{version}/site-packages")
    for library in ("lib", "lib64"):  # locations in Spack views
        own |= _modules(host, f"{prefix}/view/{library}/python{version}/site-packages")
    return Python(
        context.stack,
        version,
        configured=_searched(host, configured, own | _OF_PYTHON),
        shell=_searched(host, shell, own | _OF_PYTHON),
        user_site=next(iter(_searched(host, [user] if user else [], own)), None),
    )


def _entries(path: str) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if entry]


def _searched(host: Host, directories: Iterable[str], own: Iterable[str]) -> tuple[SearchedDirectory, ...]:
    """Return the directories that contain any modules."""
    found = []
    for directory in directories:
        if modules := _modules(host, directory):
            match = _LIBRARY.search(directory)
            shadows = tuple(sorted(modules.intersection(own)))
            found.append(SearchedDirectory(directory, shadows, match[1] if match else None))
    return tuple(found)


def _modules(host: Host, directory: str) -> set[str]:
    """Return the names of the modules and packages in a directory."""
    found = (_MODULE.fullmatch(name) for name in host.list(directory))
    return {match[1] for match in found if match and match[1] not in _NO_MODULES}


def _user_site(host: Host, installation: Installation, version: str | None) -> str | None:
    """Return the user's site-packages, if the stack's Python searches it.

    As in CPython's site.py, a virtual environment only searches this directory with ``include-system-site-packages``.
    """
    settings = host.read(str(installation.prefix / "pyvenv.cfg"))
    is_isolated = re.search(r"^include-system-site-packages\s*=\s*false\s*$", settings, re.MULTILINE | re.IGNORECASE)
    environment = host.environment
    if is_isolated or version is None or environment.get("PYTHONNOUSERSITE"):
        return None
    base = environment.get("PYTHONUSERBASE") or f"{environment.get('HOME', '')}/.local"
    return f"{base}/lib/python{version}/site-packages"


RULES: Rules[Python] = Rules()
_SHOWN = 6


@RULES.rule(
    "HD063",
    "Packages of the Python user site shadow the stack",
    severity="error",
    why="Packages from `pip install --user` take precedence over those of the stack. Ranks on all nodes import other "
    "versions than the locked ones, often built for another NumPy or MPI.",
)
def user_site(facts: Python) -> Iterator[Evidence]:
    """Report an error if the user's site-packages directory contains a package of the stack.

    Otherwise, report an informational finding.
    """
    directory = facts.user_site
    if directory is None:
        return
    seen = f"the stack's Python {facts.version} searches {directory.directory}"
    if directory.shadows:
        seen += f", which contains {_shown(directory.shadows)} of the stack"
    severity: Severity | None = None if directory.shadows else "info"
    yield Evidence(seen, "export PYTHONNOUSERSITE=1", where=directory.directory, severity=severity)


@RULES.rule(
    "HD064",
    "PYTHONPATH shadows the stack's packages",
    severity="error",
    why="Its directories are searched before those of the stack. Ranks import other versions than the locked "
    "ones, possibly for another Python, NumPy or MPI. Activating a stack unsets it; a value set afterwards applies.",
)
def python_path(facts: Python) -> Iterator[Evidence]:
    """Report an error if a directory shadows modules of the stack or of Python, or is for another Python version."""
    for directories, origin, fix in (
        (facts.configured, "PYTHONPATH of the site file", "remove PYTHONPATH from `environment` in the site file"),
        (facts.shell, "PYTHONPATH of your shell", "unset PYTHONPATH"),
    ):
        for directory in directories:
            yield _python_path_evidence(facts, directory, origin, fix)


def _python_path_evidence(facts: Python, searched: SearchedDirectory, origin: str, fix: str) -> Evidence:
    stack = f"stack {facts.stack}" if facts.stack else "the stack"
    added = f"{origin} adds {searched.directory}"
    if searched.shadows:
        return Evidence(f"{added}, which shadows {_shown(searched.shadows)} of {stack}", fix)
    if searched.python not in (None, facts.version):
        return Evidence(f"{added} for Python {searched.python}, but {stack} has Python {facts.version}", fix)
    return Evidence(f"{added} to {stack}", fix, severity="info")


def _shown(names: tuple[str, ...]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


_STACKS: dict[Abi, str] = {"mpich": "mpi", "openmpi": "openmpi"}


@dataclass(frozen=True)
class PythonEnvironment:
    """A Python environment and the MPI library that the ranks use.

    Attributes:
        directory: Directory of the environment.
        linked: ABIs that each package was built for.
        own_abi: ABI of the environment's own MPI library, or None if it has none.
        library: Name of the MPI library that the ranks use.
        family: Family of that library.
        abi: ABI of that library.
        is_own: Whether that library is the environment's own.
        uses_mpi: Whether the program is known to use MPI.
        fitting: A site MPI library whose ABI matches the packages.
        torch: Version of PyTorch, or None if it is not installed.
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


def probe_environment(context: Context) -> PythonEnvironment | None:
    """Return the planned run's environment, or None if it has none."""
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


ENVIRONMENT_RULES: Rules[PythonEnvironment] = Rules()


@ENVIRONMENT_RULES.rule(
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


@ENVIRONMENT_RULES.rule(
    "HD071",
    "The environment contains another MPI library than the run uses",
    severity="warning",
    why="Conda packages load their own libmpi regardless of LD_LIBRARY_PATH. Under the launcher of another library, "
    "ranks that load it are singletons and do not use the fast network. The check before the program detects this.",
)
def own_library_beside(facts: PythonEnvironment) -> Iterator[Evidence]:
    """Report a warning for conda environments, because mpi4py wheels use the library in LD_LIBRARY_PATH."""
    if facts.kind != "conda" or facts.own_abi is None or facts.is_own or facts.own_abi != facts.abi or not facts.linked:
        return
    package = "mpich" if facts.own_abi == "mpich" else "openmpi"
    yield Evidence(
        f"{facts.directory} contains {ABI_TITLES[facts.own_abi]}, but the ranks use {facts.family} ({facts.library})",
        f"conda install '{package}=*=external_*' (a package without the library), or hidl run --mpi {OF_THE_STACK}",
        where=facts.directory,
    )


@ENVIRONMENT_RULES.rule(
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


SUBJECTS = (
    Subject(probe, RULES, before_runs=True),
    Subject(probe_environment, ENVIRONMENT_RULES, before_runs=True),
)

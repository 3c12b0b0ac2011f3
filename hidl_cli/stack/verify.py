"""The proof that an installation works: two MPI ranks of the very stack, checked by ``hidl_workloads.verify``.

On this machine, by the stack's own MPI library. ``hidl_cli.runs.verifying`` does it in a job, by the site's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hidl_cli import batch_systems, process
from hidl_cli.documents import read_json
from hidl_cli.errors import BuildFailed, ProcessFailed
from hidl_cli.mpi import MPICH_ON_ONE_HOST
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.order import InstallStep, log_command

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.order import Progress
    from hidl_cli.stack.plan import InstallPlan


SCHEMA = "hidl.verification/1"

_RANKS = 2
_TIMEOUT_SECONDS = 600.0
_LINES = 12

# What would tell MPI or Python of another world: a surrounding allocation, another launcher, another Python.
_FOREIGN = (
    *("PYTHON", "PMI", "HYDRA_", "MPI_LOCAL", "OMPI_", "PRTE_", "HIDL_WORLD_SIZE"),
    *(prefix for system in batch_systems.SYSTEMS.values() for prefix in system.variables),
)

# Open MPI starts nothing as root, nor more ranks than there are cores, unless it is told that this is meant. Here it
# is: the verification asks for two ranks whatever the machine, and they only say whether they work.
OPEN_MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass(frozen=True)
class Verified:
    """The checks, all of which hold, and what the manifest keeps beside them: where, in which job, on which MPI."""

    checks: tuple[Mapping[str, Any], ...]
    record: Mapping[str, Any]


def verification_place(site: Site) -> str:
    """Return where the site verifies installations: ``here``, ``job`` or ``skip``."""
    if site.install.verify is not None:
        return site.install.verify
    return "job" if site.default_mpi is not None and batch_systems.system(site.scheduler) is not None else "here"


class Verifier(Protocol):
    """Who proves that a filled prefix works."""

    def check(self) -> None:
        """Raise what would keep the verification from being made, before anything is installed."""
        ...

    def is_under_way(self, plan: InstallPlan) -> bool:
        """Whether the plan's prefix is filled, and its verification begun by an order that was interrupted."""
        ...

    def __call__(self, plan: InstallPlan, log: Path) -> Verified:
        """Verify the prefix; ``BuildFailed`` where it does not hold."""
        ...


@dataclass(frozen=True)
class Here:
    """On this machine, with the stack's own MPI library."""

    progress: Progress

    def check(self) -> None:
        """Nothing is needed."""

    def is_under_way(self, plan: InstallPlan) -> bool:
        """It ends with the order."""
        return False

    def __call__(self, plan: InstallPlan, log: Path) -> Verified:
        """See ``run``."""
        with self.progress.step(step(plan).title):
            checks = run(plan, log)
        mpi = library_record(plan.stack, plan.mpi, plan.mpi_version, checks)
        return Verified(tuple(checks), {"where": "here", "host": os.uname().nodename, "mpi": mpi})


@dataclass(frozen=True)
class Skipped:
    """Not at all, as the site's file or the user says."""

    progress: Progress

    def check(self) -> None:
        """Nothing is needed."""

    def is_under_way(self, plan: InstallPlan) -> bool:
        """There is nothing to wait for."""
        return False

    def __call__(self, plan: InstallPlan, log: Path) -> Verified:
        """Say so."""
        self.progress.say(f"{plan.stack}: NOT VERIFIED, as was asked: whether it works is not known")
        return Verified((), {"where": "skip", "host": os.uname().nodename, "mpi": None})


def library_record(
    name: str, family: str, version: str | None, checks: Sequence[Mapping[str, Any]]
) -> dict[str, str | None]:
    """The MPI library of a verification; ``library`` is the file that the ranks had loaded."""
    library = next((check["detail"] for check in checks if check["name"] == "one MPI library"), None)
    return {"name": name, "family": family, "version": version, "library": library}


def step(plan: InstallPlan) -> InstallStep:
    """The command that verifies the plan's prefix."""
    prefix = plan.prefix
    mpi = [prefix / "bin" / "mpiexec", "-n", _RANKS, prefix / "bin" / "python", "-m", "hidl_workloads.verify"]
    argv = [*mpi, f"--imports={','.join(plan.imports)}", f"--report={report(prefix)}"]
    argv += [f"--mpi={plan.mpi_place}"] if plan.mpi_place else []
    argv += [f"--modules={','.join(plan.verify_modules)}"] if plan.verify_modules else []
    argv += [f"--gpus={','.join(plan.verify_gpus)}"] if plan.verify_gpus else []
    argv += [f"--kernels={plan.verify_kernels}"] if plan.verify_kernels else []
    variables = {"HIDL_WORLD_SIZE": str(_RANKS)}
    if plan.mpi == "openmpi":
        variables |= OPEN_MPI_AS_ROOT
    elif plan.mpi == "mpich":
        variables |= MPICH_ON_ONE_HOST
    return InstallStep(f"verify on {_RANKS} MPI ranks", tuple(map(str, argv)), variables)


def run(plan: InstallPlan, log: Path) -> list[dict[str, Any]]:
    """Verify the plan's prefix and return the checks, all of which hold.

    Raises ``BuildFailed`` that names the checks that failed, or says how the verification ended without a report.
    """
    verification = step(plan)
    status, said = 0, ""
    log_command(log, verification.argv)
    try:
        process.run(
            verification.argv,
            cwd=plan.prefix,
            env=_environment(plan.prefix, os.environ) | dict(verification.variables),
            timeout=_TIMEOUT_SECONDS,
            log=log,
        )
    except ProcessFailed as failure:
        status, said = failure.status, failure.output.strip()
    checks = read_checks(report(plan.prefix))
    failed = [check for check in checks or () if not check["ok"]]
    if status == 0 and checks and not failed:
        return checks
    why = [f"  {check['name']}: {check['detail']}" for check in failed] or [_end(said) or "it left no report"]
    raise BuildFailed(
        "\n".join([f"stack {plan.stack} is installed, but does not pass its verification", *why]),
        hint=f"nothing was published; the whole output is in {log}",
    )


def report(prefix: Path) -> Path:
    """Where the ranks leave what they found."""
    return prefix / "verification.json"


def read_checks(file: Path) -> list[dict[str, Any]] | None:
    """The checks of a report; None where there is none that can be understood."""
    try:
        document = read_json(file)
        if document["schema"] != SCHEMA:
            return None
        return [{"name": str(c["name"]), "ok": c["ok"] is True, "detail": str(c["detail"])} for c in document["checks"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _end(output: str) -> str:
    """The last lines of what the ranks said: where an exception names itself."""
    return "\n".join(f"  {line}" for line in output.splitlines()[-_LINES:])


def _environment(prefix: Path, environ: Mapping[str, str]) -> dict[str, str]:
    activated = Installation.at(prefix).environment(environ)
    return {name: value for name, value in activated.items() if not name.startswith(_FOREIGN)}

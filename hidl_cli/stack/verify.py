"""Verify an installation by running ``hidl_workloads.verify`` on two MPI ranks.

This module runs the check on the local machine with the stack's MPI library. ``hidl_cli.runs.verification`` runs it in
a job with the site's MPI library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hidl_cli import batch_systems, process
from hidl_cli.documents import read_json
from hidl_cli.errors import BuildFailed, ProcessFailed
from hidl_cli.mpi import MPICH_ON_ONE_HOST
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.order import InstallStep, Progress, log_command

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.plan import InstallPlan


SCHEMA = "hidl.verification/1"

_RANKS = 2
_TIMEOUT_SECONDS = 600.0
_LINES = 12
#: A module that consists of a single file.
_MODULE = re.compile(r"([A-Za-z_]\w*)(?:\.py|(?:\.[\w-]+)?\.so)")
#: Modules that packages install by mistake.
_NOT_TO_IMPORT = frozenset(("benchmarks", "conftest", "doc", "docs", "example", "examples", "setup", "test", "tests"))

# Variables set by a surrounding allocation, launcher or Python, which would confuse MPI or Python.
_FOREIGN = (
    *("PYTHON", "PMI", "HYDRA_", "MPI_LOCAL", "OMPI_", "PRTE_", "HIDL_WORLD_SIZE"),
    *(prefix for system in batch_systems.SYSTEMS.values() for prefix in system.variables),
)

# By default, Open MPI refuses to run as root or to start more ranks than cores. The verification needs two ranks on any
# machine, and does not measure their speed.
OPEN_MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass(frozen=True)
class Verified:
    """The checks that passed, and the details recorded in the manifest: the host, the job and the MPI library."""

    checks: tuple[Mapping[str, Any], ...]
    record: Mapping[str, Any]


def verification_place(site: Site) -> str:
    """Return where the site verifies installations: ``here``, ``job`` or ``skip``."""
    if site.install.verify is not None:
        return site.install.verify
    return "job" if site.default_mpi is not None and batch_systems.system(site.scheduler) is not None else "here"


class Verifier(Protocol):
    """Verifies that a newly installed prefix works."""

    def check(self) -> None:
        """Raise an error if the verification is impossible. This method is called before anything is installed."""

    def is_under_way(self, plan: InstallPlan) -> bool:
        """Return True if an interrupted command has filled the prefix and started its verification."""

    def __call__(self, plan: InstallPlan, log: Path) -> Verified:
        """Verify the prefix. Raises ``BuildFailed`` if a check fails."""


@dataclass(frozen=True)
class Here:
    """Verifies the prefix on this machine with the stack's MPI library."""

    progress: Progress

    def check(self) -> None:
        pass

    def is_under_way(self, plan: InstallPlan) -> bool:
        return False

    def __call__(self, plan: InstallPlan, log: Path) -> Verified:
        with self.progress.step(step(plan).title):
            checks = run(plan, log)
        mpi = library_record(plan.stack, plan.mpi, plan.mpi_version, checks)
        return Verified(tuple(checks), {"where": "here", "host": os.uname().nodename, "mpi": mpi})


@dataclass(frozen=True)
class Skipped:
    """Skips the verification, as requested by the site or the user."""

    progress: Progress

    def check(self) -> None:
        pass

    def is_under_way(self, plan: InstallPlan) -> bool:
        return False

    def __call__(self, plan: InstallPlan, log: Path) -> Verified:
        self.progress.say(f"{plan.stack}: NOT VERIFIED (skipped as requested)")
        return Verified((), {"where": "skip", "host": os.uname().nodename, "mpi": None})


def library_record(
    name: str, family: str, version: str | None, checks: Sequence[Mapping[str, Any]]
) -> dict[str, str | None]:
    """Describe the MPI library used in a verification. ``library`` is the file that the ranks loaded."""
    library = next((check["detail"] for check in checks if check["name"] == "one MPI library"), None)
    return {"name": name, "family": family, "version": version, "library": library}


def step(plan: InstallPlan) -> InstallStep:
    """Return the command that verifies the prefix."""
    prefix = plan.prefix
    mpi = [prefix / "bin" / "mpiexec", "-n", _RANKS, prefix / "bin" / "python", "-m", "hidl_workloads.verify"]
    argv = [*mpi, f"--imports={','.join(imports(plan))}", f"--report={report(prefix)}"]
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


def imports(plan: InstallPlan) -> list[str]:
    """Return the modules that must be importable: the stack's, and those in the packages that the user requires."""
    own = (module for name in plan.requirements for module in modules_of(plan.prefix, name))
    return list(dict.fromkeys([*plan.imports, *own]))


def modules_of(prefix: Path, package: str) -> list[str]:
    """Return an installed package's modules to import: the one with the package's name, or else all public ones.

    The list is empty if the package is not installed, for example because of its marker, or has no modules.
    """
    from importlib.metadata import distributions

    found: set[str] = set()
    for distribution in distributions(name=package, path=[*map(str, prefix.glob("lib/python*/site-packages"))]):
        for file in distribution.files or ():
            first, second = [*file.parts, ""][:2]
            if matching := _MODULE.fullmatch(first) if not second else None:
                found.add(matching[1])
            elif second == "__init__.py" and first.isidentifier():
                found.add(first)
    public = sorted(name for name in found if not name.startswith("_") and name not in _NOT_TO_IMPORT)
    return [name for name in public if _plain(name) == _plain(package)] or public


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "", name).lower()


def run(plan: InstallPlan, log: Path) -> list[dict[str, Any]]:
    """Verify the prefix and return the checks that passed.

    Raises ``BuildFailed`` with the failed checks, or with the end of the output if there is no report.
    """
    verification = step(plan)
    status, output = 0, ""
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
        status, output = failure.status, failure.output.strip()
    checks = read_checks(report(plan.prefix))
    failed = [check for check in checks or () if not check["ok"]]
    if status == 0 and checks and not failed:
        return checks
    why = [f"  {check['name']}: {check['detail']}" for check in failed] or [
        "\n".join(f"  {line}" for line in output.splitlines()[-_LINES:]) or "no report was written"
    ]
    raise BuildFailed(
        "\n".join([f"stack {plan.stack} was installed but failed its verification", *why]),
        hint=f"nothing was published; the full output is in {log}",
    )


def report(prefix: Path) -> Path:
    """Return the path of the report written by the ranks."""
    return prefix / "verification.json"


def read_checks(file: Path) -> list[dict[str, Any]] | None:
    """Read the checks of a report. Returns None if it is missing or invalid."""
    try:
        document = read_json(file)
        if document["schema"] != SCHEMA:
            return None
        return [{"name": str(c["name"]), "ok": c["ok"] is True, "detail": str(c["detail"])} for c in document["checks"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _environment(prefix: Path, environ: Mapping[str, str]) -> dict[str, str]:
    activated = Installation.at(prefix).environment(environ)
    return {name: value for name, value in activated.items() if not name.startswith(_FOREIGN)}

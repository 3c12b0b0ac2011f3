"""The proof that an installation works: two MPI ranks of the very stack, checked by ``hidl_workloads.verify``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import process
from hidl_cli.documents import read_json
from hidl_cli.errors import BuildFailed, ProcessFailed
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.providers import Step, log_command

if TYPE_CHECKING:
    from hidl_cli.stack.plan import InstallPlan

SCHEMA = "hidl.verification/1"

_RANKS = 2
_TIMEOUT_SECONDS = 600.0
_LINES = 12

# What would tell MPI or Python of another world: a surrounding allocation, another launcher, another Python.
_FOREIGN = ("PYTHON", "PMI", "SLURM_", "HYDRA_", "MPI_LOCAL", "OMPI_", "PRTE_", "HIDL_WORLD_SIZE")

# Open MPI starts nothing as root, nor more ranks than there are cores, unless it is told that this is meant. Here it
# is: the verification asks for two ranks whatever the machine, and they only say whether they work.
OPEN_MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def step(plan: InstallPlan) -> Step:
    """The command that verifies the plan's prefix."""
    prefix = plan.prefix
    mpi = [prefix / "bin" / "mpiexec", "-n", _RANKS, prefix / "bin" / "python", "-m", "hidl_workloads.verify"]
    argv = [*mpi, f"--imports={','.join(plan.imports)}", f"--report={_report(prefix)}"]
    argv += [f"--mpi={plan.mpi_place}"] if plan.mpi_place else []
    argv += [f"--modules={','.join(plan.verify_modules)}"] if plan.verify_modules else []
    variables = {"HIDL_WORLD_SIZE": str(_RANKS), **(OPEN_MPI_AS_ROOT if plan.mpi == "openmpi" else {})}
    return Step(f"verify on {_RANKS} MPI ranks", tuple(map(str, argv)), variables)


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
    checks = _checks(_report(plan.prefix))
    failed = [check for check in checks or () if not check["ok"]]
    if status == 0 and checks and not failed:
        return checks
    why = [f"  {check['name']}: {check['detail']}" for check in failed] or [_end(said) or "it left no report"]
    raise BuildFailed(
        "\n".join([f"stack {plan.stack} is installed, but does not pass its verification", *why]),
        hint=f"nothing was published; the whole output is in {log}",
    )


def _report(prefix: Path) -> Path:
    return prefix / "verification.json"


def _checks(report: Path) -> list[dict[str, Any]] | None:
    """The checks of the report; None where there is none that can be understood."""
    try:
        document = read_json(report)
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

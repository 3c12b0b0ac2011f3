"""Verify an installation in a job, on compute nodes and with the site's MPI library and launcher.

A check on the login node would not test the MPI library that runs use, and some sites forbid ranks there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.errors import BuildFailed, InvalidInput, SubmitRefused, UsageError
from hidl_cli.launch.hostlist import fold
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.library import launcher_for, library_for
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.launch.placement import Placement, bind_to_cores, longest
from hidl_cli.mpi import Library
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.launch_plan import Plan, create_run
from hidl_cli.plan.planning import ResolvedOptions, make_plan
from hidl_cli.plan.workload import Parameter, Program, StackChoice, Workload
from hidl_cli.record import Run, State, Status, job_id
from hidl_cli.redaction import redact_document
from hidl_cli.runs.conclude import error_for
from hidl_cli.runs.follow import follow, scheduler_of
from hidl_cli.schedulers import scheduler_for
from hidl_cli.schedulers.decision import read_status
from hidl_cli.site.schema import Site
from hidl_cli.stack import verify
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.verify import Verified


@dataclass(frozen=True)
class Provenance:
    """The conditions under which a run's results were obtained: its plan, its hosts, and its package versions."""

    plan: Plan
    hosts: tuple[str, ...]
    packages: Mapping[str, str]


def differences(before: Provenance, after: Provenance) -> tuple[str, ...]:
    """Describe how the provenance of two comparable runs differs."""
    old, new = before.plan, after.plan
    found = [
        f"{what}: {was or 'none'} → {now or 'none'}"
        for what, was, now in (
            ("site", old.site, new.site),
            ("partition", old.partition, new.partition),
            ("launcher", old.launcher, new.launcher),
            ("lock", old.lock[:12], new.lock[:12]),
            ("MPI", format_mpi(old), format_mpi(new)),
            ("hosts", fold_or_join(before.hosts), fold_or_join(after.hosts)),
            ("modules", " ".join(old.modules), " ".join(new.modules)),
            ("hidl", old.hidl, new.hidl),
        )
        if was != now
    ]
    tuning = [redact_document({setting.name: setting.value for setting in plan.tuning}) for plan in (old, new)]
    variables = [redact_document(_variables(plan)) for plan in (old, new)]
    return (
        *found,
        *_changed("", *tuning),
        *_changed("environment variable ", *variables),
        *_changed("version of ", before.packages, after.packages),
    )


def _variables(plan: Plan) -> dict[str, str]:
    """Return the environment variables of a run that neither ``--tune`` nor the MPI library sets."""
    tuned = {setting.name for setting in plan.tuning}
    return {
        name: value
        for name, value in plan.environment.items()
        if name not in tuned and plan.mpi.environment.get(name) != value
    }


def fold_or_join(hosts: tuple[str, ...]) -> str:
    """Fold hosts into an expression, or join them with commas if any of them is not a host name."""
    try:
        return fold(hosts)
    except InvalidInput:
        return ",".join(hosts)


def format_mpi(plan: Plan) -> str:
    """Format the family, version and origin of the MPI library in a plan."""
    version = f" {plan.mpi.version}" if plan.mpi.version else ""
    whose = "of the stack" if plan.mpi_of_the_stack else f"{plan.mpi.name} of the site"
    return f"{plan.mpi.family}{version} ({whose})"


def _changed(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [f"{what}{name}: {before.get(name, 'not set')} → {after.get(name, 'not set')}" for name in names]


_MINUTES = 15.0
#: File in an unpublished installation prefix that contains the directory of the run that verifies the installation.
_MARK = "verification-run"


@dataclass(frozen=True)
class JobVerification:
    """A verifier that checks installations in jobs with the options ``job``; ``tell`` receives progress messages.

    An interrupt leaves the job in the queue, and the next call for the same installation waits for it.
    """

    site: Site
    job: AllocationOptions
    tell: Callable[[str], None]

    def check(self) -> None:
        """Raise an error before the installation if the job could not be submitted afterwards."""
        if (program := scheduler_for(self.site).submits_with) and shutil.which(program) is None:
            raise UsageError(
                f"site {self.site.name} verifies installations in a job: {program} not found on this host",
                hint="install on a login node of the site, or use --verify here or --verify skip",
            )
        plan = self._plan("mpi", Library("mpi", "mpich"), Installation.at(Path("/")), {})
        if plan.missing:
            raise SubmitRefused(
                f"site {self.site.name} requires {' and '.join(plan.missing)} for the job that verifies installations",
                hint=f"add {plan.missing[0]} NAME, or use --verify here or --verify skip",
            )

    def is_under_way(self, plan: InstallPlan) -> bool:
        """Return whether the prefix is installed and its verification has started."""
        run = _submitted_run(plan)
        if run is None:
            return False
        state = read_status(run).state
        return state is State.COMPLETED or not state.is_final

    def __call__(self, plan: InstallPlan, log: Path) -> Verified:
        """Verify the prefix; raises ``BuildFailed`` with the failed checks or the job's error."""
        run = _submitted_run(plan) if self.is_under_way(plan) else None
        if run is None:
            run = self._submit(plan)
        else:
            self.tell(f"waiting for the verification that is already running: run {run.id}")
        status = follow([run], tell=self._teller())[0]
        (plan.prefix / _MARK).unlink(missing_ok=True)
        checks = verify.read_checks(_report(plan))
        failed = [check for check in checks or () if not check["ok"]]
        if failed or status.state is not State.COMPLETED or not checks:
            raise BuildFailed(
                _failure(plan, run, status, failed), hint=f"nothing was published; the job is in {run.directory}"
            )
        return Verified(tuple(checks), self._record(plan, run, status, checks))

    def _submit(self, plan: InstallPlan) -> Run:
        own = Library(plan.stack, plan.mpi, version=plan.mpi_version, prefix=str(plan.prefix))
        installed = Installation(plan.prefix, {"lock": {"digest": plan.lock.digest}})
        parameters = {
            "imports": ",".join(verify.imports(plan)),
            "modules": ",".join(plan.verify_modules),
            "gpus": ",".join(plan.verify_gpus),
            "kernels": plan.verify_kernels,
            "report": str(_report(plan)),
        }
        _report(plan).unlink(missing_ok=True)
        launch = self._plan(plan.stack, own, installed, parameters)
        run = create_run(launch, job_script(launch), root=paths.user_state() / "verifications")
        # Write this before the submission, so that the job is found even after an interrupt.
        (plan.prefix / _MARK).write_text(f"{run.directory}\n", encoding="utf-8")
        scheduler_of(launch).submit(run)
        self.tell(f"verifying in a job: run {run.id}, {launch.mpi.name} through {launch.launcher}")
        return run

    def _plan(self, stack: str, own: Library, installed: Installation, parameters: Mapping[str, str]) -> Plan:
        """Return a launch plan with two ranks, or with one rank per node if the partition requires several nodes."""
        site, partition = self.site, self.site.partition(self.job.partition)
        library = library_for(site, own, None)
        nodes = partition.min_nodes if partition else 1
        per_node = 2 if nodes == 1 else 1
        placements = bind_to_cores(site, [Placement.of_nodes(nodes, per_node)], partition=self.job.partition)
        values = {**parameters, **({"outside": str(installed.prefix)} if library.name != own.name else {})}
        options = ResolvedOptions(
            site=site,
            workload=Workload(
                name="verify",
                title="verification of an installation",
                program=Program(module="hidl_workloads.verify", threads=True),
                stacks=[StackChoice(stack=stack)],
                parameters={name: Parameter(type="str", default="") for name in values},
            ),
            parameters=values,
            stack=stack,
            installation=installed,
            library=library,
            launcher=launcher(launcher_for(site, library, None)),
        )
        job = replace(self.job, gpus_per_node=0, time=self.job.time_limit or self._minutes(nodes) * 60)
        return make_plan(options, unit="ranks", placements=placements, repetitions=1, job=job)

    def _minutes(self, nodes: int) -> float:
        most = longest(self.site.partition(self.job.partition), nodes)
        return _MINUTES if most is None else min(_MINUTES, most / 60)

    def _record(self, plan: InstallPlan, run: Run, status: Status, checks: list[dict[str, Any]]) -> dict[str, Any]:
        launch = run.document("plan") or {}
        return {
            "where": "job",
            "host": ", ".join(status.hosts),
            "job": job_id(run.document("job") or {}, status),
            "run": run.id,
            "launcher": launch.get("launcher"),
            "mpi": verify.library_record(
                launch["mpi"]["name"], launch["mpi"]["family"], launch["mpi"].get("version"), checks
            ),
        }

    def _teller(self) -> Callable[[Run, Status], None]:
        seen: list[str] = []

        def tell(_: Run, status: Status) -> None:
            text = f"{status.state.value.lower()}{f': {status.reason}' if status.reason else ''}"
            if text not in seen and not status.state.is_final:
                seen.append(text)
                self.tell(f"the verification job is {text}")

        return tell


def _report(plan: InstallPlan) -> Path:
    return verify.report(plan.prefix)


def _submitted_run(plan: InstallPlan) -> Run | None:
    """Return the run that was submitted to verify the prefix, or None if there is none."""
    try:
        directory = Path((plan.prefix / _MARK).read_text(encoding="utf-8").strip())
    except OSError:
        return None
    return Run(directory) if (directory / "plan.json").is_file() else None


def _failure(plan: InstallPlan, run: Run, status: Status, failed: list[dict[str, Any]]) -> str:
    lines = [f"stack {plan.stack} is installed but failed its verification"]
    if failed:
        lines += [f"  {check['name']}: {check['detail']}" for check in failed]
    elif status.state is not State.COMPLETED:
        lines += [f"  {line}" for line in error_for(run, status).message.splitlines()]
    else:
        lines.append("  the job wrote no report")
    return "\n".join(lines)

"""Examining compute nodes: one short job, or none where hidl runs in one already."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from hidl_cli.doctor import job_facts, job_plan
from hidl_cli.doctor.examine import Examined
from hidl_cli.doctor.job_plan import Examination
from hidl_cli.doctor.rules import launches
from hidl_cli.errors import UsageError
from hidl_cli.launch.allocation import Asked
from hidl_cli.record.run import Run, create
from hidl_cli.record.state import State, Status
from hidl_cli.runs.follow import follow, scheduler_of
from hidl_cli.schedulers.local import Local
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.site.probes.slurm import mpi_types
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation
from hidl_workloads.doctor import node
from hidl_workloads.doctor.finding import worst_first

#: What tells that this process is in a job of that scheduler already.
_IN_A_JOB = {"slurm": "SLURM_JOB_ID", "lsf": "LSB_JOBID"}
_TAIL = 500


def examine_nodes(
    site: Site,
    installation: Installation | None,
    count: int,
    *,
    asked: Asked | None = None,
    mpi: str | None = None,
    host: Host | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Examined:
    """Let ``count`` compute nodes tell of themselves, and start a small MPI program on them with each launcher.

    ``installation``: the stack; None: no launcher is tried. ``asked``: partition, account and so on, as for ``hidl
    run``. ``tell`` gets lines of progress. An interrupt ends the job. Raises ``UsageError`` where the site demands
    more options, and what ``job_plan.examination`` and the scheduler's ``submit`` raise.
    """
    this = host or ThisHost()
    inside = is_inside(site, this.environment)
    planned = job_plan.examination(
        site,
        installation,
        count,
        asked or Asked(),
        mpi=mpi,
        types=mpi_types(this) if site.scheduler == "slurm" and "srun" in site.launchers else (),
        cores=_cores_of_the_allocation(this.environment, count) if inside else None,
    )
    if planned.plan.missing and not inside:
        raise UsageError(
            f"site {site.name} demands {' and '.join(planned.plan.missing)} of every job",
            hint=f"{planned.plan.missing[0]} NAME; or call hidl doctor --nodes from within an allocation (salloc)",
        )
    stack = f" with stack {planned.plan.stack}" if planned.plan.stack else ""
    tell(f"looking at {count} node(s){stack}: {'in this allocation' if inside else 'a job of its own'}")
    run = create(planned.plan, planned.script(), root=job_plan.root())
    (run.directory / "probe.sh").write_text(planned.probe(), encoding="utf-8")
    status = _run(run, planned, inside=inside, tell=tell)
    facts = job_facts.read(run.directory, planned, outside=node.probe())
    found = [*launches.of_nodes(facts), *launches.findings(facts)]
    unknown = _unknown(run, status, facts)
    if not unknown and all(finding.severity == "info" for finding in found):
        shutil.rmtree(run.directory, ignore_errors=True)
    else:
        tell(f"what the job printed is in {run.directory}")
    return Examined(tuple(worst_first(dict.fromkeys(found))), unknown)


def is_inside(site: Site, environment: Mapping[str, str]) -> bool:
    """Does this process run in a job of the site's scheduler?"""
    return _IN_A_JOB.get(site.scheduler or "", "") in environment


def _cores_of_the_allocation(environment: Mapping[str, str], count: int) -> int | None:
    """The processors that the Slurm job that we are in has on each node; None where that is not told.

    Raises ``UsageError`` where it has fewer nodes than ``count``.
    """
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    if nodes.isdecimal() and int(nodes) < count:
        raise UsageError(f"this allocation has {nodes} node(s), not {count}", hint=f"--nodes {nodes}, or a larger one")
    each = re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return min(map(int, each), default=None)


def _run(run: Run, planned: Examination, *, inside: bool, tell: Callable[[str], None]) -> Status:
    """Run the job's script to its end, here or through the scheduler."""
    if inside:
        local, began = Local(), time.monotonic()
        local.submit(run, time_limit=None)
        try:
            while not (status := local.poll([run])[0]).state.is_final:
                time.sleep(local.pause(time.monotonic() - began))
        except KeyboardInterrupt:
            local.cancel(run, state=State.INTERRUPTED)
            raise
        return status
    scheduler_of(planned.plan).submit(run, time_limit=planned.plan.allocation.time_limit)
    seen: list[str] = []

    def telling(_: Run, status: Status) -> None:
        words = f"{status.state.value.lower()}{f': {status.reason}' if status.reason else ''}"
        if words not in seen and not status.state.is_final:
            seen.append(words)
            tell(f"examining job {words}")

    def interrupted(run: Run, _: KeyboardInterrupt) -> None:
        scheduler_of(planned.plan).cancel(run, state=State.INTERRUPTED)

    return follow([run], tell=telling, interrupted=interrupted)[0]


def _unknown(run: Run, status: Status, facts: job_facts.JobFacts) -> tuple[str, ...]:
    """What the job did not come to."""
    if status.state is State.COMPLETED:
        return ()
    left = [tried.attempt.words for tried in facts.tried if tried.status is None]
    text = ""
    with suppress(OSError):
        text = " ".join(run.stderr.read_text(encoding="utf-8", errors="replace")[-_TAIL:].split())
    what = f"the examining job ended as {status.state.value}{f' ({status.reason})' if status.reason else ''}"
    return (
        f"{what} before it had tried {', '.join(left)}" if left else what,
        *([f"it said: {text}"] if text else []),
    )

"""Examine compute nodes in one short job, or in the current allocation."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from hidl_cli import batch_systems
from hidl_cli.doctor.examine import Examined
from hidl_cli.doctor.nodes import hosts, launches
from hidl_cli.doctor.nodes.facts import JobFacts, read_facts
from hidl_cli.doctor.nodes.plan import Examination, plan_examination, root
from hidl_cli.errors import SubmitRefused, UsageError
from hidl_cli.launch.allocation import Asked
from hidl_cli.launch.hosts import Hosts
from hidl_cli.plan.launch_plan import create_run
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.runs.follow import follow, scheduler_of
from hidl_cli.schedulers.local import Local
from hidl_cli.schedulers.ssh.needs import UnusableHosts
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.site.probes.slurm import mpi_types
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation
from hidl_workloads.doctor import node
from hidl_workloads.doctor.finding import worst_first

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
    """Collect the facts of ``count`` compute nodes, and start a small MPI program on them with each launcher.

    Of hosts without a scheduler, those that cannot be used are findings, and the others are examined.

    ``installation``: the stack; None: no launcher is tried. ``asked``: partition, account and so on, as for ``hidl
    run``. ``tell`` gets lines of progress. An interrupt ends the job. Raises ``SubmitRefused`` if the site requires
    more options, and what ``plan_examination`` and the scheduler's ``submit`` raise.
    """
    this = host or ThisHost()
    inside = is_inside(site, this.environment)
    planned = plan_examination(
        site,
        installation,
        count,
        asked or Asked(),
        mpi=mpi,
        types=mpi_types(this) if site.scheduler == "slurm" and "srun" in site.launchers else (),
        cores=_cores_of_the_allocation(this.environment, count) if inside else None,
    )
    if planned.plan.missing and not inside:
        raise SubmitRefused(
            f"site {site.name} requires {' and '.join(planned.plan.missing)}",
            hint=f"{planned.plan.missing[0]} NAME; or run hidl doctor --nodes inside an allocation (salloc)",
        )
    stack = f" with stack {planned.plan.stack}" if planned.plan.stack else ""
    tell(f"examining {count} node(s){stack}: {'in this allocation' if inside else 'in a job'}")
    run = create_run(planned.plan, planned.script(), root=root())
    (run.directory / "probe.sh").write_text(planned.probe(), encoding="utf-8")
    try:
        status = _run(run, planned, inside=inside, tell=tell)
    except UnusableHosts as error:
        shutil.rmtree(run.directory, ignore_errors=True)
        unusable = Examined(tuple(hosts.RULES.findings(error.troubles)))
        rest = _without(planned.plan.allocation.hosts, error, asked)
        if not rest.hosts:
            return unusable
        return unusable + examine_nodes(
            site, installation, len(rest.hosts.names), asked=rest, mpi=mpi, host=host, tell=tell
        )
    facts = read_facts(run.directory, planned, outside=node.probe())
    found = [*launches.find_on_nodes(facts), *launches.find_in_launches(facts)]
    unknown = _unknown(run, status, facts)
    if not unknown and all(finding.severity == "info" for finding in found):
        shutil.rmtree(run.directory, ignore_errors=True)
    else:
        tell(f"output of the job: {run.directory}")
    return Examined(tuple(worst_first(dict.fromkeys(found))), unknown)


def _without(named: tuple[str, ...], error: UnusableHosts, asked: Asked | None) -> Asked:
    """The request for the hosts that can be used; ``hosts`` is None if none is left."""
    asked = asked or Asked()
    bad = {each.host for each in error.troubles}
    left = tuple(name for name in named if name not in bad)
    slots = asked.hosts.slots if asked.hosts else {}
    return replace(asked, hosts=Hosts(left, slots) if left else None)


def is_inside(site: Site, environment: Mapping[str, str]) -> bool:
    """Whether this process runs in a job of the site's scheduler."""
    system = batch_systems.system(site.scheduler)
    return system is not None and system.job_id in environment


def _cores_of_the_allocation(environment: Mapping[str, str], count: int) -> int | None:
    """The processors per node of the current Slurm job; None if unknown.

    Raises ``UsageError`` if it has fewer nodes than ``count``.
    """
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    if nodes.isdecimal() and int(nodes) < count:
        raise UsageError(
            f"this allocation has {nodes} node(s), not {count}", hint=f"--nodes {nodes}, or a larger allocation"
        )
    each = re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return min(map(int, each), default=None)


def _run(run: Run, planned: Examination, *, inside: bool, tell: Callable[[str], None]) -> Status:
    """Run the job script to its end, here or through the scheduler."""
    if inside:
        local, began = Local(), time.monotonic()
        local.submit(run)
        try:
            while not (status := local.poll([run])[0]).state.is_final:
                time.sleep(local.pause(time.monotonic() - began))
        except KeyboardInterrupt:
            local.cancel(run, state=State.INTERRUPTED)
            raise
        return status
    scheduler_of(planned.plan).submit(run)
    seen: list[str] = []

    def report_state(_: Run, status: Status) -> None:
        words = f"{status.state.value.lower()}{f': {status.reason}' if status.reason else ''}"
        if words not in seen and not status.state.is_final:
            seen.append(words)
            tell(f"examining job {words}")

    def interrupted(run: Run, _: KeyboardInterrupt) -> None:
        scheduler_of(planned.plan).cancel(run, state=State.INTERRUPTED)

    return follow([run], tell=report_state, interrupted=interrupted)[0]


def _unknown(run: Run, status: Status, facts: JobFacts) -> tuple[str, ...]:
    """What the job did not finish."""
    if status.state is State.COMPLETED:
        return ()
    left = [tried.attempt.words for tried in facts.tried if tried.status is None]
    text = ""
    with suppress(OSError):
        text = " ".join(run.stderr.read_text(encoding="utf-8", errors="replace")[-_TAIL:].split())
    what = f"the job ended as {status.state.value}{f' ({status.reason})' if status.reason else ''}"
    return (
        f"{what} before it tried {', '.join(left)}" if left else what,
        *([f"output: {text}"] if text else []),
    )

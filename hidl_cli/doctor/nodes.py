"""Examine compute nodes, and the launchers that start ranks on them."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hidl_cli import batch_systems, paths
from hidl_cli.batch_systems import SSH
from hidl_cli.doctor.examine import DoctorReport
from hidl_cli.errors import SubmitRefused, UsageError
from hidl_cli.launch.hosts import Hosts
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Gpus, Request
from hidl_cli.launch.launchers.srun import mpi_type
from hidl_cli.launch.library import library_for, site_tuning
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.launch.placement import Placement, allocate, bind_to_cores, missing
from hidl_cli.launchers import starts
from hidl_cli.mpi import Library
from hidl_cli.plan.job_script import values_of
from hidl_cli.plan.launch_plan import Plan, Step, create_run
from hidl_cli.plan.planning import SET_BY_THE_SCRIPT, new_id, shared_environment
from hidl_cli.plan.prepare import own_library
from hidl_cli.plan.workload import Program, StackChoice, Workload
from hidl_cli.record import Run, State, Status
from hidl_cli.redaction import shown_end, shown_output
from hidl_cli.runs.follow import follow, scheduler_of
from hidl_cli.schedulers import scheduler_for
from hidl_cli.schedulers.local import InAllocation
from hidl_cli.schedulers.ssh.guards import Trouble, UnusableHosts
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.site.probes.slurm import mpi_types
from hidl_cli.site.schema import Site
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.schema import Stack
from hidl_cli.templates import render_script
from hidl_cli.tuning.judge import Layer, Setting
from hidl_cli.tuning.layers import merge_layers
from hidl_workloads.doctor import node, node_probe, nodes, ranks
from hidl_workloads.doctor.finding import Evidence, Finding, Rules, worst_first
from hidl_workloads.doctor.node import Node
from hidl_workloads.doctor.nodes import Nodes
from hidl_workloads.doctor.ranks import Rank, World

RULES: Rules[tuple[Trouble, ...]] = Rules()


@RULES.rule(
    "HD055",
    "A host cannot be used",
    severity="error",
    why="Runs on this host are refused before anything starts.",
)
def unusable(troubles: tuple[Trouble, ...]) -> Iterator[Evidence]:
    """Report each host of a run that cannot be used."""
    for each in troubles:
        yield Evidence(each.what, each.fix.replace("{host}", each.host), each.host)


# The job that examines the nodes: the launches that it tries, and its script.


_PROGRAM = "hidl_workloads.doctor.tries"
_RANKS_PER_NODE = 2  # with one rank per node, ranks that share cores would not be detected
PATIENCE_SECONDS = 20
_MINUTES = 5.0


@dataclass(frozen=True)
class Attempt:
    """A launch to try.

    ``mpi_type`` is the value of ``srun --mpi=``. ``is_default`` means that hidl launches the site's runs this way.
    """

    launcher: str
    mpi_type: str | None
    is_default: bool
    ranks: int
    cores_per_rank: int | None

    @property
    def label(self) -> str:
        """The launch, as shown in messages; for example, ``srun --mpi=pmi2``."""
        return f"{self.launcher} --mpi={self.mpi_type}" if self.mpi_type else self.launcher


@dataclass(frozen=True)
class Examination:
    """The job that examines nodes. ``attempts`` is in the same order as the plan's steps."""

    plan: Plan
    attempts: tuple[Attempt, ...]
    ssh: bool
    nodes: int

    @property
    def prefix(self) -> str | None:
        """The stack's prefix, which the nodes must be able to access, or None if there is no stack."""
        return self.plan.prefix or None

    def script(self) -> str:
        """Render the job script."""
        names = {attempt.launcher for attempt in self.attempts}
        values = {"patience": PATIENCE_SECONDS, "nodes": self.nodes, "ssh": self.ssh, "open_mpi": "mpirun" in names}
        return render_script("doctor.sh.j2", values_of(self.plan) | values)

    def probe(self) -> str:
        """Render the script that each node runs. It is self-contained because nodes may not see hidl's files."""
        program = Path(node_probe.__file__).read_text(encoding="utf-8")
        return render_script("probe.sh.j2", {"prefix": self.prefix, "program": program})


def plan_examination(
    site: Site,
    installation: Installation | None,
    nodes: int,
    job: AllocationOptions,
    *,
    mpi: str | None = None,
    types: tuple[str, ...] = (),
    cores: int | None = None,
) -> Examination:
    """Plan the job that examines compute nodes.

    Args:
        site: Site of the nodes.
        installation: Installed stack whose launchers are tried, or None to try no launcher.
        nodes: Number of nodes.
        job: Requested resources.
        mpi: Site MPI library to use instead of the stack's, as for ``hidl run``.
        types: Types listed by ``srun --mpi=list``.
        cores: Number of cores per node in the current allocation (default: all cores).

    Raises:
        HidlError: If the job cannot be planned; see ``scheduler_for``, ``allocate`` and ``bind_to_cores``.
    """
    batch = scheduler_for(site)
    cores = cores or site.node_type(job.partition).cores or _RANKS_PER_NODE
    per_node = min(_RANKS_PER_NODE, cores)
    (placement,) = bind_to_cores(
        site, [Placement.of_nodes(nodes, per_node)], partition=job.partition, threads=max(1, cores // per_node)
    )
    job = replace(job, time=job.time_limit or (_MINUTES * 60 if site.scheduler != "local" else None))
    allocation = allocate(site, "hidl-doctor", [placement], job)
    gpus = site.node_type(job.partition).gpus or 0
    library: Library | None = None
    tuning: tuple[Setting, ...] = ()
    environment: dict[str, str] = {}
    attempts: tuple[Attempt, ...] = ()
    steps: tuple[Step, ...] = ()
    if installation is not None:
        stack = load_stack(installation.prefix.parent.name)
        library = library_for(site, own_library(installation, stack), mpi, gpus=gpus > 0)
        tuning = _tuning(site, library, stack, gpus=gpus > 0)
        environment = shared_environment(site, library, installation, placement, tuning)
        attempts = tuple(_attempts(site, library, placement, types))
        default = Request(
            placement,
            (str(installation.python), "-m", _PROGRAM),
            library,
            environment=environment,
            forward=SET_BY_THE_SCRIPT,
            on_one_host=site.scheduler == "local",
            through_ssh=site.scheduler == SSH,
        )
        steps = tuple(_steps(default, gpus, attempts))
    now = datetime.now(timezone.utc)
    name = installation.prefix.parent.name if installation else ""
    plan = Plan(
        run=new_id("doctor", now),
        created=now.isoformat(timespec="seconds"),
        site=site.name,
        scheduler=batch.name,
        launcher=attempts[0].launcher if attempts else "none",
        partition=job.partition or site.default_partition,
        allocation=allocation,
        header=batch.header(allocation, site.policies),
        stack=name,
        prefix=str(installation.prefix) if installation else "",
        activate=str(installation.activate) if installation else "/dev/null",
        lock=installation.lock if installation else "",
        mpi=library or Library("none", "mpich", prefix=""),
        modules=(*site.policies.modules, *(library.modules if library else ())),
        tuning=tuning,
        workload=_workload(name or "none"),
        parameters={},
        unit="ranks",
        steps=steps,
        environment=environment,
        target=None,
        baseline="single",
        until_settled=False,
        charge=None,
        missing=tuple(missing(site.policies, allocation)),
        warnings=(),
    )
    return Examination(plan, attempts, "mpirun_rsh" in site.launchers and nodes > 1, nodes)


def root() -> Path:
    """Return the directory that contains all examinations."""
    return paths.user_state() / "doctor"


def _tuning(site: Site, library: Library, stack: Stack, *, gpus: bool) -> tuple[Setting, ...]:
    """Merge the site's and the stack's tuning in the same way as for a study, in which run times are compared."""
    layers = (
        Layer(f"site {site.name}", site_tuning(site, library, gpus=gpus)),
        Layer(f"stack {stack.name}", stack.tuning.get(library.family, {})),
    )
    return merge_layers(library, layers, gpus=gpus, compared=True)


def _workload(stack: str) -> Workload:
    return Workload(
        name="doctor",
        title="Examine nodes and launchers",
        program=Program(module=_PROGRAM),
        stacks=[StackChoice(stack=stack)],
    )


def _attempts(site: Site, library: Library, placement: Placement, types: tuple[str, ...]) -> Iterator[Attempt]:
    """Yield all of the site's launchers that support the library, including srun with each type that Slurm supports."""
    launchers = site.mpi[library.name].launchers if library.name in site.mpi else []
    bound = placement.threads_per_rank if placement.bind else None
    for name in launchers or site.launchers:
        if name not in site.launchers or not starts(name, library):
            continue
        default = mpi_type(library) if name == "srun" else None
        yield Attempt(name, default, True, placement.ranks, bound)
        for other in _distinct(types) if name == "srun" else ():
            if other != default:
                yield Attempt(name, other, False, placement.nodes, None)


def _distinct(types: tuple[str, ...]) -> Iterator[str]:
    """Yield the types, except for aliases and types that only Cray systems use."""
    for name in types:
        is_alias = name.startswith("pmix_v") and "pmix" in types
        if not is_alias and not name.startswith("cray"):
            yield name


def _steps(default: Request, gpus: int, attempts: tuple[Attempt, ...]) -> Iterator[Step]:
    """Yield a step for each attempt.

    Each launcher is tried with all ranks, and with one rank per node for other ``srun --mpi`` types than the default.
    """
    one_each = replace(default.placement, ranks_per_node=1, ranks=default.placement.nodes)
    for number, attempt in enumerate(attempts, start=1):
        placement = default.placement if attempt.is_default else one_each
        request = replace(
            default,
            placement=placement,
            mpi=default.mpi if attempt.is_default else replace(default.mpi, srun_mpi=attempt.mpi_type),
            hostfile=f"steps/{number}/hosts",
            gpus=Gpus.of(gpus, placement.ranks_per_node),
        )
        # timeout(1) starts the launch, and it cannot start a shell function such as ``status_from_stderr``.
        launch = replace(launcher(attempt.launcher).launch(request), status_on_stderr=False)
        yield Step(placement.ranks, 1, placement, launch, None)


# Facts that the job collects about nodes, launches and ssh connections between nodes.


_MAX_OUTPUT = 2000
#: Exit statuses of timeout(1) when it has ended the command with SIGTERM or SIGKILL.
TIMED_OUT = (124, 137)


@dataclass(frozen=True)
class LaunchResult:
    """The result of a launch: its exit status (None if it was not started), its output, and what its ranks reported.

    ``unfinished`` lists the ranks that did not return from MPI_Init.
    """

    attempt: Attempt
    status: int | None
    output: str = ""
    ranks: tuple[Rank, ...] = ()
    unfinished: tuple[Rank, ...] = ()


@dataclass(frozen=True)
class SshCheck:
    """The exit status and output of ssh from the job's first node, ``source``, to another node, ``target``."""

    source: str
    target: str
    status: int
    output: str = ""


@dataclass(frozen=True)
class JobFacts:
    """All facts collected by a job."""

    nodes: Nodes
    launches: tuple[LaunchResult, ...] = ()
    ssh: tuple[SshCheck, ...] = ()


def read_facts(directory: Path, examination: Examination, *, outside: Node | None) -> JobFacts:
    """Read the facts that the job wrote to ``directory``. ``outside`` is the host that hidl runs on."""
    hosts = tuple(_text(directory / "hosts").split())[: examination.nodes]
    memory = examination.plan.allocation.memory_gib
    requested = int(memory * 2**30) if memory else None
    times = _json(_text(directory / "asked.json")) or {}
    found = _nodes(_text(directory / "nodes.jsonl"), requested)
    nodes = Nodes(
        tuple(sorted(found, key=lambda node: hosts.index(node.host) if node.host in hosts else len(hosts))),
        hosts,
        times.get("began"),
        times.get("ended"),
        outside,
        " ".join(shown_output(_text(directory / "nodes.err")).split())[:_MAX_OUTPUT],
    )
    launches = (
        _launch_result(directory / "steps" / str(number), attempt)
        for number, attempt in enumerate(examination.attempts, start=1)
    )
    return JobFacts(nodes, tuple(launches), tuple(_ssh(directory / "ssh", hosts)))


def _nodes(lines: str, requested_memory: int | None) -> Iterator[Node]:
    """Parse node facts, ignoring other lines, which shell profiles may print."""
    for line in lines.splitlines():
        document = _json(line)
        if document is not None:
            with suppress(TypeError):
                yield Node.from_facts(document, wanted_memory=requested_memory)


def _launch_result(directory: Path, attempt: Attempt) -> LaunchResult:
    files = sorted((directory / "ranks").glob("*.json"))
    ranks = [rank for file in files if (rank := _rank(file)) is not None]
    status = _text(directory / "status").strip()
    return LaunchResult(
        attempt,
        int(status) if status.isdecimal() else None,
        shown_end(_text(directory / "stderr.log") + _text(directory / "stdout.log"), _MAX_OUTPUT).strip(),
        tuple(sorted((rank for rank in ranks if rank.size), key=lambda rank: (rank.rank, rank.host))),
        tuple(rank for rank in ranks if not rank.size),
    )


def _rank(file: Path) -> Rank | None:
    document = _json(_text(file))
    if document is not None:
        with suppress(TypeError, KeyError, IndexError):
            return Rank.from_json(document)
    return None


def _ssh(directory: Path, hosts: tuple[str, ...]) -> Iterator[SshCheck]:
    for host in hosts[1:]:
        status = _text(directory / f"{host}.status").strip()
        if status.isdecimal():
            output = shown_end(_text(directory / f"{host}.said"), _MAX_OUTPUT).strip()
            yield SshCheck(hosts[0], host, int(status), output)


def _json(text: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        document = json.loads(text)
        return document if isinstance(document, dict) else None
    return None


def _text(file: Path) -> str:
    """Read a file, or return an empty string if it is missing."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Rules for launches and ssh connections.


LAUNCH_RULES: Rules[JobFacts] = Rules()

_MAX_OUTPUT_IN_FINDING = 300


def find_on_nodes(facts: JobFacts) -> list[Finding]:
    """Return the findings about individual nodes and about differences between nodes."""
    return [
        *nodes.RULES.findings(facts.nodes),
        *(finding for each in facts.nodes.nodes for finding in node.RULES.findings(each)),
    ]


def find_in_launches(facts: JobFacts) -> list[Finding]:
    """Return the findings about launches, their ranks, and ssh.

    ``srun --mpi`` types that hidl would not use are only reported if they start singletons (ranks in separate worlds),
    with severity ``info``.
    """
    found = LAUNCH_RULES.findings(facts)
    for result in facts.launches:
        findings = ranks.RULES.findings(_world(result, facts)) if result.ranks or result.unfinished else []
        if result.attempt.is_default:
            found += findings
        else:
            found += [replace(finding, severity="info") for finding in findings if finding.rule == "HD001"]
    return found


@LAUNCH_RULES.rule(
    "HD006",
    "ssh to a node requires a password",
    severity="error",
    why="mpirun_rsh and, outside a scheduler, Hydra and PRRTE start their processes with ssh from the job's first "
    "node. If ssh prompts for a password or no sshd is running, the launch fails or hangs.",
)
def no_ssh(facts: JobFacts) -> Iterator[Evidence]:
    """Report an error if ``ssh -o BatchMode=yes`` from the first node to any other node fails."""
    for each in facts.ssh:
        if each.status != 0:
            last_line = each.output.splitlines()[-1] if each.output else f"ssh exited with status {each.status}"
            yield Evidence(f"from {each.source}: {last_line[:_MAX_OUTPUT_IN_FINDING]}", _fix_ssh(each), each.target)


@LAUNCH_RULES.rule(
    "HD052",
    "A launcher does not start the ranks",
    severity="error",
    why="Every run that uses it fails, or hangs until its time limit.",
)
def no_start(facts: JobFacts) -> Iterator[Evidence]:
    """Report an error if a default launch fails, times out, or does not start all ranks."""
    for result in facts.launches:
        attempt = result.attempt
        missing = attempt.ranks - len(result.ranks)
        if not attempt.is_default or result.status is None or (result.status == 0 and missing <= 0):
            continue
        failure = f"exited with status {result.status}"
        if result.status in TIMED_OUT:
            failure = "timed out"
        elif result.status == 0:
            failure = f"exited with status 0, but {missing} of {attempt.ranks} ranks did not report"
        if result.unfinished:
            failure += f"; {len(result.unfinished)} rank(s) did not return from MPI_Init"
        lines = [line.strip() for line in result.output.splitlines() if re.search("[a-z]", line)]  # without rulers
        output = " | ".join(lines[-3:])[-_MAX_OUTPUT_IN_FINDING:]
        yield Evidence(f"{failure}; output: {output or 'none'}", _fix_start(result, facts), attempt.label)


def _world(result: LaunchResult, facts: JobFacts) -> World:
    """Return a launch's ranks in the form required by the rules for ranks."""
    boots = {node.host: node.boot for node in facts.nodes.nodes if node.boot}
    outside = facts.nodes.outside
    if outside is not None and outside.boot:
        boots[outside.host] = outside.boot
    return World(
        result.ranks or result.unfinished,
        expected=result.attempt.ranks if result.ranks else None,
        cores_per_rank=result.attempt.cores_per_rank,
        launch=result.attempt.label,
        instead=_alternatives(result, facts),
        boots=boots,
    )


def _alternatives(result: LaunchResult, facts: JobFacts) -> tuple[str, ...]:
    """Return the labels of the successful launches other than this one."""
    return tuple(
        other.attempt.label
        for other in facts.launches
        if other is not result
        and other.status == 0
        and len(other.ranks) == other.attempt.ranks
        and all(rank.size == other.attempt.ranks for rank in other.ranks)
    )


def _fix_start(result: LaunchResult, facts: JobFacts) -> str:
    broken = dict.fromkeys(each.where for each in find_on_nodes(facts) if each.severity == "error" and each.where)
    if broken:
        return f"first fix {', '.join(filter(None, broken))}"
    alternatives = ", ".join(_alternatives(result, facts))
    return (
        f"use a launcher that works: {alternatives}" if alternatives else "check its output or try another --launcher"
    )


def _fix_ssh(each: SshCheck) -> str:
    output = each.output.lower()
    if "host key" in output:
        return f"ssh-keyscan {each.target} >> ~/.ssh/known_hosts (or the cluster's /etc/ssh/ssh_known_hosts)"
    if "permission denied" in output:
        return "ssh-keygen -t ed25519 -N '' && cat ~/.ssh/id_ed25519.pub >> ~/.ssh/authorized_keys"
    if each.status in TIMED_OUT or "timed out" in output or "refused" in output:
        return (
            f"on {each.target}, run: systemctl status sshd; until fixed, use --launcher srun or --exclude={each.target}"
        )
    return f"on {each.source}, run: ssh -v -o BatchMode=yes {each.target} true"


# The examination itself, in one short job or in the current allocation.


_TAIL = 500


def examine_nodes(
    site: Site,
    installation: Installation | None,
    count: int,
    *,
    job: AllocationOptions | None = None,
    mpi: str | None = None,
    host: Host | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> DoctorReport:
    """Examine compute nodes, and start a small MPI program on them with each launcher.

    On a site without a scheduler, unusable hosts are reported, and the others are examined. An interrupt cancels the
    job.

    Args:
        site: Site of the nodes.
        installation: Installed stack whose launchers are tried, or None to try no launcher.
        count: Number of nodes.
        job: Partition, account and other resources, as for ``hidl run``.
        mpi: The site's MPI library to use instead of the stack's.
        host: Host that hidl runs on (default: this host).
        tell: Callback for progress messages.

    Raises:
        SubmitRefused: If the site requires additional options.
        HidlError: If the job cannot be planned or submitted.
    """
    this = host or ThisHost()
    inside = is_inside(site, this.environment)
    planned = plan_examination(
        site,
        installation,
        count,
        job or AllocationOptions(),
        mpi=mpi,
        types=mpi_types(this) if site.scheduler == "slurm" and "srun" in site.launchers else (),
        cores=_cores_of_the_allocation(this.environment, count) if inside else None,
    )
    if planned.plan.missing and not inside:
        raise SubmitRefused(
            f"site {site.name} requires {' and '.join(planned.plan.missing)}",
            hint=f"add {planned.plan.missing[0]} NAME, or run hidl doctor --nodes inside an allocation (salloc)",
        )
    stack = f" with stack {planned.plan.stack}" if planned.plan.stack else ""
    tell(f"examining {count} node(s){stack} {'in this allocation' if inside else 'in a job'}")
    run = create_run(planned.plan, planned.script(), root=root())
    (run.directory / "probe.sh").write_text(planned.probe(), encoding="utf-8")
    try:
        status = _run(run, planned, inside=inside, tell=tell)
    except UnusableHosts as error:
        shutil.rmtree(run.directory, ignore_errors=True)
        unusable = DoctorReport(tuple(RULES.findings(error.troubles)))
        rest = _without_unusable(planned.plan.allocation.hosts, error, job)
        if rest.named_hosts is None:
            return unusable
        return unusable + examine_nodes(
            site, installation, len(rest.named_hosts.names), job=rest, mpi=mpi, host=host, tell=tell
        )
    facts = read_facts(run.directory, planned, outside=node.probe())
    found = [*find_on_nodes(facts), *find_in_launches(facts)]
    unknown = _unknown(run, status, facts)
    if not unknown and all(finding.severity == "info" for finding in found):
        shutil.rmtree(run.directory, ignore_errors=True)
    else:
        tell(f"the job's output is in {run.directory}")
    return DoctorReport(tuple(worst_first(dict.fromkeys(found))), unknown)


def _without_unusable(hosts: tuple[str, ...], error: UnusableHosts, job: AllocationOptions | None) -> AllocationOptions:
    """Return the request, restricted to usable hosts. If there are none, ``hosts`` of the result is None."""
    job = job or AllocationOptions()
    unusable = {each.host for each in error.troubles}
    usable = tuple(name for name in hosts if name not in unusable)
    slots = job.named_hosts.slots if job.named_hosts else {}
    return replace(job, hosts=Hosts(usable, slots) if usable else None)


def is_inside(site: Site, environment: Mapping[str, str]) -> bool:
    """Return whether this process runs in one of the scheduler's jobs."""
    system = batch_systems.system(site.scheduler)
    return system is not None and system.job_id in environment


def _cores_of_the_allocation(environment: Mapping[str, str], count: int) -> int | None:
    """Return the current Slurm job's number of cores per node, or None if unknown.

    Raises:
        UsageError: If the job has fewer than ``count`` nodes.
    """
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    if nodes.isdecimal() and int(nodes) < count:
        hint = f"use --nodes {nodes} or a larger allocation"
        raise UsageError(f"this allocation has {nodes} node(s), not {count}", hint=hint)
    each = re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return min(map(int, each), default=None)


def _run(run: Run, planned: Examination, *, inside: bool, tell: Callable[[str], None]) -> Status:
    """Run the job script in this allocation or through the scheduler, and wait for it to end."""
    if inside:
        local, start = InAllocation(), time.monotonic()
        local.submit(run)
        try:
            while not (status := local.poll([run])[0]).state.is_final:
                time.sleep(local.pause(time.monotonic() - start))
        except KeyboardInterrupt:
            local.cancel(run, state=State.INTERRUPTED)
            raise
        return status
    scheduler_of(planned.plan).submit(run)
    seen: list[str] = []

    def report_state(_: Run, status: Status) -> None:
        state = f"{status.state.value.lower()}{f': {status.reason}' if status.reason else ''}"
        if state not in seen and not status.state.is_final:
            seen.append(state)
            tell(f"examining job {state}")

    def interrupted(run: Run, _: KeyboardInterrupt) -> None:
        scheduler_of(planned.plan).cancel(run, state=State.INTERRUPTED)

    return follow([run], tell=report_state, interrupted=interrupted)[0]


def _unknown(run: Run, status: Status, facts: JobFacts) -> tuple[str, ...]:
    """Describe how a job ended and what it did not examine; return nothing if it completed."""
    if status.state is State.COMPLETED:
        return ()
    untried = [result.attempt.label for result in facts.launches if result.status is None]
    output = ""
    with suppress(OSError):
        text = run.stderr.read_text(encoding="utf-8", errors="replace")
        output = " ".join(shown_end(text, _TAIL).split())
    end = f"the job ended as {status.state.value}{f' ({status.reason})' if status.reason else ''}"
    return (
        f"{end} before it tried {', '.join(untried)}" if untried else end,
        *([f"output: {output}"] if output else []),
    )

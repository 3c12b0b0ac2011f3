"""The rule on hosts without a scheduler that cannot be used."""

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
from hidl_cli.doctor.examine import Examined
from hidl_cli.errors import SubmitRefused, UsageError
from hidl_cli.launch.hosts import Hosts
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Gpus, Launch, Request
from hidl_cli.launch.launchers.srun import mpi_type
from hidl_cli.launch.library import library_for, site_tuning
from hidl_cli.launch.placement import Asked, Placement, allocate, bind_to_cores, missing
from hidl_cli.launchers import starts
from hidl_cli.mpi import Library
from hidl_cli.plan.job_script import values_of
from hidl_cli.plan.launch_plan import Plan, Step, create_run
from hidl_cli.plan.planning import SET_BY_THE_SCRIPT, new_id, shared_environment
from hidl_cli.plan.prepare import own_library
from hidl_cli.plan.workload import Program, StackChoice, Workload
from hidl_cli.record.run import Run, State, Status
from hidl_cli.runs.follow import follow, scheduler_of
from hidl_cli.schedulers import scheduler_for
from hidl_cli.schedulers.local import Local
from hidl_cli.schedulers.ssh.guards import Trouble
from hidl_cli.schedulers.ssh.needs import UnusableHosts
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
    """What hidl finds when it looks at the hosts of a run."""
    for each in troubles:
        yield Evidence(each.what, each.fix.replace("{host}", each.host), each.host)


# The examining job: what it queries on the nodes, the launchers that it tries, and its script.


_PROGRAM = "hidl_workloads.doctor.tries"
_RANKS_PER_NODE = 2  # one rank cannot show shared cores
PATIENCE_SECONDS = 20
_MINUTES = 5.0


@dataclass(frozen=True)
class Attempt:
    """One launch to try. ``mpi_type``: of srun; ``usual``: hidl would launch runs of the site this way."""

    launcher: str
    mpi_type: str | None
    usual: bool
    ranks: int
    cores_per_rank: int | None

    @property
    def words(self) -> str:
        """The launch in messages: ``srun --mpi=pmi2``."""
        return f"{self.launcher} --mpi={self.mpi_type}" if self.mpi_type else self.launcher


@dataclass(frozen=True)
class Examination:
    """What the job does; ``attempts`` in the order of the plan's steps."""

    plan: Plan
    attempts: tuple[Attempt, ...]
    ssh: bool
    nodes: int

    @property
    def prefix(self) -> str | None:
        """The prefix of the stack that nodes must see; None without a stack."""
        return self.plan.prefix or None

    def script(self) -> str:
        """The job script."""
        names = {attempt.launcher for attempt in self.attempts}
        values = {"patience": PATIENCE_SECONDS, "nodes": self.nodes, "ssh": self.ssh, "open_mpi": "mpirun" in names}
        return render_script("doctor.sh.j2", values_of(self.plan) | values)

    def probe(self) -> str:
        """The script that each node runs, as text: nodes may not see hidl's files."""
        program = Path(node_probe.__file__).read_text(encoding="utf-8")
        return render_script("probe.sh.j2", {"prefix": self.prefix, "program": program})


def plan_examination(
    site: Site,
    installation: Installation | None,
    nodes: int,
    asked: Asked,
    *,
    mpi: str | None = None,
    types: tuple[str, ...] = (),
    cores: int | None = None,
) -> Examination:
    """Plan to examine ``nodes`` nodes with the stack of ``installation`` (None: without any stack).

    ``mpi``: one of the site's libraries in place of the stack's, as for ``hidl run``. ``types``: what this Slurm's
    ``srun --mpi=list`` offers. ``cores``: what an allocation has of each node; None: all. Raises what
    ``scheduler_for``, ``allocate`` and ``bind_to_cores`` raise.
    """
    batch = scheduler_for(site)
    cores = cores or site.node_type(asked.partition).cores or _RANKS_PER_NODE
    per_node = min(_RANKS_PER_NODE, cores)
    (placement,) = bind_to_cores(
        site, [Placement.of_nodes(nodes, per_node)], partition=asked.partition, threads=max(1, cores // per_node)
    )
    asked = replace(asked, time_limit=asked.time_limit or (_MINUTES * 60 if site.scheduler != "local" else None))
    allocation = allocate(site, "hidl-doctor", [placement], asked)
    gpus = site.node_type(asked.partition).gpus or 0
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
        usual = Request(
            placement,
            (str(installation.python), "-m", _PROGRAM),
            library,
            environment=environment,
            forward=SET_BY_THE_SCRIPT,
            on_one_host=site.scheduler == "local",
            through_ssh=site.scheduler == SSH,
        )
        steps = tuple(_steps(usual, gpus, attempts))
    now = datetime.now(timezone.utc)
    name = installation.prefix.parent.name if installation else ""
    plan = Plan(
        run=new_id("doctor", now),
        created=now.isoformat(timespec="seconds"),
        site=site.name,
        scheduler=batch.name,
        launcher=attempts[0].launcher if attempts else "none",
        partition=asked.partition or site.default_partition,
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
    """The directory of examinations."""
    return paths.user_state() / "doctor"


def _tuning(site: Site, library: Library, stack: Stack, *, gpus: bool) -> tuple[Setting, ...]:
    """The tuning of every run whose times are compared: of the site and the stack."""
    layers = (
        Layer(f"site {site.name}", site_tuning(site, library, gpus=gpus)),
        Layer(f"stack {stack.name}", stack.tuning.get(library.family, {})),
    )
    return merge_layers(library, layers, gpus=gpus, compared=True)


def _workload(stack: str) -> Workload:
    return Workload(
        name="doctor",
        title="Look at nodes and launchers",
        program=Program(module=_PROGRAM),
        stacks=[StackChoice(stack=stack)],
    )


def _attempts(site: Site, library: Library, placement: Placement, types: tuple[str, ...]) -> Iterator[Attempt]:
    """Every launcher of the site that supports the library, srun with each type that Slurm supports."""
    named = site.mpi[library.name].launchers if library.name in site.mpi else []
    bound = placement.threads_per_rank if placement.bind else None
    for name in named or site.launchers:
        if name not in site.launchers or not starts(name, library):
            continue
        usual = mpi_type(library) if name == "srun" else None
        yield Attempt(name, usual, True, placement.ranks, bound)
        for other in _distinct(types) if name == "srun" else ():
            if other != usual:
                yield Attempt(name, other, False, placement.nodes, None)


def _distinct(types: tuple[str, ...]) -> Iterator[str]:
    """The types without aliases and those for Cray machines."""
    for name in types:
        of_a_version = name.startswith("pmix_v") and "pmix" in types
        if not of_a_version and not name.startswith("cray"):
            yield name


def _steps(usual: Request, gpus: int, attempts: tuple[Attempt, ...]) -> Iterator[Step]:
    """A step per attempt: the usual launch, or one rank per node with another type of srun."""
    one_each = replace(usual.placement, ranks_per_node=1, ranks=usual.placement.nodes)
    for number, attempt in enumerate(attempts, start=1):
        placement = usual.placement if attempt.usual else one_each
        request = replace(
            usual,
            placement=placement,
            mpi=usual.mpi if attempt.usual else replace(usual.mpi, srun_mpi=attempt.mpi_type),
            hostfile=f"steps/{number}/hosts",
            gpus=Gpus.of(gpus, placement.ranks_per_node),
        )
        yield Step(placement.ranks, 1, placement, _plain(launcher(attempt.launcher).launch(request)), None)


def _plain(launch: Launch) -> Launch:
    """The launch without the line that reports its status, so that it can run under timeout(1)."""
    return replace(launch, status_on_stderr=False)


# Facts in the directory of the examining job: of nodes, launches, and ssh between nodes.


_SAID = 2000
TIMED_OUT = (124, 137)
"""Exit statuses of timeout(1): the command was ended by SIGTERM or SIGKILL."""


@dataclass(frozen=True)
class Tried:
    """One launch: its exit status (None: not started), its output, and the facts of its ranks.

    ``began``: ranks that did not return from MPI_Init.
    """

    attempt: Attempt
    status: int | None
    said: str = ""
    ranks: tuple[Rank, ...] = ()
    began: tuple[Rank, ...] = ()


@dataclass(frozen=True)
class Ssh:
    """One connection from the job's first node, ``source``: exit status and output of ssh."""

    source: str
    target: str
    status: int
    said: str = ""


@dataclass(frozen=True)
class JobFacts:
    """All facts of the job."""

    nodes: Nodes
    tried: tuple[Tried, ...] = ()
    ssh: tuple[Ssh, ...] = ()


def read_facts(directory: Path, asked: Examination, *, outside: Node | None) -> JobFacts:
    """Read the facts that the job wrote to ``directory``; ``outside``: the host that hidl runs on."""
    hosts = tuple(_text(directory / "hosts").split())[: asked.nodes]
    memory = asked.plan.allocation.memory_gib
    wanted = int(memory * 2**30) if memory else None
    times = _json(_text(directory / "asked.json")) or {}
    told = _nodes(_text(directory / "nodes.jsonl"), wanted)
    nodes = Nodes(
        tuple(sorted(told, key=lambda node: hosts.index(node.host) if node.host in hosts else len(hosts))),
        hosts,
        times.get("began"),
        times.get("ended"),
        outside,
        " ".join(_text(directory / "nodes.err").split())[:_SAID],
    )
    tried = (_tried(directory / "steps" / str(number), each) for number, each in enumerate(asked.attempts, start=1))
    return JobFacts(nodes, tuple(tried), tuple(_ssh(directory / "ssh", hosts)))


def _nodes(lines: str, wanted: int | None) -> Iterator[Node]:
    """The lines that are facts of a node; shell profiles may print others."""
    for line in lines.splitlines():
        document = _json(line)
        if document is not None:
            with suppress(TypeError):
                yield Node.from_facts(document, wanted_memory=wanted)


def _tried(place: Path, attempt: Attempt) -> Tried:
    told = [_rank(file) for file in sorted((place / "ranks").glob("*.json"))]
    ranks = [rank for rank in told if rank is not None]
    status = _text(place / "status").strip()
    return Tried(
        attempt,
        int(status) if status.isdecimal() else None,
        (_text(place / "stderr.log") + _text(place / "stdout.log"))[-_SAID:].strip(),
        tuple(sorted((rank for rank in ranks if rank.size), key=lambda rank: (rank.rank, rank.host))),
        tuple(rank for rank in ranks if not rank.size),
    )


def _rank(file: Path) -> Rank | None:
    document = _json(_text(file))
    if document is not None:
        with suppress(TypeError, KeyError, IndexError):
            return Rank.from_json(document)
    return None


def _ssh(place: Path, hosts: tuple[str, ...]) -> Iterator[Ssh]:
    for host in hosts[1:]:
        status = _text(place / f"{host}.status").strip()
        if status.isdecimal():
            yield Ssh(hosts[0], host, int(status), _text(place / f"{host}.said").strip()[-_SAID:])


def _json(text: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        document = json.loads(text)
        return document if isinstance(document, dict) else None
    return None


def _text(file: Path) -> str:
    """The text of a file; empty if missing."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Rules on the launchers that were tried on the nodes, and on ssh between them.


LAUNCH_RULES: Rules[JobFacts] = Rules()

_SAID_OF_LAUNCHES = 300


def find_on_nodes(facts: JobFacts) -> list[Finding]:
    """The findings about nodes, each by itself and compared."""
    return [
        *nodes.RULES.findings(facts.nodes),
        *(finding for each in facts.nodes.nodes for finding in node.RULES.findings(each)),
    ]


def find_in_launches(facts: JobFacts) -> list[Finding]:
    """The findings about launches, ssh, and the worlds that started.

    A type of ``srun --mpi`` that hidl would not use is reported only if it gives singletons, as an info.
    """
    found = LAUNCH_RULES.findings(facts)
    for tried in facts.tried:
        judged = ranks.RULES.findings(_world(tried, facts)) if tried.ranks or tried.began else []
        if tried.attempt.usual:
            found += judged
        else:
            found += [replace(each, severity="info") for each in judged if each.rule == "HD001"]
    return found


@LAUNCH_RULES.rule(
    "HD006",
    "ssh to a node requires a password",
    severity="error",
    why="mpirun_rsh, and Hydra and PRRTE outside a scheduler, start their processes with ssh from the job's first "
    "node. If it prompts, or no sshd listens, the launch fails or hangs.",
)
def no_ssh(facts: JobFacts) -> Iterator[Evidence]:
    """``ssh -o BatchMode=yes`` from the first node to each other one."""
    for each in facts.ssh:
        if each.status != 0:
            said = (
                each.said.splitlines()[-1][:_SAID_OF_LAUNCHES] if each.said else f"ssh exited with status {each.status}"
            )
            yield Evidence(f"from {each.source}: {said}", _fix_ssh(each), each.target)


@LAUNCH_RULES.rule(
    "HD052",
    "A launcher does not start the ranks",
    severity="error",
    why="Every run that uses it fails, or hangs until its time limit.",
)
def no_start(facts: JobFacts) -> Iterator[Evidence]:
    """A launch that hidl would use failed, timed out, or not all of its ranks reported."""
    for tried in facts.tried:
        attempt = tried.attempt
        missing = attempt.ranks - len(tried.ranks)
        if not attempt.usual or tried.status is None or (tried.status == 0 and missing <= 0):
            continue
        how = f"exited with status {tried.status}"
        if tried.status in TIMED_OUT:
            how = "timed out"
        elif tried.status == 0:
            how = f"exited with status 0, but {missing} of {attempt.ranks} ranks did not report"
        if tried.began:
            how += f"; {len(tried.began)} rank(s) did not return from MPI_Init"
        words = [line.strip() for line in tried.said.splitlines() if re.search("[a-z]", line)]  # not what frames them
        last = " | ".join(words[-3:])
        yield Evidence(f"{how}; output: {last[-_SAID_OF_LAUNCHES:] or 'none'}", _fix_start(tried, facts), attempt.words)


def _world(tried: Tried, facts: JobFacts) -> World:
    """The ranks of one launch, for the rules of ranks."""
    boots = {node.host: node.boot for node in facts.nodes.nodes if node.boot}
    outside = facts.nodes.outside
    if outside is not None and outside.boot:
        boots[outside.host] = outside.boot
    return World(
        tried.ranks or tried.began,
        expected=tried.attempt.ranks if tried.ranks else None,
        cores_per_rank=tried.attempt.cores_per_rank,
        launch=tried.attempt.words,
        instead=_instead(tried, facts),
        boots=boots,
    )


def _instead(tried: Tried, facts: JobFacts) -> tuple[str, ...]:
    """The other launches that succeeded."""
    return tuple(
        other.attempt.words
        for other in facts.tried
        if other is not tried
        and other.status == 0
        and len(other.ranks) == other.attempt.ranks
        and all(rank.size == other.attempt.ranks for rank in other.ranks)
    )


def _fix_start(tried: Tried, facts: JobFacts) -> str:
    broken = dict.fromkeys(each.where for each in find_on_nodes(facts) if each.severity == "error" and each.where)
    if broken:
        return f"first fix {', '.join(filter(None, broken))}"
    instead = _instead(tried, facts)
    return f"use one that works: {', '.join(instead)}" if instead else "check its output; try another --launcher"


def _fix_ssh(each: Ssh) -> str:
    said = each.said.lower()
    if "host key" in said:
        return f"ssh-keyscan {each.target} >> ~/.ssh/known_hosts (or the cluster's /etc/ssh/ssh_known_hosts)"
    if "permission denied" in said:
        return "ssh-keygen -t ed25519 -N '' && cat ~/.ssh/id_ed25519.pub >> ~/.ssh/authorized_keys"
    if each.status in TIMED_OUT or "timed out" in said or "refused" in said:
        return f"on {each.target}: systemctl status sshd; meanwhile --launcher srun, or --exclude={each.target}"
    return f"ssh -v -o BatchMode=yes {each.target} true, from {each.source}"


# Examine compute nodes in one short job, or in the current allocation.


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
        unusable = Examined(tuple(RULES.findings(error.troubles)))
        rest = _without(planned.plan.allocation.hosts, error, asked)
        if not rest.hosts:
            return unusable
        return unusable + examine_nodes(
            site, installation, len(rest.hosts.names), asked=rest, mpi=mpi, host=host, tell=tell
        )
    facts = read_facts(run.directory, planned, outside=node.probe())
    found = [*find_on_nodes(facts), *find_in_launches(facts)]
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

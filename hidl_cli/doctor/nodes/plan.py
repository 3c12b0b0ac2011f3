"""The examining job: what it queries on the nodes, the launchers that it tries, and its script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from hidl_cli import paths
from hidl_cli.batch_systems import SSH
from hidl_cli.launch.allocation import Asked, allocate, missing
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Gpus, Launch, Request
from hidl_cli.launch.launchers.srun import mpi_type
from hidl_cli.launch.library import library_for, site_tuning
from hidl_cli.launch.placement import Placement, bind_to_cores
from hidl_cli.launchers import starts
from hidl_cli.mpi import Library
from hidl_cli.plan.job_script import values_of
from hidl_cli.plan.launch_plan import Plan, Step
from hidl_cli.plan.planning import SET_BY_THE_SCRIPT, new_id, shared_environment
from hidl_cli.plan.prepare import own_library
from hidl_cli.plan.workload import Program, StackChoice, Workload
from hidl_cli.schedulers import scheduler_for
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.load import load_stack
from hidl_cli.stack.schema import Stack
from hidl_cli.templates import render_script
from hidl_cli.tuning.layers import merge_layers
from hidl_cli.tuning.settings import Layer, Setting
from hidl_workloads.doctor import node_probe

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

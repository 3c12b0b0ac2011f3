"""The launch plan: all that a run will do, as one immutable value. ``--dry-run`` prints it, the run consumes it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from hidl_cli import __version__
from hidl_cli.documents import read_json
from hidl_cli.errors import HidlError, InvalidInput
from hidl_cli.launch.launchers import Launcher
from hidl_cli.launch.placement import Placement
from hidl_cli.quoting import sh_line
from hidl_cli.record.run import Run
from hidl_cli.runs.parameters import arguments
from hidl_cli.runs.workload import Value, Workload
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation

SCHEMA = "hidl.plan/1"


@dataclass(frozen=True)
class Step:
    """One launch: ``size`` counts what the study scales (``Plan.unit``), ``repetition`` counts from 1."""

    size: int
    repetition: int
    placement: Placement
    argv: tuple[str, ...]
    preflight: tuple[str, ...] | None

    @property
    def title(self) -> str:
        """The step in words."""
        ranks, nodes = self.placement.ranks, self.placement.nodes
        return f"{_count(ranks, 'rank')} on {_count(nodes, 'node')}, repetition {self.repetition}"


@dataclass(frozen=True)
class Plan:
    """What was asked and resolved. ``workload`` is the whole document: a run can be judged without hidl's files.

    ``unit`` is ``ranks`` or ``nodes``: what the sizes of the steps count. ``target`` is the efficiency to reach (None:
    the run is no study, or has nothing to be judged by). ``time_limit`` is in seconds.
    """

    run: str
    created: str
    site: str
    scheduler: str
    launcher: str
    partition: str
    stack: str
    prefix: str
    activate: str
    lock: str
    workload: Workload
    parameters: Mapping[str, Value]
    unit: str
    steps: tuple[Step, ...]
    environment: Mapping[str, str]
    target: float | None
    time_limit: float | None
    hidl: str = __version__

    @property
    def is_study(self) -> bool:
        """Does it compare sizes?"""
        return len({step.size for step in self.steps}) > 1

    def command_line(self, step: Step) -> str:
        """The step as a line for a shell, variables included: what a person would type."""
        variables = {"HIDL_WORLD_SIZE": str(step.placement.ranks), **self.environment}
        return sh_line(["env", *(f"{name}={value}" for name, value in variables.items()), *step.argv])

    def to_json(self) -> dict[str, Any]:
        """The document ``plan.json``."""
        document = asdict(self)
        document["workload"] = self.workload.model_dump(mode="json")
        return {"schema": SCHEMA, **document}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Read ``plan.json``; ``ValueError`` where it is none that this hidl understands."""
        values = dict(document)
        if values.pop("schema", None) != SCHEMA:
            raise ValueError(f"not a document of schema {SCHEMA}")
        try:
            values["workload"] = Workload.model_validate(values["workload"])
            values["steps"] = tuple(_step_from_json(step) for step in values["steps"])
            return cls(**values)
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a whole document of schema {SCHEMA}: {error}") from error


def make_plan(
    *,
    site: Site,
    workload: Workload,
    stack: str,
    installation: Installation,
    launcher: Launcher,
    parameters: Mapping[str, Value],
    unit: str,
    sizes: Sequence[tuple[int, Placement]],
    repetitions: int,
    partition: str | None = None,
    target: float | None = None,
    time_limit: float | None = None,
) -> Plan:
    """Resolve a run: the steps are the sizes in turn, interleaved as often as there are repetitions."""
    program = _program(workload, installation, parameters)
    check = [str(installation.python), "-m", "hidl_workloads.world"]

    def step(size: int, placement: Placement, repetition: int) -> Step:
        def launch(words: list[str]) -> tuple[str, ...]:
            return tuple(
                launcher.command(
                    placement, words, mpi_prefix=installation.prefix, on_one_host=site.scheduler == "local"
                )
            )

        preflight = None if workload.program.module else launch(check)
        return Step(size, repetition, placement, launch(program), preflight)

    now = datetime.now(timezone.utc)
    return Plan(
        run=f"{now:%Y%m%d-%H%M%S}-{workload.name}-{secrets.token_hex(2)}",
        created=now.isoformat(timespec="seconds"),
        site=site.name,
        scheduler=site.scheduler,
        launcher=launcher.name,
        partition=partition or site.default_partition,
        stack=stack,
        prefix=str(installation.prefix),
        activate=str(installation.activate),
        lock=installation.lock,
        workload=workload,
        parameters=dict(parameters),
        unit=unit,
        steps=tuple(
            step(size, placement, repetition) for repetition in range(1, repetitions + 1) for size, placement in sizes
        ),
        environment=sizes[0][1].environment(),
        target=target,
        time_limit=time_limit,
    )


def plan_of(run: Run) -> Plan:
    """The plan in a run's directory; ``HidlError`` where it holds none that can be read."""
    try:
        return Plan.from_json(read_json(run.directory / "plan.json"))
    except (OSError, ValueError) as error:
        raise HidlError(f"{run.directory} is no run directory that this hidl can read: {error}") from error


def stack_for(workload: Workload, parameters: Mapping[str, Value]) -> str:
    """The first stack of the workload whose conditions the parameters meet; ``InvalidInput`` where none is."""
    for choice in workload.stacks:
        if all(parameters.get(name) == value for name, value in choice.when.items()):
            return choice.stack
    raise InvalidInput(f"no stack of workload {workload.name} serves these parameters", hint="see its `stacks`")


def _program(workload: Workload, installation: Installation, parameters: Mapping[str, Value]) -> list[str]:
    """The argv of one rank; a Python module is run by the module that checks the world's size first.

    A command that the stack has is the stack's, whatever else is on PATH.
    """
    if workload.program.module:
        python = [str(installation.python), "-m", "hidl_workloads.world", workload.program.module]
        return [*python, *arguments(parameters)]
    command, *rest = workload.program.command or [""]
    of_the_stack = installation.prefix / "bin" / command
    return [str(of_the_stack) if of_the_stack.is_file() else command, *rest, *arguments(parameters)]


def _step_from_json(document: Mapping[str, Any]) -> Step:
    preflight = document["preflight"]
    return Step(
        size=document["size"],
        repetition=document["repetition"],
        placement=Placement(**document["placement"]),
        argv=tuple(document["argv"]),
        preflight=None if preflight is None else tuple(preflight),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

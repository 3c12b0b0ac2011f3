"""The launch plan: all that a run will do, as one immutable value. ``--dry-run`` prints it, the run consumes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from hidl_cli import __version__
from hidl_cli.documents import read_json
from hidl_cli.errors import HidlError
from hidl_cli.launch.allocation import Allocation
from hidl_cli.launch.launchers.contract import Launch
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Library
from hidl_cli.quoting import sh_line
from hidl_cli.record.run import Run
from hidl_cli.runs.parameters import in_words
from hidl_cli.runs.workload import Parser, Value, Workload
from hidl_cli.tuning.layers import Setting

SCHEMA = "hidl.plan/2"

#: Where a step's program has a parser: the file, beside its metrics, that keeps what it printed.
OUTPUT = "output.txt"

#: What a step's throughput is held against: the smallest step, as many copies of it at once, or earlier runs.
Baseline = Literal["single", "copies", "history"]


@dataclass(frozen=True)
class Step:
    """One launch: ``size`` counts what the study scales (``Plan.unit``), ``repetition`` counts from 1.

    ``preflight``: a launch that checks the world's size before, where the program does not do it itself. ``copies``:
    so many of the same launch at once, each on a host of its own, as the limit that larger steps are held against; 0:
    an ordinary step. ``point``: the parameters that differ from the plan's, where a matrix is compared. ``parser``: who
    reads the metrics from what the program prints, which is then kept (``OUTPUT``); None: the program writes them.
    """

    size: int
    repetition: int
    placement: Placement
    launch: Launch
    preflight: Launch | None
    copies: int = 0
    point: Mapping[str, Value] = field(default_factory=dict)
    parser: Parser | None = None

    @property
    def title(self) -> str:
        """The step in words."""
        ranks, nodes = self.placement.ranks, self.placement.nodes
        each = f"{self.copies} copies of " if self.copies else ""
        point = f"{in_words(self.point)}: " if self.point else ""
        return f"{point}{each}{_count(ranks, 'rank')} on {_count(nodes, 'node')}, repetition {self.repetition}"


@dataclass(frozen=True)
class Plan:
    """What was asked and resolved. ``workload`` is the whole document: a run can be judged without hidl's files.

    ``mpi`` is the library that the ranks run on; ``modules`` are loaded before the stack is activated; ``header`` are
    the lines of the job script that ask the scheduler for ``allocation``. ``environment`` is what all steps share, the
    values of ``tuning`` among it. ``unit`` is ``ranks`` or ``nodes``: what the sizes of the steps count. ``target`` is
    the efficiency to reach (None: the run is no study, or has nothing to be judged by), held against ``baseline``;
    ``until_settled``: the study ends with the first repetition that settles it. ``charge`` is what a node-hour
    costs, in the site's units. ``missing`` are the options that the site demands and nobody gave; ``warnings`` are
    what a user should know before it runs, in sentences.
    """

    run: str
    created: str
    site: str
    scheduler: str
    launcher: str
    partition: str | None
    allocation: Allocation
    header: tuple[str, ...]
    stack: str
    prefix: str
    activate: str
    lock: str
    mpi: Library
    modules: tuple[str, ...]
    tuning: tuple[Setting, ...]
    workload: Workload
    parameters: Mapping[str, Value]
    unit: str
    steps: tuple[Step, ...]
    environment: Mapping[str, str]
    target: float | None
    baseline: Baseline
    until_settled: bool
    charge: float | None
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    hidl: str = __version__

    @property
    def is_study(self) -> bool:
        """Does it compare sizes?"""
        return len({step.size for step in self.steps}) > 1

    @property
    def points(self) -> tuple[Mapping[str, Value], ...]:
        """The points of the matrix in the order in which they run; one that is empty where there is no matrix."""
        found: list[Mapping[str, Value]] = []
        for step in self.steps:
            if step.point not in found:
                found.append(step.point)
        return tuple(found)

    def at(self, point: Mapping[str, Value]) -> Plan:
        """The plan of one point of the matrix, as if it had been run alone."""
        steps = tuple(replace(step, point={}) for step in self.steps if step.point == point)
        return replace(self, parameters={**self.parameters, **point}, steps=steps)

    @property
    def repetitions(self) -> int:
        """How often each size is planned to run."""
        return max(step.repetition for step in self.steps)

    @property
    def mpi_of_the_stack(self) -> bool:
        """Do the ranks run on the stack's own MPI library, rather than on one of the site's?"""
        return self.mpi.prefix == self.prefix

    def command_line(self, step: Step) -> str:
        """The step as a line for a shell, variables included: what a person would type."""
        variables = {"HIDL_WORLD_SIZE": str(step.placement.ranks), **self.environment, **step.launch.environment}
        return sh_line(["env", *(f"{name}={value}" for name, value in variables.items()), *step.launch.words])

    def to_json(self) -> dict[str, Any]:
        """The document ``plan.json``."""
        return {"schema": SCHEMA, **_adapter().dump_python(self, mode="json")}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Read ``plan.json``; ``ValueError`` where it is none that this hidl understands."""
        values = dict(document)
        if values.pop("schema", None) != SCHEMA:
            raise ValueError(f"not a document of schema {SCHEMA}")
        try:
            return _adapter().validate_python(values)
        except ValidationError as error:
            raise ValueError(f"{error.error_count()} of its values are not what hidl {__version__} expects") from error


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Reads and writes plans; made when it is first needed, for that takes milliseconds."""
    return TypeAdapter(Plan)


def plan_of(run: Run) -> Plan:
    """The plan in a run's directory; ``HidlError`` where it holds none that can be read."""
    try:
        return Plan.from_json(read_json(run.directory / "plan.json"))
    except (OSError, ValueError) as error:
        raise HidlError(f"{run.directory} is no run directory that this hidl can read: {error}") from error


def readable(runs: Iterable[Run]) -> Iterator[Run]:
    """Those of the runs whose plan this hidl reads: another version's are left where they are."""
    for run in runs:
        with suppress(HidlError):
            plan_of(run)
            yield run


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

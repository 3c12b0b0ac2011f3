"""The launch plan: all that a run will do, as one immutable value. ``--dry-run`` prints it; the run executes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from hidl_cli import __version__, paths
from hidl_cli.errors import HidlError
from hidl_cli.launch.launchers.contract import Launch
from hidl_cli.launch.placement import Allocation, Placement
from hidl_cli.mpi import Library
from hidl_cli.plan.input_files import PIPED, copy_stdin, record_inputs
from hidl_cli.plan.parameters import arguments, command, format_parameters
from hidl_cli.plan.workload import Parser, Pattern, Value, Workload
from hidl_cli.quoting import sh_line
from hidl_cli.record.run import Run, create
from hidl_cli.redaction import Secrets, may_hold, remember
from hidl_cli.stack.activation import UserEnvironment, prepare_support
from hidl_cli.stack.schema import Device
from hidl_cli.tuning.judge import COMPARED, DEFAULT, MATRIX, Setting, compared_variables, without_variables

SCHEMA = "hidl.plan/2"

#: Where a step's program has a parser or patterns: the file, beside its metrics, that keeps what it printed.
OUTPUT = "output.txt"
#: Where it has patterns: what it printed on stderr.
ERRORS = "errors.txt"

#: Where a step is timed: the metrics document that the job writes beside its metrics.
TIMING = "timing.json"

#: What a step's throughput is held against: the smallest step, as many copies of it at once, or earlier runs.
Baseline = Literal["single", "copies", "history"]


@dataclass(frozen=True)
class Step:
    """One launch: ``size`` counts what the study scales (``Plan.unit``), ``repetition`` counts from 1.

    ``preflight``: a launch that checks the world's size first, if the program does not. ``copies``: the number of
    concurrent copies of the launch, each on its own host, as the limit for larger steps; 0: an ordinary step.
    ``point``: the parameters of a matrix that differ from the plan's. ``parser``: reads the metrics from the program's
    output, which is kept (``OUTPUT``); None: the program writes them. ``patterns``: find further metrics in
    it. ``timed``: the job measures the launch (``TIMING``). ``unbound``: the launch while another run has the cores of
    this machine, if no scheduler keeps runs apart.
    """

    size: int
    repetition: int
    placement: Placement
    launch: Launch
    preflight: Launch | None
    copies: int = 0
    point: Mapping[str, Value] = field(default_factory=dict)
    parser: Parser | None = None
    timed: bool = False
    patterns: tuple[Pattern, ...] = ()
    unbound: Launch | None = None

    @property
    def title(self) -> str:
        """The step in words."""
        ranks, nodes = self.placement.ranks, self.placement.nodes
        each = f"{self.copies} copies of " if self.copies else ""
        point = f"{format_parameters(self.point)}: " if self.point else ""
        return f"{point}{each}{_count(ranks, 'rank')} on {_count(nodes, 'node')}, repetition {self.repetition}"


@dataclass(frozen=True)
class Plan:
    """The request, resolved. ``workload`` is the whole document: a run can be judged without hidl's files.

    ``mpi`` is the library that the ranks run on; ``modules`` are loaded before the stack is activated; ``header`` holds
    the lines of the job script that request ``allocation``. ``environment`` is shared by all steps and includes the
    values of ``tuning``. ``unit`` is ``ranks`` or ``nodes``: what the sizes of the steps count. ``target`` is the
    efficiency to reach against ``baseline`` (None: not a study, or nothing to judge); ``until_settled``: the study ends
    with the first repetition that settles it. ``charge`` is the price of a node-hour in the site's units. ``missing``
    lists the options that the site requires and the request lacks; ``warnings`` are sentences for the user.
    ``user_environment``: of the user, in the place of a stack, as it was when the run was planned. ``device``: what the
    ranks compute on; None in plans of hidl 0.1, which did not say. ``stdin``: the file that rank 0 of a program of the
    user's own reads as standard input, absolute or in the run's directory; None: an empty one. ``precision``: half the
    width that the interval of an efficiency may have at most for a verdict, relative to it; None: any. ``sources``: the
    documents of the site and the stack that the plan was made of, which a run keeps beside its ``plan.json``.
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
    user_environment: UserEnvironment | None = None
    device: Device | None = None
    stdin: str | None = None
    precision: float | None = None
    sources: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_study(self) -> bool:
        """Does the plan compare sizes?"""
        return len({step.size for step in self.steps}) > 1

    @property
    def points(self) -> tuple[Mapping[str, Value], ...]:
        """The points of the matrix in the order in which they run; a single empty one without a matrix."""
        found: list[Mapping[str, Value]] = []
        for step in self.steps:
            if step.point not in found:
                found.append(step.point)
        return tuple(found)

    @property
    def telling_parameters(self) -> dict[str, Value]:
        """The parameters without choices that stand for no words: the run compares with one without the parameter."""
        known = self.workload.parameters
        return {
            name: value
            for name, value in self.parameters.items()
            if name not in known or known[name].words.get(str(value)) != []
        }

    def at(self, point: Mapping[str, Value]) -> Plan:
        """Return the plan of one point of the matrix, as if it ran alone.

        Run-time variables of the point are part of its tuning, and parameters too: they tell its series from others.
        """
        steps = tuple(replace(step, point={}) for step in self.steps if step.point == point)
        variables = compared_variables(point)
        changed = {name: value for name, value in point.items() if value != DEFAULT or not name.startswith(COMPARED)}
        tuning = (
            *(setting for setting in self.tuning if setting.name not in variables),
            *(Setting(name, value, MATRIX) for name, value in variables.items()),
        )
        return replace(self, parameters={**self.parameters, **changed}, tuning=tuning, steps=steps)

    @property
    def repetitions(self) -> int:
        """The planned number of repetitions of each size."""
        return max(step.repetition for step in self.steps)

    @property
    def mpi_of_the_stack(self) -> bool:
        """Do the ranks run on the stack's own MPI library, not on one of the site's?"""
        return self.mpi.prefix == self.prefix

    @property
    def workload_words(self) -> list[str]:
        """The words of the program, with its placeholders."""
        program = self.workload.program_for(self.parameters)
        return [*(program.command or ()), *(program.arguments or ())]

    def command_line(self, step: Step) -> str:
        """Format the step as a shell command with its variables, without secrets."""
        variables = {"HIDL_WORLD_SIZE": str(step.placement.ranks), **self.environment, **step.launch.environment}
        parameters = {"parameters": dict(self.parameters)}
        secrets = Secrets().learn(self.workload_words, parameters, dict(step.point), variables)
        words = ["env", *(f"{name}={value}" for name, value in variables.items()), *step.launch.words]
        return sh_line(secrets.learn(words).hide_document(words))

    def summary(self, step: Step) -> str:
        """Format the step in short: launcher, number of ranks, program, and parameters without their defaults."""
        argv = step.launch.words
        count = next((argv[i : i + 2] for i, word in enumerate(argv) if word in ("-n", "-np")), ())
        values = {**self.parameters, **without_variables(step.point)}
        program = self.workload.program_for(values)
        if program.module is None:
            words = [*command(program, values), *arguments(program, values, self.workload.parameters)]
        else:
            known = self.workload.parameters
            chosen = {name: value for name, value in values.items() if value != known[name].default}
            words = [program.module, *(f"{name}={value}" for name, value in chosen.items())]
        variables = [f"{name}={value}" for name, value in compared_variables(step.point).items()]
        line = sh_line([*variables, Path(argv[0]).name, *count, "...", *words])
        secrets = Secrets().learn(self.workload_words, {"parameters": dict(self.parameters)}, dict(step.point), words)
        return secrets.hide(line)

    def to_json(self) -> dict[str, Any]:
        """Return the document ``plan.json``."""
        return {"schema": SCHEMA, **_adapter().dump_python(self, mode="json", exclude={"sources"})}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Read ``plan.json``; ``ValueError`` if this hidl cannot."""
        values = dict(document)
        if values.pop("schema", None) != SCHEMA:
            raise ValueError(f"not a document of schema {SCHEMA}")
        try:
            return _adapter().validate_python(values)
        except ValidationError as error:
            raise ValueError(f"{error.error_count()} of its values are invalid for hidl {__version__}") from error


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Reads and writes plans; created on first use, because that takes milliseconds."""
    return TypeAdapter(Plan)


def create_run(
    plan: Plan, script: str, *, root: Path | None = None, tell: Callable[[str], object] | None = None
) -> Run:
    """Create the directory of the plan's run with its job script, under ``root`` (None: the user's runs).

    A plan whose ``stdin`` is ``PIPED`` gets a copy of this process's standard input; ``tell`` gets a message if that
    takes long.
    """
    if plan.user_environment is not None:
        prepare_support(plan.user_environment)
    directory = (root or paths.runs()) / plan.run
    if plan.stdin == PIPED:
        copy_stdin(directory / PIPED, tell)
    inputs = record_inputs(plan, directory)
    documents = {**plan.sources, **({"inputs": inputs} if inputs["files"] else {})}
    return create(plan.run, plan.to_json(), script, documents, root=root)


def plan_of(run: Run) -> Plan:
    """Read the plan in a run's directory; ``HidlError`` if it cannot be read."""
    try:
        text = (run.directory / "plan.json").read_text(encoding="utf-8")
        document = json.loads(text)
        if may_hold(text):
            remember(document)
        return Plan.from_json(document)
    except (OSError, ValueError) as error:
        raise HidlError(f"{run.directory} is not a run directory that this hidl can read: {error}") from error


def readable(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs whose plan this hidl can read; those of other versions are skipped."""
    for run in runs:
        with suppress(HidlError):
            plan_of(run)
            yield run


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

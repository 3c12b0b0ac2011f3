"""The launch plan, an immutable description of a run: ``--dry-run`` prints it, and the job executes it."""

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
from hidl_cli.errors import HidlError, hint_for
from hidl_cli.launch.container import Container
from hidl_cli.launch.launchers.contract import Launch
from hidl_cli.launch.placement import Allocation, Placement
from hidl_cli.mpi import Library
from hidl_cli.plan.input_files import PIPED, copy_stdin, record_inputs
from hidl_cli.plan.parameters import arguments, command, format_parameters
from hidl_cli.plan.workload import Parser, Pattern, Value, Workload
from hidl_cli.quoting import sh_line
from hidl_cli.record import Run, create
from hidl_cli.recorder import Profiling, install_recorder
from hidl_cli.redaction import Secrets, may_hold, remember
from hidl_cli.schedulers.decision import read_status
from hidl_cli.stack.activation import UserEnvironment, prepare_support
from hidl_cli.stack.schema import Device
from hidl_cli.tuning.judge import COMPARED, DEFAULT, MATRIX, Setting, compared_variables, without_variables

SCHEMA = "hidl.plan/2"

#: File in a step's directory that contains the program's output if a parser or patterns read metrics from it.
OUTPUT = "output.txt"

#: File that contains the metrics that the job measures for a timed step.
TIMING = "timing.json"

#: Baseline of a study: its smallest step, several concurrent copies of that step, or earlier runs.
Baseline = Literal["single", "copies", "history"]


@dataclass(frozen=True)
class Step:
    """A launch of the program.

    Attributes:
        size: Number of ranks or nodes, depending on ``Plan.unit``.
        repetition: Number of the repetition, counted from 1.
        preflight: A preceding launch that checks the size of the world, if the program does not check it itself.
        copies: Number of concurrent copies of the launch that form the baseline, each on its own host; 0 for a normal
            step.
        point: Matrix parameters that differ from the plan's parameters.
        parser: Parser of the output (``OUTPUT``), or None if the program writes its metrics itself.
        timed: Whether the job measures the time of the launch (``TIMING``).
        patterns: Patterns that find additional metrics in the output.
        unbound: Launch that does not bind ranks to cores. On a machine without a scheduler, it is used while another
            run uses the cores.
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
        """A description of the step."""
        ranks, nodes = self.placement.ranks, self.placement.nodes
        each = f"{self.copies} copies of " if self.copies else ""
        point = f"{format_parameters(self.point)}: " if self.point else ""
        return f"{point}{each}{_count(ranks, 'rank')} on {_count(nodes, 'node')}, repetition {self.repetition}"


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs, resolved from its options.

    Attributes:
        header: Lines of the job script that request the allocation.
        prefix: Directory of the installation.
        lock: Digest of the lockfile.
        modules: Modules to load before the stack is activated.
        workload: The complete workload, so that the run can be judged later.
        unit: Unit of the sizes of the steps, ``ranks`` or ``nodes``.
        environment: Variables of all steps, including those of ``tuning``.
        target: Target efficiency relative to ``baseline``, or None if there is nothing to judge.
        until_settled: Whether a study ends after the first repetition that settles its verdict.
        charge: Price of a node-hour in the site's unit.
        missing: Options that the site requires but the user did not give.
        user_environment: The user's environment that replaces the stack, in its state at planning time.
        device: Device on which the ranks compute; None in plans written by hidl 0.1.
        stdin: File that rank 0 of a user's program reads as standard input: an absolute path, or a name in the run's
            directory.
        max_jobs: Maximum number of successive jobs in which the program completes; 0 for a run that is a single job.
        max_node_hours: Node-hours that no further job of the run may exceed; None permits any.
        max_cost: Cost that no further job of the run may exceed, in the site's units; None permits any.
        precision: Largest relative half-width of an efficiency's interval. If the interval is wider, there is no
            verdict; None permits any width.
        profile: Whether recording the ranks' MPI calls is required or optional; None if they are not recorded.
        container: Container in which the user's program runs; None if it runs on the nodes themselves.
        sources: Documents of the site and the stack, which are stored beside ``plan.json``.
        on_fewer_nodes: The step on each other number of nodes that a job may get; empty if all jobs have the same
            number of nodes. Those of a new plan are smaller than that of ``steps``.
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
    max_jobs: int = 0
    max_node_hours: float | None = None
    max_cost: float | None = None
    profile: Profiling | None = None
    container: Container | None = None
    sources: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    on_fewer_nodes: tuple[Step, ...] = ()

    def on_nodes(self, nodes: int) -> Plan:
        """Return the plan with the step of a job that got this number of nodes; unchanged if it has no such step.

        The other steps remain in ``on_fewer_nodes``, because the next job may get another number of nodes.
        """
        found = [step for step in self.on_fewer_nodes if step.placement.nodes == nodes]
        if not found:
            return self
        others = [step for step in (*self.on_fewer_nodes, *self.steps) if step not in found]
        return replace(self, steps=tuple(found), on_fewer_nodes=tuple(others))

    @property
    def is_study(self) -> bool:
        """True if the plan compares sizes."""
        return len({step.size for step in self.steps}) > 1

    @property
    def points(self) -> tuple[Mapping[str, Value], ...]:
        """The points of the matrix in the order in which they run, or a single empty point if there is no matrix."""
        found: list[Mapping[str, Value]] = []
        for step in self.steps:
            if step.point not in found:
                found.append(step.point)
        return tuple(found)

    @property
    def telling_parameters(self) -> dict[str, Value]:
        """The parameters that affect the command. Choices that are replaced by an empty list of words are omitted."""
        known = self.workload.parameters
        return {
            name: value
            for name, value in self.parameters.items()
            if name not in known or known[name].words.get(str(value)) != []
        }

    def at(self, point: Mapping[str, Value]) -> Plan:
        """Return the plan for a single point of the matrix.

        The point's run-time variables become part of the tuning. They also remain parameters, so that different points
        belong to different series.
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
        """True if the ranks use the stack's MPI library rather than one of the site's libraries."""
        return self.mpi.prefix == self.prefix

    @property
    def workload_words(self) -> list[str]:
        """The program's command and arguments, including placeholders."""
        program = self.workload.program_for(self.parameters)
        return [*(program.command or ()), *(program.arguments or ())]

    def command_line(self, step: Step) -> str:
        """Format a step as a shell command with its environment variables, without secrets."""
        variables = {"HIDL_WORLD_SIZE": str(step.placement.ranks), **self.environment, **step.launch.environment}
        parameters = {"parameters": dict(self.parameters)}
        secrets = Secrets().learn(self.workload_words, parameters, dict(step.point), variables)
        words = ["env", *(f"{name}={value}" for name, value in variables.items()), *step.launch.words]
        return sh_line(secrets.learn(words).hide_document(words))

    def summary(self, step: Step) -> str:
        """Summarize a step: launcher, number of ranks, program, and parameters that differ from their defaults."""
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
        """Parse ``plan.json``; raises ``ValueError`` if it is invalid for this version of hidl."""
        values = dict(document)
        if values.pop("schema", None) != SCHEMA:
            raise ValueError(f"not a document with schema {SCHEMA}")
        try:
            return _adapter().validate_python(values)
        except ValidationError as error:
            raise ValueError(f"{error.error_count()} value(s) are invalid for hidl {__version__}") from error


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Return the serializer for plans, which is only created on first use because that takes milliseconds."""
    return TypeAdapter(Plan)


def create_run(
    plan: Plan, script: str, *, root: Path | None = None, tell: Callable[[str], object] | None = None
) -> Run:
    """Create the directory of a run, and copy standard input to it if the plan requires that.

    Args:
        plan: Plan of the run.
        script: Job script.
        root: Parent directory; None selects the directory of the user's runs.
        tell: Function that receives a message if reading standard input takes long.
    """
    if plan.user_environment is not None:
        prepare_support(plan.user_environment)
    directory = (root or paths.runs()) / plan.run
    if plan.stdin == PIPED:
        copy_stdin(directory / PIPED, tell)
    inputs = record_inputs(plan, directory)
    documents = {**plan.sources, **({"inputs": inputs} if inputs["files"] else {})}
    if plan.profile and (reason := _record(plan, plan.profile, directory)):
        documents["profile"] = {"schema": "hidl.profile/1", "run": plan.run, "problem": reason, "steps": []}
        if tell:
            tell(f"the run is not recorded: {reason}")
    return create(plan.run, plan.to_json(), script, documents, root=root)


def _record(plan: Plan, profiling: Profiling, directory: Path) -> str | None:
    """Prepare a run's directory for the recorder of MPI calls. Return the reason if the run will not be recorded."""
    try:
        return install_recorder(plan.mpi, profiling, directory)
    except OSError as error:
        raise HidlError(
            f"cannot write the run directory {directory}: {error}",
            hint=hint_for(error, "free some space, or set XDG_STATE_HOME to a writable directory"),
        ) from error


def plan_of(run: Run) -> Plan:
    """Read the plan of a run; raises ``HidlError`` if that fails.

    If its jobs may have different numbers of nodes, the plan has the step of the last job, or the largest step if that
    job's status cannot be read.
    """
    try:
        text = (run.directory / "plan.json").read_text(encoding="utf-8")
        document = json.loads(text)
        if may_hold(text):
            remember(document)
        plan = Plan.from_json(document)
        return plan.on_nodes(len(read_status(run).hosts)) if plan.on_fewer_nodes else plan
    except (OSError, ValueError) as error:
        raise HidlError(f"{run.directory} is not a run directory of this version of hidl: {error}") from error


def readable(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs whose plan can be read, which excludes runs created by incompatible versions of hidl."""
    for run in runs:
        with suppress(HidlError):
            plan_of(run)
            yield run


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

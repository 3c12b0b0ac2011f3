"""The schema of a workload: a program, its parameters, its metrics and how it scales (``recipes/workloads/*.yaml``)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hidl_cli.errors import MissingPrecondition
from hidl_cli.inputs.check import (
    EnvironmentVariable,
    Identifier,
    Module,
    Name,
    NameIn,
    NonNegative,
    Positive,
    Regex,
    Scalar,
    Strict,
)
from hidl_cli.mpi import Family
from hidl_cli.plan.units import convert
from hidl_cli.plugins import Registry
from hidl_cli.stack.schema import Device

if TYPE_CHECKING:
    from collections.abc import Iterable


# Patterns that read metrics from a program's output.


Take = Literal["mean", "last", "first", "min", "max", "sum"]
Ranks = Literal["all", "each", 0]
Reduction = Literal["mean", "sum", "min", "max"]

#: Name of the group that matches the unit of a single number. For a number called NAME, the group is called NAME_unit.
UNIT = "unit"

_MEMORY = 32 << 20  # maximum size of a pattern's automata in bytes
_METRIC = re.compile(r"[a-z][a-z0-9_]*")
#: Operators that RE2 does not support, with their common names.
_UNSUPPORTED = (
    (re.compile(r"\(\?<?[=!]"), "look-ahead and look-behind are"),
    (re.compile(r"\\[1-9]|\(\?P=|\\[gk][<{]"), "a back-reference is"),
    (re.compile(r"\(\?>|[*+?}]\+"), "a possessive or atomic group is"),
)
_TEXT_ANCHOR = re.compile(r"(?<!\\)(?:\\\\)*\\([AzZ])")


class Pattern(Strict):
    """A regular expression that finds metrics in the output of the program, line by line."""

    pattern: Regex = Field(
        description="a regular expression in RE2's syntax (without back-references and look-around). A single group "
        "matches the number, or each named group (?P<name>...) the number of the metric with that name; a group named "
        "`unit` (or name_unit) matches the printed unit"
    )
    metric: Identifier | None = Field(None, description="the metric that a single unnamed group matches")
    printed: str | None = Field(
        None, description="unit of the printed number, which is converted to the metric's unit; null: the same unit"
    )
    take: Take = Field(
        "mean", description="how several numbers are combined into the metric's value; all of them are samples"
    )
    skip: NonNegative = Field(0, description="number of first matches to skip, such as those of the warm-up")
    ranks: Ranks = Field(
        "all",
        description="output to search: all: that of the whole launch; 0: only that of rank 0; each: that of every "
        "rank, all of which must match and yield one sample each",
    )
    reduce: Reduction = Field(
        "mean", description="with `ranks: each`: how the ranks' values are combined into the metric's value"
    )
    per: Literal["rank"] | None = Field(
        None, description="rank: the number applies to a single rank, and is multiplied by the number of ranks"
    )


@dataclass(frozen=True)
class Capture:
    """A metric with the indices of the groups that match its number and its unit (None if no unit is printed)."""

    metric: str
    group: int
    unit: int | None = None


@dataclass(eq=False)
class Mistake(Exception):
    """An error in a pattern, with the expected form and the key of ``Pattern`` whose value is invalid."""

    message: str
    expected: str
    key: str = "pattern"


@lru_cache(maxsize=64)
def compile_pattern(text: str) -> Any:
    """Compile an RE2 expression that matches within lines.

    Raises ``Mistake`` if the expression is invalid, and ``MissingPrecondition`` if RE2 is not installed.
    """
    try:
        import re2  # takes 5 ms, and few files have patterns
    except ImportError as error:
        raise MissingPrecondition(
            f"patterns require the Python package google-re2: {error}",
            hint=f"run {sys.executable} -m pip install google-re2, or have the program write $HIDL_METRICS",
        ) from error
    anchor = _TEXT_ANCHOR.search(text)
    if anchor:
        raise Mistake(f"`\\{anchor[1]}` is unsupported, since lines are matched one by one", "^ or $")
    options = re2.Options()
    options.max_mem, options.never_nl, options.log_errors = _MEMORY, True, False
    try:
        return re2.compile(f"(?m){text}", options)
    except re2.error as error:
        raise _invalid(text, error.args[0]) from None


def _invalid(text: str, error: bytes | str) -> Mistake:
    message = (error.decode(errors="replace") if isinstance(error, bytes) else error).replace("(?m)", "", 1)
    for operator, what in _UNSUPPORTED:
        if operator.search(text):
            return Mistake(
                f"{what} unsupported, since patterns are matched in linear time ({message})",
                "RE2's syntax: https://github.com/google/re2/wiki/Syntax",
            )
    return Mistake(f"invalid regular expression: {message}", "RE2's syntax: https://github.com/google/re2/wiki/Syntax")


def captures_of(pattern: str, metric: str | None) -> tuple[Capture, ...]:
    """Return the metrics that a pattern finds. A single unnamed group finds ``metric``. Raises ``Mistake``."""
    expression = compile_pattern(pattern)
    named: dict[str, int] = dict(expression.groupindex)
    units = {name for name in named if name == UNIT or (name.endswith(f"_{UNIT}") and name[: -len(UNIT) - 1] in named)}
    numbers = {name: group for name, group in named.items() if name not in units}
    unnamed = sorted(set(range(1, expression.groups + 1)) - set(named.values()))
    for name in numbers:
        if not _METRIC.fullmatch(name):
            raise Mistake(f"group `{name}` is an invalid metric name", "lower-case letters, digits and _")
    if numbers:
        if metric is not None and set(numbers) != {metric}:
            raise Mistake(
                f"`metric` is {metric}, but the groups are named {', '.join(numbers)}", "one unnamed group", "metric"
            )
        if UNIT in units and len(numbers) > 1:
            raise Mistake("group `unit` cannot be combined with several metrics", f"`{next(iter(numbers))}_unit`")
        unit_groups = {name: named.get(f"{name}_{UNIT}", named.get(UNIT)) for name in numbers}
        return tuple(Capture(name, group, unit_groups[name]) for name, group in numbers.items())
    if len(unnamed) != 1:
        count = f"{len(unnamed)} groups" if unnamed else "no group"
        raise Mistake(
            f"the number is ambiguous: the pattern has {count}",
            "one group, such as `: ([0-9.]+)`; (?:...) groups without capturing",
        )
    if metric is None:
        raise Mistake("no metric for the group", "`metric: NAME`, or a named group (?P<name>...)")
    return (Capture(metric, unnamed[0], named.get(UNIT)),)


def ranks_kept(patterns: Iterable[Pattern]) -> Literal["each", "0"] | None:
    """Return the ranks whose output must be stored separately: each rank, rank 0, or None if there are none."""
    ranks = {pattern.ranks for pattern in patterns}
    return "each" if "each" in ranks else "0" if 0 in ranks else None


def names_of(patterns: Iterable[Pattern]) -> set[str]:
    """Return the names of the metrics that valid patterns find."""
    return {capture.metric for pattern in patterns for capture in captures_of(pattern.pattern, pattern.metric)}


def mistakes(pattern: Pattern, units: Mapping[str, str]) -> list[Mistake]:
    """Return all errors in a pattern; ``units`` maps the known metrics to their units."""
    found: list[Mistake] = []
    try:
        captures = captures_of(pattern.pattern, pattern.metric)
    except Mistake as mistake:
        return [mistake]
    if pattern.printed is not None:
        if len(captures) > 1:
            found.append(
                Mistake("`printed` cannot be combined with several metrics", "a pattern for each metric", "printed")
            )
        elif captures[0].unit is not None:
            found.append(Mistake("`printed` cannot be combined with a group for the unit", "one of them", "printed"))
        elif captures[0].metric in units:
            found.extend(_inconvertible(pattern.printed, units[captures[0].metric]))
    if pattern.reduce != "mean" and pattern.ranks != "each":
        found.append(Mistake("`reduce` requires `ranks: each`", "`ranks: each`", "reduce"))
    if pattern.per == "rank" and pattern.ranks == "each":
        found.append(
            Mistake("`per: rank` cannot be combined with `ranks: each`", "`reduce: sum` to add up all ranks", "per")
        )
    return found


def _inconvertible(printed: str, unit: str) -> list[Mistake]:
    try:
        convert(1.0, printed, unit)
    except ValueError as error:
        return [Mistake(str(error), f"a unit that can be converted to {unit!r}", "printed")]
    return []


Value = Scalar


def _values(value: Any) -> Any:
    """Wrap a single value in a list, and return lists unchanged."""
    return value if isinstance(value, list) else [value]


#: Parameter values that satisfy a condition.
Condition = Annotated[
    list[Value], BeforeValidator(_values, json_schema_input_type=Value | list[Value]), Field(min_length=1)
]

#: Functions that read metrics from a program's output. To add one, register its module here or in a plug-in.
PARSERS: Registry[Callable[[str], dict[str, dict[str, Any]]]] = Registry(
    "hidl.parsers",
    "parser",
    {
        "omb": "hidl_cli.runs.parsers.omb:parse",
        "horovod-synthetic": "hidl_cli.runs.parsers.horovod_synthetic:parse",
    },
    members=("__call__",),
)
Parser = Annotated[str, NameIn(PARSERS)]


class Program(Strict):
    """The program that every rank starts: either a Python module of the stack or a command."""

    module: Module | None = Field(
        None, description="a Python module, which is run with `python -m` after a check of the world's size"
    )
    command: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="argv of any other program; a separate launch checks the world's size before it"
    )
    arguments: list[str] | None = Field(
        None,
        description="arguments of the program: {name} is replaced by the value of a parameter, {name?word} by the word "
        "unless the parameter is false, 0 or empty, {ranks} and {nodes} by the size of the launch; null: --name=value "
        "for every parameter",
    )
    directory: str | None = Field(
        None,
        pattern="^/",
        description="for a command: absolute path of the directory in which every rank starts it; RANK, WORLD_SIZE, "
        "LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set as by torchrun; null: the run's directory, without these "
        "variables",
    )
    mpi: bool = Field(
        True,
        description="whether a command uses MPI; false: no launch checks the world's size before it, and with a "
        "`directory` each rank checks the size that its launcher reports",
    )
    separate_ranks: bool = Field(
        False,
        description="whether the ranks of a command with a `directory` work separately; false: a run ends if a "
        "framework (torch.distributed, JAX, TensorFlow, Lightning, accelerate, Horovod) forms a world other than "
        "that of the launched ranks",
    )
    once: bool = Field(
        False,
        description="whether a command with a `directory` starts once, on the first node and without the stack, and "
        "starts its ranks itself, as a batch script does",
    )
    processes: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="for a command with a `directory` that starts its processes itself, such as torchrun: their number "
        "on each node, which should have one rank",
    )
    timed: bool = Field(
        False,
        description="whether the job measures the time of the launch, which permits the metrics wall_time (s) and "
        "throughput (ranks / wall_time, 1/s)",
    )
    threads: bool = Field(
        True,
        description="whether a Python module may call MPI from several threads (MPI_THREAD_MULTIPLE); false: MPI is "
        "initialized with MPI_THREAD_SINGLE, which makes small messages faster",
    )
    chooses_gpu: bool = Field(
        False,
        description="whether a Python module selects its GPU by its local rank among all GPUs of the job, as programs "
        "for Horovod and torchrun do; false: the GPU of the rank is the first that it sees",
    )
    parser: Parser | None = Field(
        None, description="parser of the metrics in its output; null: the program writes them to $HIDL_METRICS"
    )
    patterns: list[Pattern] = Field(
        default_factory=list,
        description="regular expressions that find metrics in its output; all other metrics are read by `parser` or "
        "from $HIDL_METRICS",
    )


class Alternative(Program):
    """Another program of the workload, which is started if the parameters have the values in `when`."""

    when: Annotated[dict[str, Condition], Field(min_length=1)] = Field(
        description="parameter -> value, or a list of values that match"
    )


class GpuDefault(Strict):
    """The default of a parameter on GPUs that satisfy the conditions."""

    value: Value = Field(description="the default")
    archs: list[str] = Field(default_factory=list, description="architectures of the GPUs; empty: any")
    memory_gib: NonNegative = Field(0, description="minimum memory of a GPU, in GiB")

    def fits(self, arch: str | None, memory_gib: float | None) -> bool:
        """Return whether GPUs with this architecture and memory (None if unknown) satisfy the conditions."""
        return (not self.archs or arch in self.archs) and (not self.memory_gib or (memory_gib or 0) >= self.memory_gib)


class Parameter(Strict):
    """A parameter, set by `--set name=value` and passed to the program as the argument `--name=value`."""

    type: Literal["int", "float", "str", "bool", "choice"] = Field(description="type of the value")
    default: Value = Field(description="default value")
    on_gpus: list[GpuDefault] = Field(
        default_factory=list, description="defaults in runs on GPUs: the first whose conditions the GPUs satisfy"
    )
    words: dict[str, list[str]] = Field(
        default_factory=dict,
        description="for type choice: a choice -> the words that replace {name} in `arguments`; by default the choice "
        "itself",
    )
    help: str = Field("", description="one-line description")
    unit: str | None = Field(None, description="unit of the value")
    choices: list[str] = Field(default_factory=list, description="for type choice: the valid values")
    min: float | None = Field(None, description="smallest valid number")
    max: float | None = Field(None, description="largest valid number")


class Metric(Strict):
    """A metric of the program."""

    unit: str = Field(description="unit, which must be the one that the program reports")
    better: Literal["higher", "lower"] | None = Field(None, description="which direction is an improvement")
    required: bool = Field(True, description="whether a run without it fails, with exit code 9")
    equal_on_all_ranks: bool = Field(
        False,
        description="whether it has one sample per rank, all of which must be equal; otherwise, the exit code is 10",
    )


#: The metrics that the job itself measures for a `timed` program.
TIMES = {
    "wall_time": Metric(unit="s", better="lower"),
    "throughput": Metric(unit="1/s", better="higher"),
}


class Scaling(Strict):
    """The scaling of a workload, with the target efficiency."""

    metric: str = Field(description="the metric from which efficiency is computed")
    kind: Literal["weak", "strong"] = Field(
        description="weak: the work grows with the ranks; strong: it is the same at all sizes"
    )
    target: Annotated[float, Field(gt=0, le=2)] = Field(description="target efficiency")


class DeviceChoice(Strict):
    """A device that the workload computes on if the parameters have the values in `when`."""

    device: Device = Field(description="cpu or gpu")
    when: dict[str, Condition] = Field(
        default_factory=dict,
        description="parameter -> value, or a list of values that match; empty: unless another device matches",
    )
    packages: list[Name] = Field(
        default_factory=list,
        description="packages that the stack must contain, such as cupy (in any of its builds); torch, tensorflow and "
        "packages that the stack compiles must be built for the device",
    )
    gpu_aware: bool = Field(
        False,
        description="whether a command selects its GPU by its local rank and passes addresses of GPU memory to MPI: a "
        "separate launch before it ends the run if the MPI library does not support them, and MPI_LOCALRANKID is set "
        "to the local rank with every launcher",
    )


def _device_choice(value: Any) -> Any:
    """Convert a device name to a choice of this device without conditions."""
    return {"device": value} if isinstance(value, str) else value


class StackChoice(Strict):
    """A stack that supports the workload if the parameters have the values in `when`."""

    stack: Name = Field(description="name of the stack")
    when: dict[str, Condition] = Field(
        default_factory=dict, description="parameter -> value, or a list of values that match; empty: always"
    )


DeviceEntry = Annotated[DeviceChoice, BeforeValidator(_device_choice, json_schema_input_type=Device | DeviceChoice)]


class Elastic(Strict):
    """The conditions under which a run may continue on another number of nodes with the same results."""

    when: dict[str, Condition] = Field(
        default_factory=dict, description="parameter -> value, or a list of values, that they must have"
    )
    requires: list[str] = Field(default_factory=list, description="parameters that must not be 0 or empty")
    batch: str | None = Field(
        None, description="parameter with the global batch, which the number of ranks must divide; null: there is none"
    )


class Workload(Strict):
    """A program with its parameters, its metrics and its scaling."""

    name: Name = Field(description="name of the workload; the file is called <name>.yaml")
    title: str = Field(description="one-line description")
    extends: str | None = Field(None, description="another workload, which provides the keys that are missing here")
    program: Program = Field(description="the program that every rank starts")
    alternatives: list[Alternative] = Field(
        default_factory=list, description="the first one whose `when` matches replaces `program`"
    )
    stacks: Annotated[list[StackChoice], Field(min_length=1)] = Field(
        description="the first one whose `when` matches is used"
    )
    devices: Annotated[list[DeviceEntry], Field(min_length=1)] | None = Field(
        None,
        description="devices that it supports: cpu, gpu, or an object with `device` and the parameters that select it "
        "(`when`). If an object with `when` matches, entries without `when` are ignored. With null, they are unknown, "
        "and the program reads $HIDL_DEVICE",
    )
    any_node: bool = Field(
        False,
        description="whether it tests or measures the nodes themselves: on nodes whose GPUs it does not use, it runs "
        "on the CPUs and requests no GPUs; false: such runs require `--device cpu`",
    )
    parameters: dict[Identifier, Parameter] = Field(default_factory=dict, description="parameters that `--set` changes")
    metrics: dict[Identifier, Metric] = Field(default_factory=dict, description="metrics of the program")
    least_ranks: Positive = Field(
        1, description="minimum number of ranks, and the number that `hidl run` starts by default"
    )
    overhead_ranks: NonNegative = Field(
        0,
        description="number of ranks that only coordinate, such as Dask's scheduler and client: each launch requires "
        "at least one more rank, and efficiency is computed for the others, the workers",
    )
    continues: bool = Field(
        False,
        description="whether the program stops cleanly and continues from `$HIDL_CHECKPOINT`, for `--until-done`",
    )
    elastic: Elastic | None = Field(
        None,
        description="conditions under which a job may continue on another number of nodes, for `--until-done --nodes "
        "2-4`; null: it may not, because its results or its global batch would change",
    )
    tuning: dict[Family, dict[EnvironmentVariable, Scalar]] = Field(
        default_factory=dict, description="recommended run-time variables for each MPI family"
    )
    scaling: Scaling | None = Field(None, description="how it scales; null: it does not scale")
    estimate: Module | None = Field(
        None,
        description="a Python module of the stack that predicts the metrics without running the program: `hidl run "
        "--estimate` starts it once with the program's module and arguments; null: no estimates",
    )

    @property
    def needed_ranks(self) -> int:
        """The number of ranks in the smallest launch."""
        return max(self.least_ranks, self.overhead_ranks + 1)

    def program_for(self, parameters: Mapping[str, Value]) -> Program:
        """Return the program to start for these parameters."""
        return next((other for other in self.alternatives if holds(other.when, parameters)), self.program)


def holds(when: Mapping[str, Condition], parameters: Mapping[str, Value]) -> bool:
    """Return whether the parameters have the values in ``when``."""
    return all(parameters.get(name) in values for name, values in when.items())

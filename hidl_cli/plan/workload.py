"""The schema of a workload: a program with parameters, its metrics and how it scales (``recipes/workloads/*.yaml``)."""

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
    from collections.abc import Iterable, Mapping


# Patterns that read metrics from what a program prints: their schema, and what makes one valid.


Take = Literal["mean", "last", "first", "min", "max", "sum"]
Ranks = Literal["all", "each", 0]
Reduction = Literal["mean", "sum", "min", "max"]

#: The group that holds the unit of the only number; that of the number NAME is NAME_unit.
UNIT = "unit"

_MEMORY = 32 << 20  # bytes for each pattern's automata, filled as needed
_METRIC = re.compile(r"[a-z][a-z0-9_]*")
#: What RE2 says of operators that it has not, in the words of those who write them.
_UNSUPPORTED = (
    (re.compile(r"\(\?<?[=!]"), "look-ahead and look-behind are"),
    (re.compile(r"\\[1-9]|\(\?P=|\\[gk][<{]"), "a back-reference is"),
    (re.compile(r"\(\?>|[*+?}]\+"), "a possessive or atomic group is"),
)
_TEXT_ANCHOR = re.compile(r"(?<!\\)(?:\\\\)*\\([AzZ])")


class Pattern(Strict):
    """A regular expression that finds metrics in the program's output, line by line."""

    pattern: Regex = Field(
        description="a regular expression (RE2's syntax: no back-references, no look-around). One group holds the "
        "number, or named groups (?P<name>...) each the number of the metric of that name; a group named `unit` (or "
        "name_unit) holds the unit as printed"
    )
    metric: Identifier | None = Field(None, description="the metric that a single unnamed group holds")
    printed: str | None = Field(
        None, description="the unit of the printed number, if not that of the metric; the number is converted"
    )
    take: Take = Field("mean", description="the metric's value if there are several numbers; all are its samples")
    skip: NonNegative = Field(0, description="how many of the first numbers to leave out, such as those of warm-up")
    ranks: Ranks = Field(
        "all",
        description="whose output is searched: all: that of the launch as a whole; 0: that of rank 0 alone; each: that "
        "of every rank, each must have a match, and the samples are one for each rank",
    )
    reduce: Reduction = Field("mean", description="with `ranks: each`: the metric's value from those of the ranks")
    per: Literal["rank"] | None = Field(
        None, description="rank: the number is what each rank does; it is multiplied by the number of ranks"
    )


@dataclass(frozen=True)
class Capture:
    """A metric and the numbers of its groups: the number's and the unit's (None: not printed)."""

    metric: str
    group: int
    unit: int | None = None


@dataclass(eq=False)
class Mistake(Exception):
    """What is wrong with a pattern, and what was expected; ``key``: the key of ``Pattern`` that is wrong."""

    message: str
    expected: str
    key: str = "pattern"


@lru_cache(maxsize=64)
def compile_pattern(text: str) -> Any:
    """Return the compiled RE2 expression, which matches within lines.

    Raises ``Mistake``, or ``MissingPrecondition`` if RE2 is not installed.
    """
    try:
        import re2  # 5 ms, which files without patterns need not spend
    except ImportError as error:
        raise MissingPrecondition(
            f"metrics by patterns require the Python package google-re2: {error}",
            hint=f"{sys.executable} -m pip install google-re2; or let the program write $HIDL_METRICS",
        ) from error
    anchor = _TEXT_ANCHOR.search(text)
    if anchor:
        raise Mistake(f"`\\{anchor[1]}` is unsupported: lines are matched one by one", "^ or $")
    options = re2.Options()
    options.max_mem, options.never_nl, options.log_errors = _MEMORY, True, False
    try:
        return re2.compile(f"(?m){text}", options)
    except re2.error as error:
        raise _invalid(text, error.args[0]) from None


def _invalid(text: str, said: bytes | str) -> Mistake:
    message = (said.decode(errors="replace") if isinstance(said, bytes) else said).replace("(?m)", "", 1)
    for operator, what in _UNSUPPORTED:
        if operator.search(text):
            return Mistake(
                f"{what} unsupported: patterns are matched in linear time ({message})",
                "RE2's syntax: https://github.com/google/re2/wiki/Syntax",
            )
    return Mistake(f"invalid regular expression: {message}", "RE2's syntax: https://github.com/google/re2/wiki/Syntax")


def captures_of(pattern: str, metric: str | None) -> tuple[Capture, ...]:
    """Return the metrics that a pattern finds; raises ``Mistake``. ``metric``: the name of its only number."""
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
                f"metric {metric}, but the groups are named {', '.join(numbers)}", "one unnamed group", "metric"
            )
        if UNIT in units and len(numbers) > 1:
            raise Mistake("group `unit` with several metrics", f"`{next(iter(numbers))}_unit`")
        of_unit = {name: named.get(f"{name}_{UNIT}", named.get(UNIT)) for name in numbers}
        return tuple(Capture(name, group, of_unit[name]) for name, group in numbers.items())
    if len(unnamed) != 1:
        count = f"{len(unnamed)} groups" if unnamed else "no group"
        raise Mistake(
            f"{count}: which part is the number?",
            "one group, such as `: ([0-9.]+)`; (?:...) groups without capturing",
        )
    if metric is None:
        raise Mistake("no metric for the group", "`metric: NAME`, or a named group (?P<name>...)")
    return (Capture(metric, unnamed[0], named.get(UNIT)),)


def ranks_kept(patterns: Iterable[Pattern]) -> Literal["each", "0"] | None:
    """Return the ranks whose output must be kept by itself: every one's, that of rank 0, or (None) none's."""
    asked = {pattern.ranks for pattern in patterns}
    return "each" if "each" in asked else "0" if 0 in asked else None


def names_of(patterns: Iterable[Pattern]) -> set[str]:
    """Return the metrics that valid patterns find."""
    return {capture.metric for pattern in patterns for capture in captures_of(pattern.pattern, pattern.metric)}


def mistakes(pattern: Pattern, units: Mapping[str, str]) -> list[Mistake]:
    """Return everything that is wrong with a pattern; ``units``: those of the known metrics."""
    found: list[Mistake] = []
    try:
        captures = captures_of(pattern.pattern, pattern.metric)
    except Mistake as mistake:
        return [mistake]
    if pattern.printed is not None:
        if len(captures) > 1:
            found.append(Mistake("one `printed` for several metrics", "a pattern for each metric", "printed"))
        elif captures[0].unit is not None:
            found.append(Mistake("`printed` and a group for the unit", "one of them", "printed"))
        elif captures[0].metric in units:
            found.extend(_inconvertible(pattern.printed, units[captures[0].metric]))
    if pattern.reduce != "mean" and pattern.ranks != "each":
        found.append(Mistake("`reduce` without `ranks: each`", "`ranks: each`", "reduce"))
    if pattern.per == "rank" and pattern.ranks == "each":
        found.append(Mistake("`per: rank` and `ranks: each`", "`reduce: sum` adds the numbers of all ranks", "per"))
    return found


def _inconvertible(printed: str, unit: str) -> list[Mistake]:
    try:
        convert(1.0, printed, unit)
    except ValueError as error:
        return [Mistake(str(error), f"a unit that can be converted to {unit!r}", "printed")]
    return []


Value = Scalar


def _values(value: Any) -> Any:
    """Read one value as the list of it."""
    return value if isinstance(value, list) else [value]


#: The values of which a parameter has one.
Condition = Annotated[
    list[Value], BeforeValidator(_values, json_schema_input_type=Value | list[Value]), Field(min_length=1)
]

#: Functions that read metrics from what a program prints: a module and one line here, or a plug-in.
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
    """What is started on every rank: a Python module of the stack, or a command. Exactly one of the two is given."""

    module: Module | None = Field(
        None, description="a Python module, run as `python -m` after the world's size was checked"
    )
    command: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="argv of any other program; the world's size is checked by a launch of its own before it"
    )
    arguments: list[str] | None = Field(
        None,
        description="the words after it, in which {name} stands for a parameter's value and {name?word} for a word "
        "that is left out where the parameter is false, 0 or empty; {ranks} and {nodes} stand for the size of the "
        "launch; null: --name=value for every parameter",
    )
    directory: str | None = Field(
        None,
        pattern="^/",
        description="for a command: the absolute path of the directory in which every rank starts it, with RANK, "
        "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set as torchrun sets them; null: the run's directory, and "
        "no such variables",
    )
    mpi: bool = Field(
        True,
        description="whether a command uses MPI; false: no launch checks the world's size before it, and with a "
        "`directory` each rank compares what its launcher says",
    )
    timed: bool = Field(
        False,
        description="whether the job measures the launch: wall_time (s) and throughput (ranks / wall_time, 1/s) may be "
        "among the metrics",
    )
    threads: bool = Field(
        True,
        description="whether a Python module may call MPI from several threads (MPI_THREAD_MULTIPLE); false: MPI is "
        "initialised with MPI_THREAD_SINGLE, and a small message costs less",
    )
    chooses_gpu: bool = Field(
        False,
        description="whether a Python module chooses its GPU by its local rank, as programs for Horovod and torchrun "
        "do, of all that its job may see; false: it sees its rank's own first",
    )
    parser: Parser | None = Field(
        None, description="who reads the metrics from what it prints; null: it writes them to $HIDL_METRICS"
    )
    patterns: list[Pattern] = Field(
        default_factory=list,
        description="regular expressions that read metrics from what it prints; other metrics come from `parser`, or "
        "from $HIDL_METRICS",
    )


class Alternative(Program):
    """Another program for the same workload, started where the parameters have the values in `when`."""

    when: Annotated[dict[str, Condition], Field(min_length=1)] = Field(
        description="parameter -> value, or a list of values of which it has one"
    )


class GpuDefault(Strict):
    """A parameter's default on the GPUs that meet the conditions."""

    value: Value = Field(description="the default")
    archs: list[str] = Field(default_factory=list, description="architectures of the GPUs; empty: any")
    memory_gib: NonNegative = Field(0, description="memory that a GPU must have at least, in GiB")

    def fits(self, arch: str | None, memory_gib: float | None) -> bool:
        """Do GPUs of this architecture and memory (None: unknown) meet the conditions?"""
        return (not self.archs or arch in self.archs) and (not self.memory_gib or (memory_gib or 0) >= self.memory_gib)


class Parameter(Strict):
    """One parameter that `--set name=value` changes; the program gets it as the argument `--name=value`."""

    type: Literal["int", "float", "str", "bool", "choice"] = Field(description="how the value is read")
    default: Value = Field(description="the value where none is given")
    on_gpus: list[GpuDefault] = Field(
        default_factory=list, description="defaults in runs on GPUs: the first whose conditions the GPUs meet"
    )
    words: dict[str, list[str]] = Field(
        default_factory=dict,
        description="for type choice: a choice -> the words that stand for it in the place of a word {name} of "
        "`arguments`; a choice that is not here is its own word",
    )
    help: str = Field("", description="what it does, in one line")
    unit: str | None = Field(None, description="the value's unit")
    choices: list[str] = Field(default_factory=list, description="for type choice: the valid words")
    min: float | None = Field(None, description="smallest valid number")
    max: float | None = Field(None, description="largest valid number")


class Metric(Strict):
    """One metric that the program yields."""

    unit: str = Field(description="the unit; the program must report the same")
    better: Literal["higher", "lower"] | None = Field(None, description="which direction is an improvement")
    required: bool = Field(True, description="a run without it fails with exit code 9")
    equal_on_all_ranks: bool = Field(
        False, description="its samples are one per rank, and all must be equal, or the run fails with exit code 10"
    )


#: The metrics that the job itself measures where the program is `timed`.
TIMES = {
    "wall_time": Metric(unit="s", better="lower"),
    "throughput": Metric(unit="1/s", better="higher"),
}


class Scaling(Strict):
    """How the workload scales, and how well it should."""

    metric: str = Field(description="the key of metrics that efficiency is computed from")
    kind: Literal["weak", "strong"] = Field(
        description="weak: the work grows with the ranks; strong: it is the same at all sizes"
    )
    target: Annotated[float, Field(gt=0, le=2)] = Field(description="the efficiency that must be reached")


class DeviceChoice(Strict):
    """A device that the workload computes on, where the parameters have the values in `when`."""

    device: Device = Field(description="cpu: the processors; gpu: the GPUs of the nodes")
    when: dict[str, Condition] = Field(
        default_factory=dict,
        description="parameter -> value, or a list of values of which it has one; empty: unless others hold",
    )
    packages: list[Name] = Field(
        default_factory=list,
        description="packages that the stack must hold for it, such as cupy (in any of its builds); torch, tensorflow "
        "and what the stack compiles: a build for the device",
    )
    gpu_aware: bool = Field(
        False,
        description="whether a command chooses its GPU by its local rank, and gives MPI the addresses of GPU memory: a "
        "launch of its own before it ends the run if the MPI library says that it does not read them, and the command "
        "finds its local rank in MPI_LOCALRANKID, whatever starts it",
    )


def _device_choice(value: Any) -> Any:
    """Read a device's name as the choice that always holds."""
    return {"device": value} if isinstance(value, str) else value


class StackChoice(Strict):
    """A stack that serves the workload, where the parameters have the values in `when`."""

    stack: Name = Field(description="a stack's name")
    when: dict[str, Condition] = Field(
        default_factory=dict,
        description="parameter -> value, or a list of values of which it has one; empty: always",
    )


DeviceEntry = Annotated[DeviceChoice, BeforeValidator(_device_choice, json_schema_input_type=Device | DeviceChoice)]


class Workload(Strict):
    """A program with parameters, the metrics that it yields and how it scales."""

    name: Name = Field(description="the workload's name; the file is called <name>.yaml")
    title: str = Field(description="what it does, in one line")
    extends: str | None = Field(None, description="another workload whose keys hold where this file gives none")
    program: Program = Field(description="what is started on every rank")
    alternatives: list[Alternative] = Field(
        default_factory=list, description="the first whose `when` holds is started in the place of `program`"
    )
    stacks: Annotated[list[StackChoice], Field(min_length=1)] = Field(
        description="the first whose `when` holds is used"
    )
    devices: Annotated[list[DeviceEntry], Field(min_length=1)] | None = Field(
        None,
        description="what it computes on: cpu, gpu, or an object with `device` and the parameters for which it holds "
        "(`when`); where such an object holds, those without `when` do not; null: unknown, and the program reads "
        "$HIDL_DEVICE",
    )
    any_node: bool = Field(
        False,
        description="whether it tests or measures the nodes themselves: on nodes whose GPUs it does not use, it runs "
        "on the processors and requests no GPUs; false: refused there without `--device cpu`",
    )
    parameters: dict[Identifier, Parameter] = Field(default_factory=dict, description="what `--set` may change")
    metrics: dict[Identifier, Metric] = Field(default_factory=dict, description="what the program yields")
    least_ranks: Positive = Field(
        1, description="least number of ranks that it can run with, and the number that `hidl run` starts by default"
    )
    overhead_ranks: NonNegative = Field(
        0,
        description="ranks of each launch that do no work of their own, such as Dask's scheduler and client: a launch "
        "needs one more rank than these, and efficiency is held against the others, the workers",
    )
    tuning: dict[Family, dict[EnvironmentVariable, Scalar]] = Field(
        default_factory=dict, description="run-time variables that suit it, for each MPI family that reads them"
    )
    scaling: Scaling | None = Field(None, description="how it scales; null: it is not meant to")
    estimate: Module | None = Field(
        None,
        description="a Python module of the stack that predicts the metrics, and runs nothing: `hidl run "
        "--estimate` starts it once with the program's module and arguments; null: no estimate",
    )

    @property
    def needed_ranks(self) -> int:
        """The number of ranks of the smallest launch."""
        return max(self.least_ranks, self.overhead_ranks + 1)

    def program_for(self, parameters: Mapping[str, Value]) -> Program:
        """Return the program to start for these values of all parameters."""
        return next((other for other in self.alternatives if holds(other.when, parameters)), self.program)


def holds(when: Mapping[str, Condition], parameters: Mapping[str, Value]) -> bool:
    """Do the parameters have the values in ``when``?"""
    return all(parameters.get(name) in values for name, values in when.items())

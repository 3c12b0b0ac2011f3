"""What a workload is: a program with parameters, the metrics that it yields and how it scales
(``recipes/workloads/*.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from hidl_cli.inputs.fields import EnvironmentVariable, Identifier, Module, Name, NonNegative, Positive, Scalar, Strict
from hidl_cli.mpi import Family

Value = Scalar

#: Who can read metrics from a program's output (``hidl_cli.runs.parsers``).
Parser = Literal["omb", "horovod-synthetic"]


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
        "that is left out where the parameter is false, 0 or empty; null: --name=value for every parameter",
    )
    threads: bool = Field(
        True,
        description="whether a Python module may call MPI from several threads (MPI_THREAD_MULTIPLE); false: MPI is "
        "initialised with MPI_THREAD_SINGLE, and a small message costs less",
    )
    parser: Parser | None = Field(
        None, description="who reads the metrics from what it prints; null: it writes them to $HIDL_METRICS"
    )


class Alternative(Program):
    """Another program for the same workload, started where the parameters have the values in `when`."""

    when: Annotated[dict[str, Value], Field(min_length=1)] = Field(description="parameter -> value")


class Parameter(Strict):
    """One parameter that `--set name=value` changes; the program gets it as the argument `--name=value`."""

    type: Literal["int", "float", "str", "bool", "choice"] = Field(description="how the value is read")
    default: Value = Field(description="the value where none is given")
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


class Scaling(Strict):
    """How the workload scales, and how well it should."""

    metric: str = Field(description="the key of metrics that efficiency is computed from")
    kind: Literal["weak", "strong"] = Field(
        description="weak: throughput grows with ranks; strong: time shrinks with ranks"
    )
    target: Annotated[float, Field(gt=0, le=2)] = Field(description="the efficiency that must be reached")


class StackChoice(Strict):
    """A stack that serves the workload, where the parameters have the values in `when`."""

    stack: Name = Field(description="a stack's name")
    when: dict[str, Value] = Field(default_factory=dict, description="parameter -> value; empty: always")


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
    parameters: dict[Identifier, Parameter] = Field(default_factory=dict, description="what `--set` may change")
    metrics: dict[Identifier, Metric] = Field(default_factory=dict, description="what the program yields")
    least_ranks: Positive = Field(
        1, description="ranks without which it cannot run: what `hidl run` starts where nobody asks for a number"
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
        description="a Python module of the stack that tells what the metrics will be, and runs nothing: `hidl run "
        "--estimate` starts it once with the program's module and arguments; null: nobody can tell",
    )

    @property
    def needed_ranks(self) -> int:
        """Ranks of the smallest launch."""
        return max(self.least_ranks, self.overhead_ranks + 1)

    def program_for(self, parameters: Mapping[str, Value]) -> Program:
        """The program that is started for these values of all parameters."""
        return next((other for other in self.alternatives if holds(other.when, parameters)), self.program)


def holds(when: Mapping[str, Value], parameters: Mapping[str, Value]) -> bool:
    """Have the parameters the values in ``when``?"""
    return all(parameters.get(name) == value for name, value in when.items())

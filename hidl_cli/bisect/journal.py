"""The files of a bisect: its question (what is compared) and its journal (all runs so far).

Another job can continue the bisect from this directory::

    $XDG_STATE_HOME/hidl/bisects/<time>-<digest>/
        question.json      the two runs with their plans, the metric with its recorded values, the changes
        journal.json       the planned rounds, and all runs with their values; written after each run
        runs/<id>/         the run directories
        jobs/<id>/         the job directories

A *mixture* is the good run's configuration with some of the bad run's changes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median, stdev
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from hidl_cli import paths
from hidl_cli.analysis import culprit
from hidl_cli.analysis.culprit import CulpritAnswer, Expectation, Mixture, Recorded, RunObservation
from hidl_cli.analysis.samples import Measure, Sample, by_measure, in_common_units
from hidl_cli.analysis.statistics import MIN_REPETITIONS, SAME
from hidl_cli.capsule import Original, stdin_of
from hidl_cli.documents import read_json, write_json
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Library
from hidl_cli.plan.devices import DEVICE, GPUS_PER_RANK
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.plan.planning import MPI_ABI, planned_again
from hidl_cli.plan.workload import TIMES, Program, Value, Workload
from hidl_cli.record import Run, all_runs
from hidl_cli.redaction import holds_secret, redact, redact_variable
from hidl_cli.runs.verification import Provenance, fold_or_join, format_mpi
from hidl_cli.stack import installation
from hidl_cli.stack.installation import Installation
from hidl_cli.store.extract import samples_of
from hidl_cli.tuning.judge import Setting

#: Smallest slowdown that the search assumes between the two runs, as a fraction.
LEAST_SLOWDOWN = 0.01


@dataclass(frozen=True)
class ComparedRun:
    """One of the two runs to compare, with its stack as installed here.

    ``inputs`` maps paths of input files to SHA-256, or is None if they were not recorded. ``given`` describes the
    redacted words in the run's capsule for which the user has supplied values.
    """

    plan: Plan
    hosts: tuple[str, ...]
    packages: Mapping[str, str]
    samples: tuple[Sample, ...]
    inputs: Mapping[str, str] | None
    given: tuple[str, ...] = ()


@dataclass(frozen=True)
class BisectMetric:
    """The metric that is compared.

    ``sign`` is 1 if greater values mean slower runs, or else -1. ``good`` and ``bad`` contain the recorded values of
    all repetitions.
    """

    measure: Measure
    unit: str
    sign: int
    good: tuple[float, ...]
    bad: tuple[float, ...]

    def slowness(self, value: float) -> float:
        """Return a value's slowness: its logarithm, negated if smaller values mean slower runs."""
        return self.sign * math.log(value)

    @property
    def recorded(self) -> Recorded:
        """The recorded values of both runs, converted by ``slowness``."""
        return Recorded(*(tuple(map(self.slowness, values)) for values in (self.good, self.bad)))

    @property
    def slowdown(self) -> float:
        """The recorded slowdown, as a logarithm."""
        return median(self.recorded.bad) - median(self.recorded.good)

    def expectation(self, weights: Sequence[float]) -> Expectation:
        """Return the prior implied by the recorded values for changes with these weights."""
        spreads = [stdev(each) for each in (self.recorded.good, self.recorded.bad) if len(each) >= MIN_REPETITIONS]
        noise = math.sqrt(sum(each**2 for each in spreads) / len(spreads)) if spreads else None
        return Expectation(
            max(self.slowdown, math.log1p(LEAST_SLOWDOWN)),
            noise if noise is not None and noise > SAME else None,
            tuple(weights),
        )


def read_run(run: Run) -> ComparedRun:
    """Read a run. Raises ``MissingPrecondition`` if it has no metrics or its stack is no longer installed."""
    plan = _check_plan(plan_of(run))
    samples = samples_of(run)
    if not samples:
        raise MissingPrecondition(f"run {run.id} has no metrics", hint=f"check the run with: hidl status {run.id}")
    found = installation.at(Path(plan.prefix))
    if found is None or found.lock != plan.lock:
        raise MissingPrecondition(
            f"stack {plan.stack} of run {run.id} (lock {plan.lock[:12]}) is no longer installed in {plan.prefix}",
            hint="pass a capsule of the run instead, if hidl capsule created one while the stack was installed",
        )
    if foreign := installation.version_mismatch(found):
        raise MissingPrecondition(foreign, hint=f"run hidl capsule {run.id} -o FILE, then pass FILE instead of the run")
    stdin = None if plan.stdin is None else str(run.directory / plan.stdin)
    _require_stdin(plan, stdin)
    plan = replace(plan, stdin=stdin)
    return ComparedRun(plan, run.status().hosts, found.manifest["packages"], tuple(samples), None)


def read_capsule(original: Original, installed: Installation | None) -> ComparedRun:
    """Read a capsule's run, with the stack installed from the capsule's lockfile.

    ``installed`` is None if the run is only inspected.
    """
    plan = _check_plan(original.plan)
    if installed is not None:
        prefix = str(installed.prefix)
        _require_stdin(plan, stdin_of(original))
        mpi = replace(plan.mpi, prefix=prefix) if plan.mpi_of_the_stack else plan.mpi
        activate = str(installed.activate)
        plan = replace(plan, prefix=prefix, activate=activate, mpi=mpi, stdin=stdin_of(original))
    inputs = {each.path: each.sha256 for each in original.inputs}
    samples = tuple(samples_of(original.run))
    return ComparedRun(plan, original.run.status().hosts, original.capsule.packages, samples, inputs, original.replaced)


def _require_stdin(plan: Plan, file: str | None) -> None:
    """Raise ``MissingPrecondition`` if the run's standard input is missing."""
    if file is not None and not Path(file).is_file():
        raise MissingPrecondition(
            f"standard input {file} of run {plan.run} not found", hint="restore the file, which bisect reads"
        )


def metric_of(good: ComparedRun, bad: ComparedRun, name: str | None) -> BisectMetric:
    """Return a metric (default: the workload's main metric) at the largest size that both runs have.

    Raises ``UsageError`` if the runs do not share the metric, or if the bad run was not worse.
    """
    every = in_common_units([*good.samples, *bad.samples])
    sides = every[: len(good.samples)], every[len(good.samples) :]
    runs = [by_measure(samples, across_series=True) for samples in sides]
    measures = [measure for measure in runs[0] if measure in runs[1]]
    wanted = name or _main_metric(bad.plan.workload)
    found = [measure for measure in measures if measure.metric == wanted]
    if not found:
        common = ", ".join(sorted({measure.metric for measure in measures}))
        raise UsageError(
            f"the two runs have no metric {wanted!r} for the same workload and size",
            hint=f"use --metric with one of: {common}"
            if common
            else "bisect compares runs of the same workload and size",
        )
    measure = max(found, key=lambda each: each.ranks)
    values = [run[measure][0].values for run in runs]
    if min(map(min, values)) <= 0:
        raise UsageError(f"the values of metric {wanted} must be positive", hint="choose another --metric")
    sample = runs[1][measure][0].sample
    grows = median(values[1]) > median(values[0])
    sign = {"higher": -1, "lower": 1}.get(sample.better or "", 1 if grows else -1)
    metric = BisectMetric(measure, sample.unit, sign, *values)
    if metric.slowdown <= 0:
        raise UsageError(
            f"the bad run was not worse: {wanted} {median(values[0]):.6g} → {median(values[1]):.6g} {sample.unit}",
            hint="pass the good run first (hidl bisect GOOD BAD), or choose another --metric",
        )
    return metric


def _main_metric(workload: Workload) -> str:
    """Return the workload's scaling metric, or else its first metric. Times measured by the job are the last resort."""
    own = [name for name in workload.metrics if name not in TIMES]
    if workload.scaling is not None and not (own and workload.scaling.metric in TIMES):
        return workload.scaling.metric
    directed = [name for name in own if workload.metrics[name].better is not None]
    return next(iter([*directed, *own, *workload.metrics]), "")


def side_of(run: ComparedRun, measure: Measure) -> Side:
    """Return one side of a bisect: the run, and the placement of the step with the nodes and ranks of ``measure``."""
    placement = next(
        step.placement
        for step in run.plan.steps
        if not step.copies and (step.placement.nodes, step.placement.ranks) == (measure.nodes, measure.ranks)
    )
    return Side(Provenance(run.plan, run.hosts, run.packages), placement, run.inputs, run.given)


def _check_plan(plan: Plan) -> Plan:
    """Return the plan. Raises ``UsageError`` or ``MissingPrecondition`` if bisect does not support the run."""
    if plan.container is not None:
        raise MissingPrecondition(
            f"run {plan.run} used the image {plan.container.image}, which has no lockfile",
            hint="bisect requires runs that used a stack",
        )
    if plan.user_environment is not None:
        raise MissingPrecondition(
            f"run {plan.run} used the environment {plan.user_environment.directory}, which has no lockfile",
            hint="bisect requires runs that used a stack",
        )
    if plan.points != ({},):
        raise UsageError(
            f"run {plan.run} is a matrix, which already compares parameters",
            hint="see the comparison with: hidl results show",
        )
    return plan


# The changes between two plans that can be tried individually, and those that cannot.


ChangeKind = Literal[
    "stack", "mpi", "launcher", "tuning", "placement", "parameter", "program", "modules", "environment"
]

#: Relative prior probabilities that a change matters, in descending order. These estimates determine the search order
#: and the prior, but are outweighed by the measurements.
WEIGHTS: dict[ChangeKind, float] = {
    "stack": 4,
    "mpi": 4,
    "launcher": 3,
    "tuning": 3,
    "placement": 3,
    "parameter": 3,
    "program": 3,
    "modules": 2,
    "environment": 1.5,
}

_NONE = "not set"
T = TypeVar("T")


@dataclass(frozen=True)
class BisectChange:
    """A change that can be tried, with its values as text. ``details`` lists everything else that changes with it."""

    kind: ChangeKind
    name: str
    before: str
    after: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.title}: {self.before} → {self.after}"

    @property
    def title(self) -> str:
        """The name and kind of the changed item."""
        shown = {
            "tuning": self.name,
            "environment": f"environment variable {self.name}",
            "stack": f"stack {self.name}".strip(),
        }
        return shown.get(self.kind) or (f"{self.kind} {self.name}" if self.name else self.kind)

    @property
    def phrase(self) -> str:
        """The change, as part of a sentence."""
        return f"the change of {self.title} from {self.before} to {self.after}"

    @property
    def weight(self) -> float:
        """The relative prior probability that the change matters."""
        return WEIGHTS[self.kind]


@dataclass(frozen=True)
class Side:
    """The good or the bad run.

    ``placement`` is the compared step's placement. See ``ComparedRun`` for ``inputs`` and ``given``.
    """

    provenance: Provenance
    placement: Placement
    inputs: Mapping[str, str] | None = None
    given: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The run's plan."""
        return self.provenance.plan


@dataclass(frozen=True)
class Changes:
    """The changes to try, most probable first, and descriptions of the changes that cannot be tried, with reasons."""

    tried: tuple[BisectChange, ...]
    left_out: tuple[str, ...]


def changes_between(good: Side, bad: Side) -> Changes:
    """Return the changes between two runs."""
    old, new = _Recipe.of(good), _Recipe.of(bad)
    found = [*_stack_and_mpi(good, bad), *_settings(old, new), *_programs(old, new)]
    return Changes(tuple(sorted(found, key=lambda change: -change.weight)), tuple(_left_out(good, bad)))


def mixture(good: Side, bad: Side, changes: Iterable[BisectChange], run: str) -> Plan:
    """Apply changes to the good run's plan, and return the result as a plan with one step, for a run with id ``run``.

    Propagates any errors raised by the launcher.
    """
    recipe, new = _Recipe.of(good), _Recipe.of(bad)
    for change in changes:
        recipe = _APPLY[change.kind](recipe, new, change.name)
    return recipe.plan(run)


@dataclass(frozen=True)
class _Recipe:
    """A plan split into parts that can change independently."""

    base: Plan
    mpi: Library
    launcher: str
    placement: Placement
    modules: tuple[str, ...]
    tuning: Mapping[str, Setting]
    environment: Mapping[str, str]
    parameters: Mapping[str, Value]
    program: Program
    words: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, side: Side) -> _Recipe:
        plan = side.plan
        tuning = {setting.name: setting for setting in plan.tuning}
        derived = {**side.placement.environment(), **plan.mpi.environment}
        environment = {
            name: value
            for name, value in plan.environment.items()
            if name not in (*tuning, MPI_ABI) and derived.get(name) != value
        }
        own_modules = len(plan.modules) - len(plan.mpi.modules)
        program = plan.workload.program_for(plan.parameters)
        return cls(
            plan,
            plan.mpi,
            plan.launcher,
            side.placement,
            plan.modules[:own_modules],
            tuning,
            environment,
            plan.parameters,
            program,
            _words(program),
        )

    def plan(self, run: str) -> Plan:
        """Return the plan with a single step."""
        environment = {
            **self.placement.environment(),
            **self.environment,
            **self.mpi.environment,
            **({} if self.mpi.prefix == self.base.prefix else {MPI_ABI: self.mpi.traits.abi}),
            **{setting.name: setting.value for setting in self.tuning.values()},
        }
        plan = replace(
            self.base,
            run=run,
            mpi=self.mpi,
            modules=(*self.modules, *self.mpi.modules),
            tuning=tuple(self.tuning.values()),
            environment=environment,
            parameters=self.parameters,
            workload=self.base.workload.model_copy(update={"program": self.program, "alternatives": []}),
        )
        return planned_again(plan, self.placement, launcher(self.launcher))


def _stack_and_mpi(good: Side, bad: Side) -> Iterator[BisectChange]:
    old, new = good.plan, bad.plan
    packages = _changed(good.provenance.packages, bad.provenance.packages)
    mpi = (format_mpi(old), format_mpi(new))
    if old.lock != new.lock:
        with_mpi = [f"MPI: {mpi[0]} → {mpi[1]}"] if _are_tied(old, new) and mpi[0] != mpi[1] else []
        if _tuning_is_tied(old, new) and _are_tied(old, new):
            with_mpi += _tuning_details(old, new)
        name = new.stack if old.stack == new.stack else ""
        texts = [f"{plan.stack} (lock {plan.lock[:12]})" for plan in (old, new)]
        yield BisectChange("stack", name, texts[0], texts[1], (*with_mpi, *packages))
    if not _are_tied(old, new) and old.mpi != new.mpi:
        details = _tuning_details(old, new) if _tuning_is_tied(old, new) else []
        yield BisectChange(
            "mpi", "", mpi[0], mpi[1] if mpi[1] != mpi[0] else f"{mpi[1]} with other settings", tuple(details)
        )


def _are_tied(old: Plan, new: Plan) -> bool:
    """Return True if the stacks differ and at least one provides the MPI library, so that both must change together."""
    return old.lock != new.lock and (old.mpi_of_the_stack or new.mpi_of_the_stack)


def _tuning_is_tied(old: Plan, new: Plan) -> bool:
    return old.mpi.family != new.mpi.family


def _tuning_details(old: Plan, new: Plan) -> list[str]:
    values = [{setting.name: redact_variable(setting.name, setting.value) for setting in p.tuning} for p in (old, new)]
    return _changed(*values)


def _settings(old: _Recipe, new: _Recipe) -> Iterator[BisectChange]:
    if old.launcher != new.launcher:
        yield BisectChange("launcher", "", old.launcher, new.launcher)
    if not _tuning_is_tied(old.base, new.base):
        tuning = [{name: setting.value for name, setting in each.tuning.items()} for each in (old, new)]
        yield from _variables("tuning", *tuning)
    if old.placement != new.placement:
        yield BisectChange("placement", "", _format_placement(old.placement), _format_placement(new.placement))
    if old.modules != new.modules:
        yield BisectChange("modules", "", " ".join(old.modules) or "none", " ".join(new.modules) or "none")
    kept = [{n: v for n, v in each.environment.items() if n not in (DEVICE, GPUS_PER_RANK)} for each in (old, new)]
    yield from _variables("environment", *kept)


def _programs(old: _Recipe, new: _Recipe) -> Iterator[BisectChange]:
    for name in {**old.parameters, **new.parameters}:
        before, after = old.parameters.get(name), new.parameters.get(name)
        if before != after:
            yield BisectChange("parameter", name, _show(name, before), _show(name, after))
    if old.program == new.program:
        return
    if len(old.words) != len(new.words) or _with_words(old.program, new.words) != new.program:
        yield BisectChange("program", "", _line(old.program), _line(new.program))
        return
    for number, (before, after) in enumerate(zip(old.words, new.words, strict=True), start=1):
        if before != after:
            yield BisectChange("program", f"word {number}", redact(before), redact(after))


def _left_out(good: Side, bad: Side) -> Iterator[str]:
    old, new = good.plan, bad.plan
    hosts = [fold_or_join(each.provenance.hosts) for each in (good, bad)]
    for what, before, after, why in (
        ("hidl", old.hidl, new.hidl, "all runs use the current hidl"),
        ("hosts", *hosts, "all runs use the hosts of one allocation"),
        ("partition", old.partition, new.partition, "all runs use the partition of the good run"),
        ("device", old.device, new.device, "all runs use the device of the good run"),
        ("memory per node", old.allocation.memory_gib, new.allocation.memory_gib, "all runs share one allocation"),
        ("standard input", old.stdin, new.stdin, "all runs read the good run's input"),
        ("GPUs per node", old.allocation.gpus_per_node, new.allocation.gpus_per_node, "all runs share one allocation"),
    ):
        if before != after:
            yield f"{what}: {before or 'none'} → {after or 'none'} ({why})"
    yield from dict.fromkeys(f"{each} (in all runs)" for side in (good, bad) for each in side.given)
    inputs = (good.inputs, bad.inputs)
    for path in {**(inputs[0] or {}), **(inputs[1] or {})}:
        before, after = (_NONE if each is None else each.get(path, "not read")[:12] or "unknown" for each in inputs)
        if None not in inputs and (before != after or before == "unknown"):
            yield f"input {path}: {before} → {after} (all runs read the current file)"


def _variables(kind: ChangeKind, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[BisectChange]:
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            before, after = (_NONE if name not in each else redact_variable(name, each[name]) for each in (old, new))
            yield BisectChange(kind, name, before, after)


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name}: {old.get(name, _NONE)} → {new.get(name, _NONE)}" for name in names]


def _show(name: str, value: Value | None) -> str:
    return _NONE if value is None else redact_variable(name, str(value))


def _format_placement(placement: Placement) -> str:
    binding = "bound to cores" if placement.bind else "not bound"
    return f"{placement.ranks_per_node} ranks per node with {placement.threads_per_rank} threads, {binding}"


def _words(program: Program) -> tuple[str, ...]:
    return (*(program.command or ()), *(program.arguments or ()))


def _with_words(program: Program, words: Sequence[str]) -> Program:
    """Return the program with its command and arguments replaced by ``words``."""
    if not words:
        return program
    split = len(program.command or ())
    command = list(words[:split]) if program.command is not None else None
    arguments = list(words[split:]) if program.arguments is not None else None
    return program.model_copy(update={"command": command, "arguments": arguments})


def _line(program: Program) -> str:
    return redact(" ".join([program.module or "", *_words(program)]).strip())


def _take_stack(recipe: _Recipe, new: _Recipe, _: str) -> _Recipe:
    base = replace(
        recipe.base, stack=new.base.stack, prefix=new.base.prefix, activate=new.base.activate, lock=new.base.lock
    )
    if _are_tied(recipe.base, new.base):
        recipe = _take_mpi(recipe, new, "")
    return replace(recipe, base=base)


def _take_mpi(recipe: _Recipe, new: _Recipe, _: str) -> _Recipe:
    tied = _tuning_is_tied(recipe.base, new.base)
    return replace(recipe, mpi=new.mpi, tuning=new.tuning if tied else recipe.tuning)


def _take_word(recipe: _Recipe, new: _Recipe, name: str) -> _Recipe:
    if not name:
        return replace(recipe, program=new.program, words=new.words)
    at = int(name.removeprefix("word ")) - 1
    words = (*recipe.words[:at], new.words[at], *recipe.words[at + 1 :])
    return replace(recipe, words=words, program=_with_words(recipe.program, words))


def _take_tuning(recipe: _Recipe, new: _Recipe, name: str) -> _Recipe:
    return replace(recipe, tuning=_replaced(recipe.tuning, new.tuning, name))


def _take_parameter(recipe: _Recipe, new: _Recipe, name: str) -> _Recipe:
    return replace(recipe, parameters=_replaced(recipe.parameters, new.parameters, name))


def _take_environment(recipe: _Recipe, new: _Recipe, name: str) -> _Recipe:
    return replace(recipe, environment=_replaced(recipe.environment, new.environment, name))


def _replaced(old: Mapping[str, T], new: Mapping[str, T], name: str) -> dict[str, T]:
    """Return ``old`` with the entry ``name`` taken from ``new``, which may not have such an entry."""
    changed = {**old, **({name: new[name]} if name in new else {})}
    return {each: value for each, value in changed.items() if each != name or name in new}


_APPLY: Mapping[ChangeKind, Callable[[_Recipe, _Recipe, str], _Recipe]] = {
    "stack": _take_stack,
    "mpi": _take_mpi,
    "launcher": lambda recipe, new, _: replace(recipe, launcher=new.launcher),
    "tuning": _take_tuning,
    "placement": lambda recipe, new, _: replace(recipe, placement=new.placement),
    "parameter": _take_parameter,
    "program": _take_word,
    "modules": lambda recipe, new, _: replace(recipe, modules=new.modules),
    "environment": _take_environment,
}


QUESTION, JOURNAL = "hidl.bisect-question/1", "hidl.bisect-journal/1"


@dataclass(frozen=True)
class Question:
    """The input of a bisect: a good and a bad run, the metric, and the changes between the runs."""

    good: Side
    bad: Side
    metric: BisectMetric
    changes: Changes

    @classmethod
    def between(cls, good: Side, bad: Side, metric: BisectMetric) -> Question:
        """Return the question for two runs and a metric, including the changes between the runs."""
        return cls(good, bad, metric, changes_between(good, bad))

    @property
    def digest(self) -> str:
        """A digest of the runs and the metric."""
        runs = [self.good.plan.run, self.bad.plan.run, list(self.metric.measure)]
        return hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:12]

    @property
    def seed(self) -> int:
        """The random seed for the search."""
        return int(self.digest, 16)

    @property
    def expectation(self) -> Expectation:
        """The prior for the slowdown, the noise and the changes."""
        return self.metric.expectation([change.weight for change in self.changes.tried])


@dataclass(frozen=True)
class JournalEntry:
    """A run of a mixture (the good configuration with some of the bad run's changes).

    ``round`` starts at 1, and warm-up runs are in round 0. ``session`` is the job's number, and ``value`` is the
    metric's value. If the value is None, ``failure`` is the reason.
    """

    round: int
    session: int
    changes: tuple[int, ...]
    run: str
    value: float | None
    failure: str | None = None


@dataclass(frozen=True)
class Journal:
    """The runs so far. ``planned`` lists the last round's mixtures in order; ``sessions`` is the number of jobs."""

    entries: tuple[JournalEntry, ...] = ()
    planned: tuple[tuple[int, ...], ...] = ()
    round: int = 0
    sessions: int = 0

    @property
    def measured(self) -> int:
        """The number of runs, not counting warm-up runs."""
        return sum(entry.round > 0 for entry in self.entries)

    @property
    def left(self) -> tuple[tuple[int, ...], ...]:
        """The mixtures of the last round that have not run yet."""
        return self.planned[sum(entry.round == self.round for entry in self.entries) :] if self.round else ()

    @property
    def broken(self) -> frozenset[Mixture]:
        """The mixtures (sets of changes) whose runs failed."""
        return frozenset(frozenset(entry.changes) for entry in self.entries if entry.failure is not None)

    def observations(self, metric: BisectMetric) -> list[RunObservation]:
        """Return the measurements. The part of a round after an interruption counts as a separate round."""
        return [
            RunObservation(f"{entry.round:04}.{entry.session}", frozenset(entry.changes), metric.slowness(entry.value))
            for entry in self.entries
            if entry.round > 0 and entry.value is not None and entry.value > 0
        ]

    def with_round(self, mixtures: Sequence[Mixture]) -> Journal:
        """Return the journal with another round of mixtures added."""
        return replace(self, round=self.round + 1, planned=tuple(tuple(sorted(each)) for each in mixtures))

    def next_round(self, question: Question, confidence: float) -> Journal:
        """Return the journal with the most informative mixtures added as the next round."""
        observations, expected = self.observations(question.metric), question.expectation
        mixtures = culprit.next_round(
            observations, expected, confidence=confidence, seed=question.seed, broken=self.broken
        )
        return self.with_round(mixtures)

    def answer(self, question: Question, confidence: float) -> CulpritAnswer:
        """Return the answer based on the runs so far."""
        observations, expected = self.observations(question.metric), question.expectation
        return culprit.answer(observations, expected, question.metric.recorded, confidence=confidence)

    def is_over(self, question: Question, confidence: float, budget: int) -> bool:
        """Return True if the budget is spent or the answer is certain enough."""
        return self.measured >= budget or self.answer(question, confidence).outcome != "undecided"


@dataclass(frozen=True)
class Bisect:
    """A bisect, identified by its directory."""

    directory: Path

    @property
    def id(self) -> str:
        """The name of the directory."""
        return self.directory.name

    def question(self) -> Question:
        """Read ``question.json``. Raises ``HidlError`` if the file is invalid or from another version of hidl."""
        found: Question = _read(self.directory / "question.json", QUESTION, TypeAdapter(Question))
        return found

    def journal(self) -> Journal:
        """Read ``journal.json``. Raises ``HidlError`` if the file is invalid or from another version of hidl."""
        file = self.directory / "journal.json"
        return _read(file, JOURNAL, TypeAdapter(Journal)) if file.exists() else Journal()

    def write(self, journal: Journal) -> None:
        """Write the journal."""
        write_json(self.directory / "journal.json", {"schema": JOURNAL, **asdict(journal)})

    @property
    def runs(self) -> Path:
        """The directory that contains the run directories."""
        return self.directory / "runs"

    @property
    def jobs(self) -> Path:
        """The directory that contains the job directories."""
        return self.directory / "jobs"

    def last_job(self) -> Run | None:
        """Return the last submitted job, or None if there is none."""
        return next(all_runs(self.jobs), None)


def open_bisect(question: Question, *, fresh: bool = False) -> Bisect:
    """Return the last bisect of these runs and this metric if its changes are the same, or else a new one.

    The question is written again, because the stacks may have been installed elsewhere in the meantime.
    """
    known = None if fresh else find_bisect(question)
    if known is None or known.question().changes != question.changes:
        known = Bisect(paths.bisects() / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S-%f}-{question.digest}")
    document = TypeAdapter(Question).dump_python(question, mode="json")
    known.directory.mkdir(parents=True, exist_ok=True)
    if holds_secret(document):
        known.directory.chmod(0o700)  # the job needs the secrets
    write_json(known.directory / "question.json", {"schema": QUESTION, **document})
    return known


def find_bisect(question: Question) -> Bisect | None:
    """Return the last bisect of the question's runs and metric, or None if there is none."""
    known = sorted(paths.bisects().glob(f"*-{question.digest}/question.json"))
    return Bisect(known[-1].parent) if known else None


def _read(file: Path, schema: str, adapter: TypeAdapter[Any]) -> Any:
    try:
        document = read_json(file)
        if document.pop("schema", None) != schema:
            raise ValueError(f"not a document with schema {schema}")
        return adapter.validate_python(document)
    except (OSError, ValueError, ValidationError, AttributeError) as error:
        raise HidlError(
            f"cannot read {file}: {error}", hint="hidl bisect GOOD BAD --fresh starts a new bisect and keeps this one"
        ) from error

"""The changes between two plans: those that can be tried one by one, and those that cannot, each by name.

A configuration is a plan; a mixture is the good plan with some of the changes made. What cannot be separated is one
change: a stack with its MPI library, and the tuning with the MPI family that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Library
from hidl_cli.plan.devices import DEVICE, GPUS_PER_RANK
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.planning import planned_again
from hidl_cli.plan.workload import Program, Value
from hidl_cli.redaction import redact, redact_variable
from hidl_cli.runs.provenance import Provenance, fold_or_join, format_mpi
from hidl_cli.tuning.settings import Setting

Kind = Literal["stack", "mpi", "launcher", "tuning", "placement", "parameter", "program", "modules", "environment"]

#: How likely a change is to matter, relative to the others; the greatest first. Judgement, not measured: it decides the
#: order and the prior, and the runs outweigh it.
WEIGHTS: dict[Kind, float] = {
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

_ABI = "MPI4PY_MPIABI"
_NONE = "not set"
T = TypeVar("T")


@dataclass(frozen=True)
class Change:
    """One change that can be tried: ``name`` within its kind, its values as text; ``details``: what else it brings."""

    kind: Kind
    name: str
    before: str
    after: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.title}: {self.before} → {self.after}"

    @property
    def title(self) -> str:
        """What changed."""
        shown = {
            "tuning": self.name,
            "environment": f"environment variable {self.name}",
            "stack": f"stack {self.name}".strip(),
        }
        return shown.get(self.kind) or (f"{self.kind} {self.name}" if self.name else self.kind)

    @property
    def in_words(self) -> str:
        """The change as part of a sentence."""
        return f"the change of {self.title} from {self.before} to {self.after}"

    @property
    def weight(self) -> float:
        """How likely it is to matter, relative to others."""
        return WEIGHTS[self.kind]


@dataclass(frozen=True)
class Side:
    """The good or the bad run. ``inputs``: SHA-256 by path, None if unknown; ``placement``: of the step that counts;
    ``given``: hidden words of a capsule that have values of the user's.
    """

    provenance: Provenance
    placement: Placement
    inputs: Mapping[str, str] | None = None
    given: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """Its plan."""
        return self.provenance.plan


@dataclass(frozen=True)
class Changes:
    """``tried``: those that can be, the likeliest first; ``left_out``: in words, with the reason."""

    tried: tuple[Change, ...]
    left_out: tuple[str, ...]


def changes_between(good: Side, bad: Side) -> Changes:
    """Return what changed between two runs."""
    old, new = _Recipe.of(good), _Recipe.of(bad)
    found = [*_stack_and_mpi(good, bad), *_settings(old, new), *_programs(old, new)]
    return Changes(tuple(sorted(found, key=lambda change: -change.weight)), tuple(_left_out(good, bad)))


def mixture(good: Side, bad: Side, changes: Iterable[Change], run: str) -> Plan:
    """Return the good plan with these changes made, as one step of run ``run``; raises what the launcher raises."""
    recipe, new = _Recipe.of(good), _Recipe.of(bad)
    for change in changes:
        recipe = _APPLY[change.kind](recipe, new, change.name)
    return recipe.plan(run)


@dataclass(frozen=True)
class _Recipe:
    """A plan in the parts that can change independently."""

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
            if name not in (*tuning, _ABI) and derived.get(name) != value
        }
        kept = len(plan.modules) - len(plan.mpi.modules)
        program = plan.workload.program_for(plan.parameters)
        return cls(
            plan,
            plan.mpi,
            plan.launcher,
            side.placement,
            plan.modules[:kept],
            tuning,
            environment,
            plan.parameters,
            program,
            _words(program),
        )

    def plan(self, run: str) -> Plan:
        """Return the plan with one step."""
        environment = {
            **self.placement.environment(),
            **self.environment,
            **self.mpi.environment,
            **({} if self.mpi.prefix == self.base.prefix else {_ABI: self.mpi.traits.abi}),
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


def _stack_and_mpi(good: Side, bad: Side) -> Iterator[Change]:
    old, new = good.plan, bad.plan
    packages = _changed(good.provenance.packages, bad.provenance.packages)
    mpi = (format_mpi(old), format_mpi(new))
    if old.lock != new.lock:
        with_mpi = [f"MPI: {mpi[0]} → {mpi[1]}"] if _are_tied(old, new) and mpi[0] != mpi[1] else []
        if _tuning_is_tied(old, new) and _are_tied(old, new):
            with_mpi += _tuning_details(old, new)
        name = new.stack if old.stack == new.stack else ""
        texts = [f"{plan.stack} (lock {plan.lock[:12]})" for plan in (old, new)]
        yield Change("stack", name, texts[0], texts[1], (*with_mpi, *packages))
    if not _are_tied(old, new) and old.mpi != new.mpi:
        details = _tuning_details(old, new) if _tuning_is_tied(old, new) else []
        yield Change("mpi", "", mpi[0], mpi[1] if mpi[1] != mpi[0] else f"{mpi[1]}, set up otherwise", tuple(details))


def _are_tied(old: Plan, new: Plan) -> bool:
    """Does the MPI library come with the stack on one of the sides, and another stack on the other?"""
    return old.lock != new.lock and (old.mpi_of_the_stack or new.mpi_of_the_stack)


def _tuning_is_tied(old: Plan, new: Plan) -> bool:
    return old.mpi.family != new.mpi.family


def _tuning_details(old: Plan, new: Plan) -> list[str]:
    values = [{setting.name: redact_variable(setting.name, setting.value) for setting in p.tuning} for p in (old, new)]
    return _changed(*values)


def _settings(old: _Recipe, new: _Recipe) -> Iterator[Change]:
    if old.launcher != new.launcher:
        yield Change("launcher", "", old.launcher, new.launcher)
    if not _tuning_is_tied(old.base, new.base):
        tuning = [{name: setting.value for name, setting in each.tuning.items()} for each in (old, new)]
        yield from _variables("tuning", *tuning)
    if old.placement != new.placement:
        yield Change("placement", "", _format_placement(old.placement), _format_placement(new.placement))
    if old.modules != new.modules:
        yield Change("modules", "", " ".join(old.modules) or "none", " ".join(new.modules) or "none")
    kept = [{n: v for n, v in each.environment.items() if n not in (DEVICE, GPUS_PER_RANK)} for each in (old, new)]
    yield from _variables("environment", *kept)


def _programs(old: _Recipe, new: _Recipe) -> Iterator[Change]:
    for name in {**old.parameters, **new.parameters}:
        before, after = old.parameters.get(name), new.parameters.get(name)
        if before != after:
            yield Change("parameter", name, _show(name, before), _show(name, after))
    if old.program == new.program:
        return
    alike = len(old.words) == len(new.words) and _with_words(old.program, new.words) == new.program
    if not alike:
        yield Change("program", "", _line(old.program), _line(new.program))
        return
    for number, (before, after) in enumerate(zip(old.words, new.words, strict=True), start=1):
        if before != after:
            yield Change("program", f"word {number}", redact(before), redact(after))


def _left_out(good: Side, bad: Side) -> Iterator[str]:
    old, new = good.plan, bad.plan
    hosts = [fold_or_join(each.provenance.hosts) for each in (good, bad)]
    for what, before, after, why in (
        ("hidl", old.hidl, new.hidl, "all runs are made by the hidl of today"),
        ("hosts", *hosts, "all runs are on the hosts of one allocation"),
        ("partition", old.partition, new.partition, "all runs are in one allocation, of the good run's partition"),
        ("device", old.device, new.device, "all runs are on that of the good run"),
        ("memory per node", old.allocation.memory_gib, new.allocation.memory_gib, "all runs are in one allocation"),
        ("standard input", old.stdin, new.stdin, "all runs read that of the good run"),
        ("GPUs per node", old.allocation.gpus_per_node, new.allocation.gpus_per_node, "all runs are in one allocation"),
    ):
        if before != after:
            yield f"{what}: {before or 'none'} → {after or 'none'} ({why})"
    yield from dict.fromkeys(f"{each} (all runs of it)" for side in (good, bad) for each in side.given)
    inputs = (good.inputs, bad.inputs)
    for path in {**(inputs[0] or {}), **(inputs[1] or {})}:
        before, after = (_NONE if each is None else each.get(path, "not read")[:12] or "unknown" for each in inputs)
        if None not in inputs and (before != after or before == "unknown"):
            yield f"input {path}: {before} → {after} (all runs read what is there today)"


def _variables(kind: Kind, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            before, after = (_NONE if name not in each else redact_variable(name, each[name]) for each in (old, new))
            yield Change(kind, name, before, after)


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"{name}: {old.get(name, _NONE)} → {new.get(name, _NONE)}" for name in names]


def _show(name: str, value: Value | None) -> str:
    return _NONE if value is None else redact_variable(name, str(value))


def _format_placement(placement: Placement) -> str:
    binding = "bound to cores" if placement.bind else "not bound"
    return f"{placement.ranks_per_node} ranks per node of {placement.threads_per_rank} threads, {binding}"


def _words(program: Program) -> tuple[str, ...]:
    return (*(program.command or ()), *(program.arguments or ()))


def _with_words(program: Program, words: Sequence[str]) -> Program:
    """Return the program with these words in the places of its own."""
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
    return replace(recipe, tuning=_taken(recipe.tuning, new.tuning, name))


def _take_parameter(recipe: _Recipe, new: _Recipe, name: str) -> _Recipe:
    return replace(recipe, parameters=_taken(recipe.parameters, new.parameters, name))


def _take_environment(recipe: _Recipe, new: _Recipe, name: str) -> _Recipe:
    return replace(recipe, environment=_taken(recipe.environment, new.environment, name))


def _taken(old: Mapping[str, T], new: Mapping[str, T], name: str) -> dict[str, T]:
    """Return ``old`` with the value that ``new`` has of that name, or without it."""
    changed = {**old, **({name: new[name]} if name in new else {})}
    return {each: value for each, value in changed.items() if each != name or name in new}


_APPLY: Mapping[Kind, Callable[[_Recipe, _Recipe, str], _Recipe]] = {
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

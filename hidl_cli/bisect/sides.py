"""The good and the bad run: read from their directories or capsules, and put where their stacks are installed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, stdev

from hidl_cli.analysis.culprit.posterior import Expectation
from hidl_cli.analysis.culprit.search import Recorded
from hidl_cli.analysis.measures import Measure, by_measure, in_common_units
from hidl_cli.analysis.samples import Sample
from hidl_cli.analysis.statistics import MIN_REPETITIONS, SAME
from hidl_cli.bisect.changes import Side
from hidl_cli.capsule.replay import Original, stdin_of
from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.plan.workload import TIMES, Workload
from hidl_cli.record.run import Run
from hidl_cli.runs.provenance import Provenance
from hidl_cli.stack import installation
from hidl_cli.stack.installation import Installation
from hidl_cli.store.extract import samples_of

#: A recorded slowdown below this fraction is searched for as if it were so large.
LEAST_SLOWDOWN = 0.01


@dataclass(frozen=True)
class Night:
    """One of the two runs, with its stack as installed here. ``inputs``: SHA-256 by path; None if not recorded.

    ``given``: the hidden words of its capsule, in words, that have values of the user's.
    """

    plan: Plan
    hosts: tuple[str, ...]
    packages: Mapping[str, str]
    samples: tuple[Sample, ...]
    inputs: Mapping[str, str] | None
    given: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metric:
    """The metric to compare by. ``sign``: 1 if the bad run is slow where the value is greater, else -1.

    ``good`` and ``bad``: the recorded values, one for each repetition.
    """

    measure: Measure
    unit: str
    sign: int
    good: tuple[float, ...]
    bad: tuple[float, ...]

    def slowness(self, value: float) -> float:
        """Return the logarithm of the slowness of a value."""
        return self.sign * math.log(value)

    @property
    def recorded(self) -> Recorded:
        """The recorded values as logarithms of the slowness."""
        return Recorded(*(tuple(map(self.slowness, values)) for values in (self.good, self.bad)))

    @property
    def slowdown(self) -> float:
        """The recorded slowdown, as a logarithm."""
        return median(self.recorded.bad) - median(self.recorded.good)

    def expectation(self, weights: Sequence[float]) -> Expectation:
        """Return what the recorded values let expect of changes with these weights."""
        spreads = [stdev(each) for each in (self.recorded.good, self.recorded.bad) if len(each) >= MIN_REPETITIONS]
        noise = math.sqrt(sum(each**2 for each in spreads) / len(spreads)) if spreads else None
        return Expectation(
            max(self.slowdown, math.log1p(LEAST_SLOWDOWN)),
            noise if noise is not None and noise > SAME else None,
            tuple(weights),
        )


def of_run(run: Run) -> Night:
    """Read a run whose stack is still installed; ``MissingPrecondition`` if it is not, or was never measured."""
    plan = _checked(plan_of(run))
    samples = samples_of(run)
    if not samples:
        raise MissingPrecondition(f"run {run.id} has no metrics", hint=f"hidl status {run.id}")
    found = installation.at(Path(plan.prefix))
    if found is None or found.lock != plan.lock:
        raise MissingPrecondition(
            f"stack {plan.stack} of run {run.id} (lock {plan.lock[:12]}) is no longer installed in {plan.prefix}",
            hint="name the run's capsule in its place (hidl capsule makes one while the stack is installed)",
        )
    if foreign := installation.of_another_hidl(found):
        raise MissingPrecondition(foreign, hint=f"hidl capsule {run.id} -o FILE, and name FILE in the place of the run")
    stdin = None if plan.stdin is None else str(run.directory / plan.stdin)
    _require_stdin(plan, stdin)
    plan = replace(plan, stdin=stdin)
    return Night(plan, run.status().hosts, found.manifest["packages"], tuple(samples), None)


def of_capsule(original: Original, installed: Installation | None) -> Night:
    """Return the run of a capsule, in the stack that was installed by its lock; None: to be looked at alone."""
    plan = _checked(original.plan)
    if installed is not None:
        prefix = str(installed.prefix)
        _require_stdin(plan, stdin_of(original))
        mpi = replace(plan.mpi, prefix=prefix) if plan.mpi_of_the_stack else plan.mpi
        activate = str(installed.activate)
        plan = replace(plan, prefix=prefix, activate=activate, mpi=mpi, stdin=stdin_of(original))
    inputs = {each.path: each.sha256 for each in original.inputs}
    samples = tuple(samples_of(original.run))
    return Night(plan, original.run.status().hosts, original.capsule.packages, samples, inputs, original.replaced)


def _require_stdin(plan: Plan, file: str | None) -> None:
    """Raise ``MissingPrecondition`` if the run's standard input is gone."""
    if file is not None and not Path(file).is_file():
        raise MissingPrecondition(
            f"standard input {file} of run {plan.run} not found", hint="put the file where it was; bisect reads it"
        )


def metric_of(good: Night, bad: Night, name: str | None) -> Metric:
    """Return the metric of that name, by default the workload's main one, at the largest size that both ran.

    Raises ``UsageError`` if they have none in common, or the bad run was not worse.
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
            f"the two runs have no metric {wanted!r} of one workload and size in common",
            hint=f"--metric NAME, of: {common}" if common else "bisect compares two runs of one workload and size",
        )
    measure = max(found, key=lambda each: each.ranks)
    values = [run[measure][0].values for run in runs]
    if min(map(min, values)) <= 0:
        raise UsageError(f"metric {wanted} has values that are not positive", hint="--metric NAME")
    sample = runs[1][measure][0].sample
    grows = median(values[1]) > median(values[0])
    sign = {"higher": -1, "lower": 1}.get(sample.better or "", 1 if grows else -1)
    metric = Metric(measure, sample.unit, sign, *values)
    if metric.slowdown <= 0:
        raise UsageError(
            f"the bad run was not worse: {wanted} {median(values[0]):.6g} → {median(values[1]):.6g} {sample.unit}",
            hint="hidl bisect GOOD BAD: the good run comes first; or choose another --metric",
        )
    return metric


def _main_metric(workload: Workload) -> str:
    """Return the metric that the workload scales by, else the first: the program's own before the job's times."""
    own = [name for name in workload.metrics if name not in TIMES]
    if workload.scaling is not None and not (own and workload.scaling.metric in TIMES):
        return workload.scaling.metric
    directed = [name for name in own if workload.metrics[name].better is not None]
    return next(iter([*directed, *own, *workload.metrics]), "")


def side_of(night: Night, measure: Measure) -> Side:
    """Return the side with the placement that had this measure."""
    placement = next(
        step.placement
        for step in night.plan.steps
        if not step.copies and (step.placement.nodes, step.placement.ranks) == (measure.nodes, measure.ranks)
    )
    return Side(Provenance(night.plan, night.hosts, night.packages), placement, night.inputs, night.given)


def _checked(plan: Plan) -> Plan:
    """Return the plan; ``UsageError`` or ``MissingPrecondition`` if its configurations cannot be mixed."""
    if plan.user_environment is not None:
        raise MissingPrecondition(
            f"run {plan.run} used the environment {plan.user_environment.directory}, which no lock describes",
            hint="bisect runs in a stack",
        )
    if plan.points != ({},):
        raise UsageError(f"run {plan.run} is a matrix, which compares configurations itself", hint="hidl results show")
    return plan

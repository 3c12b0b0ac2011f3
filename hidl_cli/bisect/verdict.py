"""The verdict of a bisect, and the job that takes its measurements."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import hidl_cli
from hidl_cli.analysis.culprit import LEAST_ROUNDS, CulpritAnswer
from hidl_cli.analysis.statistics import repetitions_needed
from hidl_cli.batch_systems import SSH
from hidl_cli.bisect.journal import Bisect, BisectChange, Journal, Question
from hidl_cli.errors import JobFailed, SubmitRefused, UsageError
from hidl_cli.launch.hosts import Hosts, on_hosts
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.launch.placement import allocate, missing
from hidl_cli.plan.job_script import values_of
from hidl_cli.plan.launch_plan import Plan, create_run, plan_of
from hidl_cli.plan.planning import new_id
from hidl_cli.record import Run, State, Status
from hidl_cli.runs.follow import end, follow, scheduler_of
from hidl_cli.runs.parsers.patterns import last_lines
from hidl_cli.schedulers import scheduler_for
from hidl_cli.site.schema import Site
from hidl_cli.templates import render_script

#: Limits for the explanations in JSON output: the maximum number, and the lowest probability.
_MAX_EXPLANATIONS = 5
_MIN_PROBABILITY = 0.001


@dataclass(frozen=True)
class BisectVerdict:
    """A bisect's answer as a sentence, with notes."""

    answer: CulpritAnswer
    sentence: str
    notes: tuple[str, ...]


def verdict(question: Question, journal: Journal, confidence: float) -> BisectVerdict:
    """Return the verdict based on the runs so far."""
    answer = journal.answer(question, confidence)
    return BisectVerdict(answer, _sentence(question, answer), tuple(_notes(question, journal, answer)))


def to_json(question: Question, journal: Journal, found: BisectVerdict, confidence: float) -> dict[str, Any]:
    """Return the verdict as plain data."""
    answer, metric = found.answer, question.metric
    faster = answer.best.faster if answer.outcome == "changes" else None
    middle, low, high = answer.best.slowdown
    return {
        "good": question.good.plan.run,
        "bad": question.bad.plan.run,
        "metric": {"name": metric.measure.metric, "unit": metric.unit, "good": metric.good, "bad": metric.bad},
        "outcome": answer.outcome,
        "answer": found.sentence,
        "notes": list(found.notes),
        "confidence": answer.confidence,
        "confidence_asked": confidence,
        "guilty": [_change_to_json(question.changes.tried[number]) for number in answer.guilty],
        "faster": faster
        and {"change": _change_to_json(question.changes.tried[faster[0]]), "slowdown": _effect_to_json(faster[1])},
        "slowdown": {"value": middle, "low": low, "high": high} if answer.outcome == "changes" else None,
        "today": answer.today and {"shift": answer.today.shift, "interval": _interval_to_json(answer)},
        "explanations": [
            {
                "kind": belief.explanation.kind,
                "changes": [question.changes.tried[number].title for number in belief.explanation.changes],
                "probability": belief.probability,
            }
            for belief in answer.beliefs[:_MAX_EXPLANATIONS]
            if belief.probability >= _MIN_PROBABILITY
        ],
        "changes": [_change_to_json(change) for change in question.changes.tried],
        "left_out": list(question.changes.left_out),
        "runs": journal.measured,
        "not_run": [[question.changes.tried[number].title for number in each] for each in map(sorted, journal.broken)],
    }


def describe_plan(question: Question, budget: int) -> dict[str, Any]:
    """Return the changes and the expected number of runs as plain data."""
    metric = question.metric
    return {
        "good": question.good.plan.run,
        "bad": question.bad.plan.run,
        "metric": {"name": metric.measure.metric, "unit": metric.unit, "good": metric.good, "bad": metric.bad},
        "changes": [_change_to_json(change) for change in question.changes.tried],
        "left_out": list(question.changes.left_out),
        "expected_runs": expected_runs(question),
        "budget": budget,
    }


def _change_to_json(change: BisectChange) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "name": change.name,
        "before": change.before,
        "after": change.after,
        "details": list(change.details),
    }


def _effect_to_json(effect: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), effect, strict=True))


def _interval_to_json(answer: CulpritAnswer) -> list[float] | None:
    interval = answer.today.interval if answer.today else None
    return [interval.low, interval.high] if interval else None


def expected_runs(question: Question) -> int:
    """Estimate the number of runs from the recorded slowdown and noise."""
    expected = question.expectation
    noise = expected.noise or expected.slowdown / 2
    rounds = max(LEAST_ROUNDS, repetitions_needed(noise * math.sqrt(2), expected.slowdown))
    count = len(expected.weights)
    return rounds * 2 if count < 2 else rounds * 2 + 4 * math.ceil(math.log2(count + 1))


def describe_mixture(question: Question, numbers: Sequence[int]) -> str:
    """Describe a mixture by the changes that it includes or, if they are fewer, by those that it omits."""
    tried = question.changes.tried
    if not numbers:
        return "good"
    if len(numbers) == len(tried):
        return "bad"
    missing = [number for number in range(len(tried)) if number not in numbers]
    if len(missing) < len(numbers):
        return "bad without " + ", ".join(tried[number].title for number in missing)
    return "good with " + ", ".join(tried[number].title for number in numbers)


def _sentence(question: Question, answer: CulpritAnswer) -> str:
    sure = f"({_percent(answer.confidence)})"
    if answer.outcome == "changes":
        return f"{_explanation(question, answer)} {sure}"
    if answer.outcome == "several":
        if len(question.changes.tried) == 2:
            return f"both changes contribute, but their effects do not add up {sure}"
        return f"more than two changes contribute {sure}"
    if answer.outcome == "machine" and answer.today:
        shift = f"{answer.today.shift:.1%} slower than recorded{_interval(answer)}"
        same = ", and the bad one is equally fast" if question.changes.tried else ""
        return f"the machine has changed: the good configuration is {shift} today{same} {sure}"
    if answer.outcome == "not reproducible":
        unchanged = "the configuration is as fast today as in the good run"
        equal = "today, the good and the bad configuration are equally fast within noise"
        return f"not reproducible: {equal if question.changes.tried else unchanged} {sure}"
    likeliest = _likeliest(question, answer)
    return f"undecided: the most probable cause so far is {likeliest} ({_percent(answer.best.probability)})"


def _explanation(question: Question, answer: CulpritAnswer) -> str:
    """Describe the changes that explain the slowdown, and their effect."""
    best = answer.best
    changes = " and ".join(question.changes.tried[number].phrase for number in best.guilty)
    verb = {
        "together": "explain the slowdown, but only together",
        "both": "each explain part of the slowdown",
        "either": "each explain the whole slowdown",
    }.get(best.explanation.kind, "explains the slowdown")
    sentence = f"{changes} {verb}: {best.slowdown[0]:.1%} slower"
    if best.faster is None:
        return sentence
    number, (gain, _, _) = best.faster
    return f"{sentence}; {question.changes.tried[number].phrase} made it {-gain:.1%} faster"


def _likeliest(question: Question, answer: CulpritAnswer) -> str:
    best = answer.best.explanation
    if best.kind == "none":
        return "no difference"
    if best.kind == "several":
        return "several changes together"
    return " and ".join(question.changes.tried[number].phrase for number in answer.best.guilty)


def _notes(question: Question, journal: Journal, answer: CulpritAnswer) -> list[str]:
    notes = []
    if answer.today is not None and answer.outcome in ("changes", "several", "not reproducible"):
        notes.append(f"the good configuration is {_shift(answer)} today than recorded")
    if answer.outcome == "changes":
        _, low, high = answer.best.slowdown
        recorded = math.expm1(question.metric.slowdown)
        notes.append(f"slower by {low:.1%} to {high:.1%} (95 %, if this is the cause); recorded: {recorded:.1%}")
    if answer.outcome in ("machine", "not reproducible") and question.changes.left_out:
        notes.append("changes that could not be tried may be the cause: " + "; ".join(question.changes.left_out))
    if journal.broken:
        notes.append(f"{len(journal.broken)} combination(s) of changes failed and were excluded from the search")
    return notes


def _shift(answer: CulpritAnswer) -> str:
    assert answer.today is not None
    shift = answer.today.shift
    return f"{abs(shift):.1%} {'slower' if shift > 0 else 'faster'}{_interval(answer)}"


def _interval(answer: CulpritAnswer) -> str:
    ends = _interval_to_json(answer)
    return f" ({ends[0]:+.1%} to {ends[1]:+.1%})" if ends else ""


def _percent(probability: float) -> str:
    """Format a probability as a percentage, but never as 100 %."""
    return "> 99.9 %" if probability > 0.999 else f"{100 * probability:.3g} %"


# The bisect job: one allocation that fits all configurations.


_TAIL_LINES, _TAIL_WIDTH = 10, 500


def plan_job(question: Question, site: Site, job: AllocationOptions) -> Plan:
    """Plan the bisect job: the good run's plan without its steps, in an allocation that fits all configurations.

    Raises ``UsageError`` if one of the runs was on another site, and propagates errors raised by ``allocate``.
    """
    sides = (question.good, question.bad)
    for side in sides:
        if side.plan.site != site.name:
            raise UsageError(
                f"run {side.plan.run} was on site {side.plan.site}, not {site.name}",
                hint=f"bisect there (--site {side.plan.site}), or first replay both runs here (hidl replay)",
            )
    good = question.good.plan
    if good.scheduler == SSH and good.allocation.hosts:
        job = replace(job, hosts=Hosts(good.allocation.hosts))
        site = on_hosts(site, job.named_hosts)
    job = replace(
        job, partition=job.partition or good.partition, gpus_per_node=None if good.allocation.gpus_per_node else 0
    )
    allocation = allocate(site, "hidl-bisect", [side.placement for side in sides], job)
    now = datetime.now(timezone.utc)
    return replace(
        good,
        run=new_id("bisect", now),
        created=now.isoformat(timespec="seconds"),
        allocation=allocation,
        header=scheduler_for(site).header(allocation, site.policies),
        partition=job.partition or site.default_partition,
        missing=tuple(missing(site.policies, allocation)),
        steps=(),
        warnings=(),
    )


def script_of(plan: Plan, bisect: Bisect, confidence: float, budget: int) -> str:
    """Render the job script."""
    package = Path(hidl_cli.__file__).parents[1]
    clean = [word for name in ("PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD") for word in ("-u", name)]
    driver = [
        *("env", *clean, f"PYTHONPATH={package}", sys.executable, "-m", "hidl_cli.bisect.search"),
        *(str(bisect.directory), repr(confidence), str(budget)),
    ]
    return render_script("bisect.sh.j2", {**values_of(plan), "driver": driver})


def run_job(
    bisect: Bisect, plan: Plan, confidence: float, budget: int, *, tell: Callable[[Run, Status], None]
) -> tuple[Run, Status]:
    """Run the job, or follow a job that is still active. An interrupt cancels the job, but keeps its measurements.

    Raises ``SubmitRefused`` if the site requires additional options, and propagates errors raised by the scheduler's
    ``submit`` method.
    """
    job = bisect.last_job()
    if job is None or not _is_active(job):
        if plan.missing:
            raise SubmitRefused(
                f"site {plan.site} requires {' and '.join(plan.missing)}", hint=f"add {plan.missing[0]} NAME"
            )
        job = create_run(plan, script_of(plan, bisect, confidence, budget), root=bisect.jobs)
        scheduler_of(plan).submit(job)
    (status,) = follow([job], tell=tell, interrupted=lambda run, _: end(run, State.INTERRUPTED))
    return job, status


def _is_active(job: Run) -> bool:
    (status,) = scheduler_of(plan_of(job)).poll([job])
    return not status.state.is_final


def require_end(job: Run, status: Status) -> None:
    """Raise ``JobFailed`` unless the job completed or reached its time limit."""
    if status.state in (State.COMPLETED, State.TIMEOUT):
        return
    tail = "\n".join(last_lines(job.stderr, _TAIL_LINES, width=_TAIL_WIDTH))
    raise JobFailed(
        f"the bisect job ended in state {status.state.value}{f' ({status.reason})' if status.reason else ''}\n{tail}",
        hint=f"run the command again to continue (measurements are kept); the output is in {job.directory}",
    )

"""From an ended job to metrics and a verdict; reads only the run's directory, so it works at any later time."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hidl_cli.analysis import nodes, ranking
from hidl_cli.analysis import scaling as study
from hidl_cli.analysis.nodes import Field, fields_of, judge_fields
from hidl_cli.analysis.ranking import Ranking, compare, rank
from hidl_cli.analysis.samples import in_common_units
from hidl_cli.analysis.scaling import Earlier, Observation, Study, earlier, judge
from hidl_cli.diagnoses import format_causes, read_causes, write_causes
from hidl_cli.errors import ExitCode, HidlError, JobFailed, MetricMissing, SubmitRefused, hint_for
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.workload import Scaling
from hidl_cli.record.run import Run, State, Status
from hidl_cli.runs.measured import count_complete_repetitions, describe_unequal_ranks, read_steps
from hidl_cli.runs.parsers.patterns import last_lines
from hidl_cli.schedulers.decision import read_status
from hidl_cli.stack import content
from hidl_cli.store.extract import series_of
from hidl_cli.store.indexing import index_run
from hidl_cli.store.references import format_reference
from hidl_cli.store.store import Filters, Store
from hidl_cli.tuning.judge import compared_variables
from hidl_workloads.doctor.finding import Finding
from hidl_workloads.enough import SHARED, UNBOUND
from hidl_workloads.repetitions import LEAST, compare_rates


@dataclass(frozen=True)
class Conclusion:
    """``verdict``: pass, fail, inconclusive, or None if nothing was judged; ``steps`` as in metrics.json.

    ``study``: the scaling study, if sizes were compared; ``ranking``: of the points of a matrix; ``fields``: metrics
    measured between every two nodes.
    """

    verdict: str | None
    reason: str
    hint: str | None
    steps: list[dict[str, Any]]
    study: Study | None = None
    ranking: Ranking | None = None
    fields: tuple[Field, ...] = ()

    def noting(self, words: str) -> Conclusion:
        """Return the conclusion with ``words`` behind its reason."""
        reason = f"{self.reason}; {words}"
        return replace(self, reason=reason, study=self.study and replace(self.study, reason=reason))

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for the verdict."""
        return {
            "fail": ExitCode.BELOW_TARGET,
            "inconclusive": ExitCode.INCONCLUSIVE,
        }.get(self.verdict or "pass", ExitCode.OK)


_ALONE = "measure again while no other run uses this machine"


def judge_steps(plan: Plan, steps: list[dict[str, Any]]) -> Conclusion:
    """Judge the steps of a plan (see ``read_steps``): do the ranks agree, and does it scale?"""
    for step in steps:
        difference = describe_unequal_ranks(step["metrics"], plan.workload.metrics)
        if difference:
            return Conclusion("fail", difference, "check that every rank takes part in the allreduce", steps)
    if len(plan.points) == 1 and any("pairs" in found for found in steps[0]["metrics"].values()):
        return _of_pairs(plan, steps)
    scaling = plan.workload.scaling
    if scaling is None or plan.target is None or not plan.is_study:
        agreed = [name for name, metric in plan.workload.metrics.items() if metric.equal_on_all_ranks]
        held = f"all ranks agree on {', '.join(agreed)}; " if agreed else ""
        counted = _undisturbed(steps)
        if not counted and len(plan.points) > 1:
            compared = any(map(compared_variables, plan.points))
            what = "no comparison" if compared else "not ranked"
            reason = f"{held}{what}: fewer than {LEAST} rounds ran alone on this machine"
            verdict = "inconclusive" if compared else "pass" if agreed else None
            return Conclusion(verdict, reason, _ALONE, steps)
        ranking = _ranking(plan, counted) if len(plan.points) > 1 else None
        nothing = "one size only: no scaling to judge"
        if len(plan.points) > 1:
            nothing = "no ranking: no metric with a direction has a positive value in every step"
        reason = ranking.reason if ranking else nothing
        reason += _format_left_out(steps, counted)
        return Conclusion("pass" if agreed else None, f"{held}{reason}", None, steps, ranking=ranking)
    counted = _undisturbed(steps)
    try:
        study = _study(plan, scaling, plan.target, counted or steps)
    except ValueError as error:  # too little history, a copy without its host
        baseline = "measure a baseline in the same allocation: --baseline single"
        return Conclusion("inconclusive", str(error), baseline, steps)
    if not counted and study.verdict is not None:
        study = _without_verdict(study)
    if left_out := _format_left_out(steps, counted):
        hint = _ALONE if study.verdict == "inconclusive" else study.hint
        study = replace(study, reason=study.reason + left_out, hint=hint)
    return Conclusion(study.verdict, study.reason, study.hint, steps, study)


def _undisturbed(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps of the rounds that another run did not disturb; none if these are too few for an interval.

    All steps are returned if no round was disturbed, however few there are.
    """
    disturbed = {step["repetition"] for step in steps if step.get("disturbed")}
    left = {step["repetition"] for step in steps} - disturbed
    return [step for step in steps if step["repetition"] in left] if len(left) >= LEAST or not disturbed else []


def _format_left_out(steps: list[dict[str, Any]], counted: list[dict[str, Any]]) -> str:
    rounds, left = ({step["repetition"] for step in some} for some in (steps, counted))
    return f"; {len(rounds) - len(left)} of {len(rounds)} rounds do not count" if left and left != rounds else ""


def _without_verdict(study: Study) -> Study:
    """Return a study of disturbed rounds as inconclusive: what the other run took may have decided it."""
    first, *scaled = study.steps
    return replace(
        study,
        steps=(first, *(replace(step, verdict="inconclusive") for step in scaled)),
        verdict="inconclusive",
        reason=f"fewer than {LEAST} rounds ran alone on this machine; measured beside another run: {study.reason}",
        hint=_ALONE,
    )


def _of_pairs(plan: Plan, steps: list[dict[str, Any]]) -> Conclusion:
    """Is a node or a link slower than the others?"""
    fields = fields_of(plan.workload.metrics, steps)
    found = judge_fields(fields)
    return Conclusion(found.verdict, found.reason, found.hint, steps, fields=fields)


def _ranking(plan: Plan, steps: list[dict[str, Any]]) -> Ranking | None:
    """Rank the points by the scaling metric, or by the first metric with a direction; None unless all values are
    positive.
    """
    scaling, promised = plan.workload.scaling, plan.workload.metrics
    for name in [scaling.metric] if scaling else promised:
        better = promised[name].better or ({"weak": "higher", "strong": "lower"}[scaling.kind] if scaling else None)
        of_points = [
            (point, [step["metrics"].get(name, {}).get("value", 0) for step in steps if step["parameters"] == point])
            for point in plan.points
        ]
        if better and all(value > 0 for _, found in of_points for value in found):
            if any(map(compared_variables, plan.points)):
                rounds = plan.repetitions if plan.until_settled else None
                found = compare(name, promised[name].unit, better, of_points, rounds=rounds)
                return _at_sizes(found, [step for step in steps if name in step["metrics"]])
            return rank(name, promised[name].unit, better, of_points)
    return None


def _at_sizes(ranking: Ranking, steps: list[dict[str, Any]]) -> Ranking:
    """Return the ranking with the message size of its values and the sizes at which the winner is worse, if any."""
    metrics = [(step["parameters"], step["metrics"][ranking.metric]) for step in steps]
    sizes = metrics[0][1].get("sizes")
    if not sizes or any(metric.get("sizes") != sizes for _, metric in metrics):
        return ranking
    first = metrics[0][1]
    size = next((size for size, value in zip(sizes, first["samples"], strict=True) if value == first["value"]), None)
    ranking = replace(ranking, size=size)
    if ranking.winner is None:
        return ranking
    comparisons = len(sizes) * (len(ranking.entries) - 1)
    worse = []
    for index, each in enumerate(sizes):
        default, winner = (
            [metric["samples"][index] for parameters, metric in metrics if parameters == point]
            for point in (ranking.default, ranking.winner.point)
        )
        if min(*default, *winner) > 0:
            _, bounds = compare_rates(winner, default, better=ranking.better, steps=comparisons)
            worse += [each] if bounds and bounds.high < 0 else []
    return replace(ranking, worse_at=tuple(worse))


def _study(plan: Plan, scaling: Scaling, target: float, steps: list[dict[str, Any]]) -> Study:
    """Return the scaling study against the plan's baseline; ``ValueError`` without one or without values.

    If some ranks of each launch do no work of their own, sizes count the others: the workers.
    """
    overhead = plan.workload.overhead_ranks
    measured = [step for step in steps if scaling.metric in step["metrics"]]  # it may be an optional metric
    for kind in (True, False):
        lacking = {step[plan.unit] for step in steps if ("copy" in step) is kind} - {
            step[plan.unit] for step in measured if ("copy" in step) is kind
        }
        if lacking:
            raise ValueError(f"no {'copy' if kind else 'step'} of {min(lacking)} has a value of {scaling.metric}")
    before = _earlier(plan, scaling.metric) if plan.baseline == "history" else None
    observations = [
        Observation(
            step=step["ranks"] - overhead if overhead else step[plan.unit],
            round=step["repetition"],
            value=step["metrics"][scaling.metric]["value"],
            kind="copy" if "copy" in step else "step",
            hosts=tuple(step["hosts"]),
        )
        for step in measured
    ]
    study = judge(
        kind=scaling.kind,
        better=plan.workload.metrics[scaling.metric].better,
        target=target,
        metric=scaling.metric,
        unit=plan.workload.metrics[scaling.metric].unit,
        step_unit="workers" if overhead else plan.unit,
        observations=[each for each in observations if before is None or each.step != before.step],
        earlier=before,
        rounds=plan.repetitions if plan.until_settled else None,
        max_half_width=plan.precision,
    )
    scaled = round(study.steps[-1].ideal_speedup)
    reference = format_reference(
        plan.workload.name, kind=scaling.kind, metric=scaling.metric, n=scaled, site=plan.site, own=_own(plan)
    )
    return replace(study, reference=reference)


def _own(plan: Plan) -> list[float]:
    """Return the efficiencies of earlier studies of the same size on this site, from the store."""
    largest = max(plan.steps, key=lambda step: step.size)
    try:
        before = Store().runs(Filters(series=series_of(plan, largest)))
        return [run.efficiency for run in before if run.efficiency is not None and run.run != plan.run]
    except HidlError:  # they are for orientation alone
        return []


def _earlier(plan: Plan, metric: str) -> Earlier:
    """Return the results of earlier runs of the smallest size of the same series, from the store."""
    smallest = min(plan.steps, key=lambda step: step.size)
    found = Store().samples(Filters(series=series_of(plan, smallest), metric=metric, of_ranks=False))
    overhead = plan.workload.overhead_ranks
    counted = smallest.placement.ranks - overhead if overhead else smallest.size
    unit = plan.workload.metrics[metric].unit
    samples = [sample for sample in in_common_units(found, unit=unit) if sample.unit == unit]
    return earlier(samples, metric, step=counted, before=plan.run)


_TAIL_LINES = 15
_TAIL_WIDTH = 1000


def conclude(run: Run, plan: Plan, status: Status) -> Conclusion:
    """Read and check the metrics of all steps, judge them, and write ``metrics.json`` and ``verdict.json``.

    Raises ``SubmitRefused`` if the job would never have started, ``JobFailed`` if it failed, ``MetricMissing`` if a
    metric is missing, and ``HidlError`` if the verdict cannot be written. A scaling study that reached its time limit
    is judged by its complete repetitions, if there are any, and names the others. Likely causes of a failure are
    written to ``causes.json``.
    """
    rounds = _rounds_before_limit(run, plan, status)
    if status.state is not State.COMPLETED and not rounds:
        keep_likely_causes(run, status)
        raise error_for(run, status)
    try:
        return _conclude(run, plan, rounds)
    except OSError as error:
        raise HidlError(
            f"run {run.id} ended well, but its verdict could not be written: {error}",
            hint=f"{_hint_for(run, error)}, then: hidl resume {run.id} (nothing is lost)",
        ) from error


def has_results(run: Run, plan: Plan, status: Status) -> bool:
    """Return True if ``conclude`` judges the run rather than raise the error of its failure."""
    return status.state is State.COMPLETED or bool(_rounds_before_limit(run, plan, status))


def _rounds_before_limit(run: Run, plan: Plan, status: Status) -> int | None:
    """Return how many repetitions a scaling study completed before its time limit; None for other runs."""
    return count_complete_repetitions(run, plan) if status.state is State.TIMEOUT and plan.is_study else None


def _conclude(run: Run, plan: Plan, rounds: int | None) -> Conclusion:
    try:
        steps = _read_steps(run, plan, rounds)
    except MetricMissing as error:
        _keep(run, Conclusion("fail", error.message, error.hint, []))
        raise
    conclusion = judge_steps(plan, steps)
    if rounds is not None and rounds < plan.repetitions:
        conclusion = conclusion.noting(_format_cut(rounds + 1, plan.repetitions))
    if company := describe_company(run, plan):
        conclusion = conclusion.noting(company)
    if run.document("metrics") is None:
        run.write("metrics", {"schema": "hidl.run-metrics/1", "run": run.id, "steps": steps})
    _keep(run, conclusion)
    return conclusion


def describe_company(run: Run, plan: Plan) -> str | None:
    """Say in how many of the steps that ran another run used the machine's cores too; None if in none."""
    places = [run.directory / "steps" / str(number) for number in range(1, len(plan.steps) + 1)]
    places = [place for place in places if place.is_dir()]  # a settled study leaves the others out
    unbound = sum((place / UNBOUND).exists() for place in places)
    shared = sum((place / SHARED).exists() for place in places)
    if not unbound + shared:
        return None
    bound = f"ranks were not bound in {unbound} of {len(places)} step(s), since " if unbound else ""
    steps = f" in {unbound + shared} of {len(places)} step(s)" if shared else ""
    return f"{bound}another run used this machine's cores{steps}: measure again without it"


def _read_steps(run: Run, plan: Plan, rounds: int | None) -> list[dict[str, Any]]:
    """Return ``read_steps``; raise ``MetricMissing`` if the disk was full, as output may then be cut in a number."""
    why = read_status(run).not_written
    try:
        if why and any(step.parser or step.patterns for step in plan.steps):
            raise MetricMissing("the output of the program may be incomplete")
        return read_steps(run, plan, rounds)
    except MetricMissing as error:
        if why:
            raise MetricMissing(
                f"{error.message}; {_format_not_written(run, why)}",
                hint=f"{_hint_for(run, _error_of(why))}, then run it again",
            ) from error
        raise


def _hint_for(run: Run, error: OSError) -> str:
    return hint_for(error, f"free some space in {run.directory}")


def _error_of(why: str) -> OSError:
    """Return the error whose text the job script has written."""
    number = errno.EFBIG if why == os.strerror(errno.EFBIG) else errno.ENOSPC
    return OSError(number, why)


def _format_not_written(run: Run, why: str) -> str:
    return f"when the job ended, it could not write to {run.directory}: {why}"


def _format_cut(first: int, last: int) -> str:
    which = f"repetition {first}" if first == last else f"repetitions {first} to {last}"
    return f"the time limit cut {which} of {last}"


def _keep(run: Run, conclusion: Conclusion) -> None:
    """Write the verdict once, since the directory of an ended run does not change, and index the run."""
    if run.document("verdict") is None:
        document = {
            "schema": "hidl.verdict/1",
            "run": run.id,
            "verdict": conclusion.verdict,
            "reason": conclusion.reason,
            "hint": conclusion.hint,
            "study": conclusion.study and study.to_json(conclusion.study),
            "ranking": conclusion.ranking and ranking.to_json(conclusion.ranking),
            "pairs": nodes.to_json(conclusion.fields) or None,
        }
        run.write("verdict", document)
        index_run(run)


def error_for(run: Run, status: Status) -> HidlError:
    """Return the error of a failed run: its state, the scheduler's reason, the end of stderr, the likely cause."""
    if status.state is State.REFUSED:
        return SubmitRefused(
            f"run {run.id} was refused: {status.reason or 'the scheduler would never start it'}",
            hint="stay within the site's limits (hidl site show), and run it again",
        )
    what, hint = _ENDS.get(status.state, (f"is {status.state.value}", "hidl logs {run}"))
    if status.state is State.FAILED:
        what = _failure(status)
    reason = f" ({status.reason})" if status.reason else ""
    message = f"run {run.id} {what}{reason}"
    if status.not_written:
        message += f"\n{_format_not_written(run, status.not_written)}"
    tail = _tail(run) if status.state in _TELLING else ""
    next_step = hint.format(run=run.id)
    causes = likely_causes(run, status)
    if causes and causes[0].severity == "error":
        next_step = f"{causes[0].fix}\n      hidl logs --stderr {run.id} shows its errors"
    return JobFailed("\n".join(part for part in (message, tail, format_causes(causes)) if part), hint=next_step)


def likely_causes(run: Run, status: Status) -> list[Finding]:
    """Return the likely causes of a failure, from the job and its output, the likeliest first."""
    if status.state not in _DIAGNOSED:
        return []
    return [cause for cause in read_causes(run) if cause.rule != _DIAGNOSED[status.state]]


def keep_likely_causes(run: Run, status: Status) -> None:
    """Write the likely causes of a failed run to its directory, once; damaged files of its stack are no guess."""
    if status.state in _DIAGNOSED and run.document("causes") is None:
        prefix = (run.document("plan") or {}).get("prefix")
        evidence = content.look(Path(prefix), deep=True) if prefix else None
        write_causes(run, [content.finding(evidence)] if evidence else [])


_ENDS = {
    State.FAILED: ("failed", "hidl logs {run}"),
    State.CANCELLED: ("was cancelled", "run it again"),
    State.INTERRUPTED: ("was interrupted", "run it again; --no-wait and hidl resume leave it running meanwhile"),
    State.TIMEOUT: (
        "reached its time limit",
        "hidl logs {run} shows how far it got; ask for more time with --time, or for fewer steps",
    ),
    State.NODE_FAIL: (
        "lost a node",
        "run it again: the fault is a node's (scontrol show node, bhosts -l), not the program's",
    ),
    State.OUT_OF_MEMORY: (
        "ran out of memory",
        "fewer ranks on each node (--ranks-per-node), more nodes, or a smaller problem",
    ),
    State.PREEMPTED: ("was preempted by another job", "run it again, or under another --qos or --partition"),
    State.LOST: (
        "disappeared without recording its end (killed, or the machine went down?)",
        "hidl logs {run} shows how far it got; hidl cancel {run} ends what it may have left; then run it again",
    ),
}
#: The states of which the end of the job's stderr tells more.
_TELLING = (State.FAILED, State.OUT_OF_MEMORY, State.NODE_FAIL, State.LOST)
#: The states that have causes, and the rule that would say no more than the state itself.
_DIAGNOSED = {**dict.fromkeys(_TELLING), State.TIMEOUT: "HD102", State.NODE_FAIL: "HD103"}


def _failure(status: Status) -> str:
    if status.exit_status is None:
        return "failed before it could record a status"
    return f"ended with status {status.exit_status} in step {status.step} of {status.steps}"


def _tail(run: Run) -> str:
    """Return the last lines of the job's stderr."""
    return "\n".join(last_lines(run.stderr, _TAIL_LINES, width=_TAIL_WIDTH))

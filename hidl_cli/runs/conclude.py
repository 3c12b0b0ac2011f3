"""Determine the verdicts of ended runs. Only a run's directory is read, so that this is possible at any later time."""

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
from hidl_cli.profile import keep_profile, metrics_of
from hidl_cli.record import Run, State, Status
from hidl_cli.runs.goodput import describe_nodes, nodes_of_jobs, read_goodput
from hidl_cli.runs.metrics import add_accounted_energy, count_complete_repetitions, describe_unequal_ranks, read_steps
from hidl_cli.runs.parsers.patterns import last_lines
from hidl_cli.schedulers.decision import read_status
from hidl_cli.stack import content
from hidl_cli.store.extract import series_of
from hidl_cli.store.index import index_run
from hidl_cli.store.references import format_reference
from hidl_cli.store.store import Filters, Store
from hidl_cli.tuning.judge import compared_variables
from hidl_workloads.doctor.finding import Finding
from hidl_workloads.enough import SHARED, UNBOUND
from hidl_workloads.repetitions import LEAST, compare_rates


@dataclass(frozen=True)
class Conclusion:
    """The verdict on a run.

    Attributes:
        verdict: pass, fail or inconclusive; None if there was nothing to judge.
        steps: Metrics of the steps, in the form of metrics.json.
        study: Scaling study if the run compared sizes.
        ranking: Ranking of the points of a matrix.
        fields: Metrics measured between all pairs of nodes.
    """

    verdict: str | None
    reason: str
    hint: str | None
    steps: list[dict[str, Any]]
    study: Study | None = None
    ranking: Ranking | None = None
    fields: tuple[Field, ...] = ()

    def with_note(self, note: str) -> Conclusion:
        """Return a copy with a note appended to the reason."""
        reason = f"{self.reason}; {note}"
        return replace(self, reason=reason, study=self.study and replace(self.study, reason=reason))

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for the verdict."""
        return {
            "fail": ExitCode.BELOW_TARGET,
            "inconclusive": ExitCode.INCONCLUSIVE,
        }.get(self.verdict or "pass", ExitCode.OK)


_ALONE = "repeat the measurement while no other run uses this machine"


def judge_steps(plan: Plan, steps: list[dict[str, Any]]) -> Conclusion:
    """Determine the verdict on a plan's steps (from ``read_steps``): whether the ranks agree and how the run scales."""
    for step in steps:
        difference = describe_unequal_ranks(step["metrics"], plan.workload.metrics)
        if difference:
            return Conclusion("fail", difference, "check that every rank joins the allreduce", steps)
    if len(plan.points) == 1 and any("pairs" in found for found in steps[0]["metrics"].values()):
        return _judge_pairs(plan, steps)
    scaling = plan.workload.scaling
    if scaling is None or plan.target is None or not plan.is_study:
        agreed = [name for name, metric in plan.workload.metrics.items() if metric.equal_on_all_ranks]
        agreement = f"all ranks agree on {', '.join(agreed)}; " if agreed else ""
        counted = _undisturbed(steps)
        if not counted and len(plan.points) > 1:
            compared = any(map(compared_variables, plan.points))
            what = "no comparison" if compared else "not ranked"
            reason = f"{agreement}{what}: fewer than {LEAST} rounds ran alone on this machine"
            verdict = "inconclusive" if compared else "pass" if agreed else None
            return Conclusion(verdict, reason, _ALONE, steps)
        ranking = _ranking(plan, counted) if len(plan.points) > 1 else None
        if ranking:
            reason = ranking.reason
        elif len(plan.points) > 1:
            reason = "no ranking: no metric with a direction has a positive value in every step"
        else:
            reason = "one size only: scaling not evaluated"
        reason += _format_left_out(steps, counted)
        return Conclusion("pass" if agreed else None, f"{agreement}{reason}", None, steps, ranking=ranking)
    counted = _undisturbed(steps)
    try:
        study = _study(plan, scaling, plan.target, counted or steps)
    except ValueError as error:  # there are too few earlier runs, or a copy's host is unknown
        hint = "measure a baseline in the same allocation with --baseline single"
        return Conclusion("inconclusive", str(error), hint, steps)
    if not counted and study.verdict is not None:
        study = _without_verdict(study)
    if left_out := _format_left_out(steps, counted):
        study = replace(
            study,
            reason=study.reason + left_out,
            hint=_ALONE if study.verdict == "inconclusive" else study.hint,
        )
    return Conclusion(study.verdict, study.reason, study.hint, steps, study)


def _undisturbed(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps of undisturbed rounds, or an empty list if disturbances leave too few rounds for an interval."""
    disturbed = {step["repetition"] for step in steps if step.get("disturbed")}
    left = {step["repetition"] for step in steps} - disturbed
    return [step for step in steps if step["repetition"] in left] if len(left) >= LEAST or not disturbed else []


def _format_left_out(steps: list[dict[str, Any]], counted: list[dict[str, Any]]) -> str:
    rounds, left = ({step["repetition"] for step in some} for some in (steps, counted))
    return f"; {len(rounds) - len(left)} of {len(rounds)} rounds were disturbed" if left and left != rounds else ""


def _without_verdict(study: Study) -> Study:
    """Mark a study as inconclusive, because another run disturbed its rounds and may have affected the verdict."""
    first, *scaled = study.steps
    return replace(
        study,
        steps=(first, *(replace(step, verdict="inconclusive") for step in scaled)),
        verdict="inconclusive",
        reason=f"fewer than {LEAST} rounds ran alone on this machine; while another run used it: {study.reason}",
        hint=_ALONE,
    )


def _judge_pairs(plan: Plan, steps: list[dict[str, Any]]) -> Conclusion:
    """Determine whether a node or a link is slower than the others."""
    fields = fields_of(plan.workload.metrics, steps)
    found = judge_fields(fields)
    return Conclusion(found.verdict, found.reason, found.hint, steps, fields=fields)


def _ranking(plan: Plan, steps: list[dict[str, Any]]) -> Ranking | None:
    """Rank the points by the scaling metric, or by the first other metric that is suitable.

    A metric is suitable if it is known whether higher or lower is better, and if all its values are positive.
    """
    scaling, metrics = plan.workload.scaling, plan.workload.metrics
    for name in [scaling.metric] if scaling else metrics:
        better = metrics[name].better or ({"weak": "higher", "strong": "lower"}[scaling.kind] if scaling else None)
        values = [
            (point, [step["metrics"].get(name, {}).get("value", 0) for step in steps if step["parameters"] == point])
            for point in plan.points
        ]
        if better and all(value > 0 for _, found in values for value in found):
            if any(map(compared_variables, plan.points)):
                rounds = plan.repetitions if plan.until_settled else None
                found = compare(name, metrics[name].unit, better, values, rounds=rounds)
                return _with_sizes(found, [step for step in steps if name in step["metrics"]])
            return rank(name, metrics[name].unit, better, values)
    return None


def _with_sizes(ranking: Ranking, steps: list[dict[str, Any]]) -> Ranking:
    """Add message sizes to a ranking: the size of its values, and the sizes at which the winner is worse."""
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
    """Evaluate the scaling relative to the plan's baseline.

    If some ranks only coordinate the others, the sizes exclude them and count only the workers. Raises ``ValueError``
    if the baseline or a value is missing.
    """
    overhead = plan.workload.overhead_ranks
    measured = [step for step in steps if scaling.metric in step["metrics"]]  # the metric may be optional
    for is_copy in (True, False):
        lacking = {step[plan.unit] for step in steps if ("copy" in step) is is_copy} - {
            step[plan.unit] for step in measured if ("copy" in step) is is_copy
        }
        if lacking:
            raise ValueError(
                f"no {'copy' if is_copy else 'step'} of size {min(lacking)} has a value for {scaling.metric}"
            )
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
        plan.workload.name,
        kind=scaling.kind,
        metric=scaling.metric,
        n=scaled,
        site=plan.site,
        own=_earlier_efficiencies(plan),
    )
    return replace(study, reference=reference)


def _earlier_efficiencies(plan: Plan) -> list[float]:
    """Return the stored efficiencies of this site's earlier studies with the same largest size."""
    largest = max(plan.steps, key=lambda step: step.size)
    try:
        before = Store().runs(Filters(series=series_of(plan, largest)))
        return [run.efficiency for run in before if run.efficiency is not None and run.run != plan.run]
    except HidlError:  # they are only shown for comparison
        return []


def _earlier(plan: Plan, metric: str) -> Earlier:
    """Return the stored results for the plan's smallest size from earlier runs of the same series."""
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
    """Return the verdict on an ended run, and write its documents: metrics and verdict, or causes if it failed.

    A scaling study that reached its time limit is judged by its complete repetitions, if there are any.

    Raises:
        SubmitRefused: The job would never have started.
        JobFailed: The job failed.
        MetricMissing: A metric is missing.
        HidlError: The verdict cannot be written.
    """
    plan = plan.on_nodes(len(status.hosts))
    rounds = _rounds_before_limit(run, plan, status)
    if status.state is not State.COMPLETED and not rounds:
        keep_likely_causes(run, status)
        keep_profile(run, plan)
        raise error_for(run, status)
    try:
        return _conclude(run, plan, rounds)
    except OSError as error:
        raise HidlError(
            f"run {run.id} succeeded, but its verdict could not be written: {error}",
            hint=f"{_hint_for(run, error)}, then run: hidl resume {run.id} (nothing is lost)",
        ) from error


def has_results(run: Run, plan: Plan, status: Status) -> bool:
    """Return whether ``conclude`` returns a verdict on the run rather than raising an error for its failure."""
    return status.state is State.COMPLETED or bool(_rounds_before_limit(run, plan, status))


def _rounds_before_limit(run: Run, plan: Plan, status: Status) -> int | None:
    """Return the number of repetitions that a scaling study completed before its time limit, or None for other runs."""
    return count_complete_repetitions(run, plan) if status.state is State.TIMEOUT and plan.is_study else None


def _conclude(run: Run, plan: Plan, rounds: int | None) -> Conclusion:
    try:
        steps = _read_steps(run, plan, rounds)
    except MetricMissing as error:
        _keep(run, Conclusion("fail", error.message, error.hint, []))
        raise
    conclusion = judge_steps(plan, steps)
    if rounds is not None and rounds < plan.repetitions:
        conclusion = conclusion.with_note(_format_cut(rounds + 1, plan.repetitions))
    if company := describe_company(run, plan):
        conclusion = conclusion.with_note(company)
    add_accounted_energy(run, plan, steps)
    profile = keep_profile(run, plan, conclusion.study)
    if profile:
        _add_metrics(steps, profile["steps"])
    if goodput := read_goodput(run, plan):
        conclusion = conclusion.with_note(goodput.describe())
        for step in steps:  # only one, because a study is a single job
            step["metrics"] = {**goodput.metrics(), **step["metrics"]}
    if plan.on_fewer_nodes and (nodes := nodes_of_jobs(run)):
        conclusion = conclusion.with_note(describe_nodes(nodes))
        for step in steps:
            step["metrics"] = {"job_nodes": {"value": nodes[-1], "unit": "nodes", "samples": nodes}, **step["metrics"]}
    if run.document("metrics") is None:
        run.write("metrics", {"schema": "hidl.run-metrics/1", "run": run.id, "steps": steps})
    _keep(run, conclusion)
    return conclusion


def _add_metrics(steps: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> None:
    """Add a profile's metrics to the metrics of the steps, so that the results history contains them."""
    keys = ("ranks", "repetition", "copy")
    for step in steps:
        for each in recorded:
            same = all(step.get(key) == each.get(key) for key in keys)
            if same and step.get("parameters", {}) == each["parameters"] and not each["problem"]:
                step["metrics"] = {**metrics_of(each), **step["metrics"]}


def describe_company(run: Run, plan: Plan) -> str | None:
    """Describe the steps during which another run used the machine's cores, or return None if there are none."""
    steps = [run.directory / "steps" / str(number) for number in range(1, len(plan.steps) + 1)]
    steps = [step for step in steps if step.is_dir()]  # a settled study skips the remaining steps
    unbound = sum((step / UNBOUND).exists() for step in steps)
    shared = sum((step / SHARED).exists() for step in steps)
    if not unbound + shared:
        return None
    bound = f"ranks were not bound in {unbound} of {len(steps)} step(s), since " if unbound else ""
    where = f" in {unbound + shared} of {len(steps)} step(s)" if shared else ""
    return f"{bound}another run used this machine's cores{where}; repeat the measurement without the other run"


def _read_steps(run: Run, plan: Plan, rounds: int | None) -> list[dict[str, Any]]:
    """Call ``read_steps``; raises ``MetricMissing`` if the disk was full, because a number may be cut off."""
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
    """Return the error whose text the job script recorded."""
    number = errno.EFBIG if why == os.strerror(errno.EFBIG) else errno.ENOSPC
    return OSError(number, why)


def _format_not_written(run: Run, why: str) -> str:
    return f"the job could not write to {run.directory} when it ended: {why}"


def _format_cut(first: int, last: int) -> str:
    which = f"repetition {first}" if first == last else f"repetitions {first} to {last}"
    return f"the time limit cut off {which} of {last}"


def _keep(run: Run, conclusion: Conclusion) -> None:
    """Write the verdict and index the run, unless it already has a verdict."""
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
    """Return the error for a failed run, with the scheduler's reason, the end of stderr and the likely causes."""
    if status.state is State.REFUSED:
        return SubmitRefused(
            f"run {run.id} was rejected: {status.reason or 'the scheduler would never start it'}",
            hint="stay within the site's limits (hidl site show), and run it again",
        )
    what, hint = _ENDS.get(status.state, (f"is {status.state.value}", "see its output with: hidl logs {run}"))
    if status.state is State.FAILED:
        what = _failure(status)
    reason = f" ({status.reason})" if status.reason else ""
    message = f"run {run.id} {what}{reason}"
    if status.not_written:
        message += f"\n{_format_not_written(run, status.not_written)}"
    tail = "\n".join(last_lines(run.stderr, _TAIL_LINES, width=_TAIL_WIDTH)) if status.state in _WITH_STDERR else ""
    next_step = hint.format(run=run.id)
    causes = likely_causes(run, status)
    if causes and causes[0].severity == "error":
        next_step = f"{causes[0].fix}\n      hidl logs --stderr {run.id} shows its errors"
    return JobFailed("\n".join(part for part in (message, tail, format_causes(causes)) if part), hint=next_step)


def likely_causes(run: Run, status: Status) -> list[Finding]:
    """Return the likely causes of a failure that the job and its output indicate, starting with the most likely one."""
    if status.state not in _DIAGNOSED:
        return []
    return [cause for cause in read_causes(run) if cause.rule not in _DIAGNOSED[status.state]]


def keep_likely_causes(run: Run, status: Status) -> None:
    """Write ``causes.json`` for a failed run unless the file exists. Damaged stack files count as a certain cause."""
    if status.state in _DIAGNOSED and run.document("causes") is None:
        plan = run.document("plan") or {}
        uses_stack = not plan.get("workload", {}).get("program", {}).get("once")  # a batch script uses no stack
        prefix = plan.get("prefix") if uses_stack else None
        evidence = content.look(Path(prefix), deep=True) if prefix else None
        write_causes(run, [content.finding(evidence)] if evidence else [])


_ENDS = {
    State.FAILED: ("failed", "see its output with: hidl logs {run}"),
    State.CANCELLED: ("was cancelled", "run it again"),
    State.INTERRUPTED: ("was interrupted", "run it again; with --no-wait and hidl resume, it runs in the background"),
    State.TIMEOUT: (
        "reached its time limit",
        "hidl logs {run} shows how far it got; request more time with --time, or fewer steps",
    ),
    State.NODE_FAIL: (
        "lost a node",
        "run it again: a node failed (scontrol show node, bhosts -l), not the program",
    ),
    State.OUT_OF_MEMORY: (
        "ran out of memory",
        "use fewer ranks per node (--ranks-per-node), more nodes, or a smaller problem",
    ),
    State.PREEMPTED: ("was preempted by another job", "run it again, or under another --qos or --partition"),
    State.LOST: (
        "disappeared without recording its end (was it killed, or did the machine go down?)",
        "hidl logs {run} shows how far it got; hidl cancel {run} ends remaining processes; then run it again",
    ),
}
#: States for which the end of stderr is shown.
_WITH_STDERR = (State.FAILED, State.OUT_OF_MEMORY, State.NODE_FAIL, State.LOST)
#: States whose causes are diagnosed, and the rules that are skipped because they would only repeat the state. HD266
#: reports signal 15, with which the scheduler itself ends the ranks of such jobs.
_DIAGNOSED: dict[State, tuple[str, ...]] = {
    **dict.fromkeys(_WITH_STDERR, ()),
    State.TIMEOUT: ("HD102", "HD266"),
    State.NODE_FAIL: ("HD103", "HD266"),
}


def _failure(status: Status) -> str:
    if status.exit_status is None:
        return "failed before it could record a status"
    return f"ended with status {status.exit_status} in step {status.step} of {status.steps}"

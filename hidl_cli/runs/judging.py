"""The verdict on a run's metrics: do its ranks agree, and how well does it scale against its baseline?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hidl_cli.analysis.measures import in_common_units
from hidl_cli.analysis.nodes.pairs import Field
from hidl_cli.analysis.nodes.verdict import fields_of, judge_fields
from hidl_cli.analysis.ranking import Ranking, compare, rank
from hidl_cli.analysis.scaling.baselines import Earlier, earlier
from hidl_cli.analysis.scaling.judge import judge
from hidl_cli.analysis.scaling.study import Observation, Study
from hidl_cli.errors import ExitCode, HidlError
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.workload import Scaling
from hidl_cli.runs.metrics import describe_unequal_ranks
from hidl_cli.store.extract import series_of
from hidl_cli.store.filters import Filters
from hidl_cli.store.references.published import format_reference
from hidl_cli.store.store import Store
from hidl_cli.tuning.settings import compared_variables
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

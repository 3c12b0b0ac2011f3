"""The verdict on what a run measured: whether its ranks agree, and how well it scales against its baseline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hidl_cli.errors import ExitCode, HidlError
from hidl_cli.runs.metrics import unequal
from hidl_cli.runs.plan import Plan

if TYPE_CHECKING:
    from hidl_cli.results.baselines import Earlier
    from hidl_cli.results.pairs import Field
    from hidl_cli.results.ranking import Ranking
    from hidl_cli.results.scaling import Study
    from hidl_cli.runs.workload import Scaling


@dataclass(frozen=True)
class Conclusion:
    """``verdict``: pass, fail, inconclusive, or None where there was nothing to judge; ``steps`` as in metrics.json.

    ``study``: how it scales, where sizes were compared; ``ranking``: which point is the best, where a matrix was;
    ``fields``: what was measured between every two nodes.
    """

    verdict: str | None
    reason: str
    hint: str | None
    steps: list[dict[str, Any]]
    study: Study | None = None
    ranking: Ranking | None = None
    fields: tuple[Field, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """What the verdict tells the shell."""
        return {
            "fail": ExitCode.BELOW_TARGET,
            "inconclusive": ExitCode.INCONCLUSIVE,
        }.get(self.verdict or "pass", ExitCode.OK)


def judged(plan: Plan, steps: list[dict[str, Any]]) -> Conclusion:
    """Judge what the steps of a plan measured (see ``measured``): do the ranks agree, and does it scale?"""
    for step in steps:
        difference = unequal(step["metrics"], plan.workload.metrics)
        if difference:
            return Conclusion("fail", difference, "does every rank take part in the allreduce?", steps)
    if len(plan.points) == 1 and any("pairs" in found for found in steps[0]["metrics"].values()):
        return _of_pairs(plan, steps)
    scaling = plan.workload.scaling
    if scaling is None or plan.target is None or not plan.is_study:
        agreed = [name for name, metric in plan.workload.metrics.items() if metric.equal_on_all_ranks]
        held = f"all ranks agree on {', '.join(agreed)}; " if agreed else ""
        ranking = _ranking(plan, steps) if len(plan.points) > 1 else None
        reason = ranking.reason if ranking else "one size only: there is no scaling to judge"
        return Conclusion("pass" if agreed else None, f"{held}{reason}", None, steps, ranking=ranking)
    try:
        study = _study(plan, scaling, plan.target, steps)
    except ValueError as error:  # too little history, a copy without its host
        hint = "measure a baseline in the same allocation: --baseline single"
        return Conclusion("inconclusive", str(error), hint, steps)
    return Conclusion(study.verdict, study.reason, study.hint, steps, study)


def _of_pairs(plan: Plan, steps: list[dict[str, Any]]) -> Conclusion:
    """Is a node or a link slower than the others?"""
    from hidl_cli.results.pairs_verdict import fields_of, outcome

    fields = fields_of(plan.workload.metrics, steps)
    found = outcome(fields)
    return Conclusion(found.verdict, found.reason, found.hint, steps, fields=fields)


def _ranking(plan: Plan, steps: list[dict[str, Any]]) -> Ranking | None:
    """The points by the metric that the workload scales by, or the first that knows a direction; None where not all
    points have one, above 0."""
    from hidl_cli.results.ranking import rank

    scaling, promised = plan.workload.scaling, plan.workload.metrics
    for name in [scaling.metric] if scaling else promised:
        better = promised[name].better or ({"weak": "higher", "strong": "lower"}[scaling.kind] if scaling else None)
        of_points = [
            (point, [step["metrics"].get(name, {}).get("value", 0) for step in steps if step["parameters"] == point])
            for point in plan.points
        ]
        if better and all(value > 0 for _, found in of_points for value in found):
            return rank(name, promised[name].unit, better, of_points)
    return None


def _study(plan: Plan, scaling: Scaling, target: float, steps: list[dict[str, Any]]) -> Study:
    """The study of what was measured, against the plan's baseline; ``ValueError`` where it cannot be made.

    Where some ranks of each launch do no work of their own, the others are what is counted: the workers.
    """
    from hidl_cli.results.references import reference_for
    from hidl_cli.results.scaling import Observation, judge
    from hidl_workloads.repetitions import looks

    overhead = plan.workload.overhead_ranks
    before = _earlier(plan, scaling.metric) if plan.baseline == "history" else None
    observations = [
        Observation(
            step=step["ranks"] - overhead if overhead else step[plan.unit],
            round=step["repetition"],
            value=step["metrics"][scaling.metric]["value"],
            kind="copy" if "copy" in step else "step",
            hosts=tuple(step["hosts"]),
        )
        for step in steps
    ]
    study = judge(
        kind=scaling.kind,
        target=target,
        metric=scaling.metric,
        unit=plan.workload.metrics[scaling.metric].unit,
        step_unit="workers" if overhead else plan.unit,
        observations=[each for each in observations if before is None or each.step != before.step],
        earlier=before,
        looks=len(looks(plan.repetitions)) if plan.until_settled else 1,
    )
    scaled = round(study.steps[-1].ideal_speedup)
    reference = reference_for(plan.workload.name, kind=scaling.kind, n=scaled, site=plan.site, own=_own(plan))
    return replace(study, reference=reference)


def _own(plan: Plan) -> list[float]:
    """The efficiencies of earlier studies of the same size here, as the store knows them."""
    from hidl_cli.results.extract import series_of
    from hidl_cli.results.filters import Filters
    from hidl_cli.results.store import Store

    largest = max(plan.steps, key=lambda step: step.size)
    try:
        before = Store().runs(Filters(series=series_of(plan, largest)))
        return [run.efficiency for run in before if run.efficiency is not None and run.run != plan.run]
    except HidlError:  # they are for orientation alone
        return []


def _earlier(plan: Plan, metric: str) -> Earlier:
    """What the smallest size reached in earlier runs of the same series, as the store knows them."""
    from hidl_cli.results.baselines import earlier
    from hidl_cli.results.extract import series_of
    from hidl_cli.results.filters import Filters
    from hidl_cli.results.store import Store

    smallest = min(plan.steps, key=lambda step: step.size)
    samples = Store().samples(Filters(series=series_of(plan, smallest), metric=metric, of_ranks=False))
    overhead = plan.workload.overhead_ranks
    counted = smallest.placement.ranks - overhead if overhead else smallest.size
    return earlier(samples, metric, step=counted, before=plan.run)

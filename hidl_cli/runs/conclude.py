"""From an ended job to metrics and a verdict. Needs nothing but the run's directory, so it can be done at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hidl_cli.errors import ExitCode, JobFailed, MetricMissing
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.runs.metrics import read_metrics, unequal
from hidl_cli.runs.plan import Plan

if TYPE_CHECKING:
    from hidl_cli.results.scaling import Study

_TAIL_LINES = 15


@dataclass(frozen=True)
class Conclusion:
    """``verdict``: pass, fail, inconclusive, or None where there was nothing to judge; ``steps`` as in metrics.json."""

    verdict: str | None
    reason: str
    hint: str | None
    steps: list[dict[str, Any]]
    study: Study | None

    @property
    def exit_code(self) -> ExitCode:
        """What the verdict tells the shell."""
        return {
            "fail": ExitCode.BELOW_TARGET,
            "inconclusive": ExitCode.INCONCLUSIVE,
        }.get(self.verdict or "pass", ExitCode.OK)


def conclude(run: Run, plan: Plan, status: Status) -> Conclusion:
    """Read and check the metrics of all steps, judge them, and write ``metrics.json`` and ``verdict.json``.

    Raises ``JobFailed`` where the job did not end well, ``MetricMissing`` where a metric is not there.
    """
    if status.state is not State.COMPLETED:
        raise JobFailed(_how_it_ended(run, status), hint=f"hidl logs {run.id}")
    try:
        steps = _steps(run, plan)
    except MetricMissing as error:
        _keep(run, "fail", error.message, error.hint, None)
        raise
    conclusion = _judge(plan, steps)
    if run.document("metrics") is None:
        run.write("metrics", {"schema": "hidl.run-metrics/1", "run": run.id, "steps": steps})
    _keep(run, conclusion.verdict, conclusion.reason, conclusion.hint, _study_document(conclusion.study))
    return conclusion


def _steps(run: Run, plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            plan.unit: step.size,
            "ranks": step.placement.ranks,
            "repetition": step.repetition,
            "metrics": read_metrics(run.metrics_file(number), plan.workload.metrics, ranks=step.placement.ranks),
        }
        for number, step in enumerate(plan.steps, start=1)
    ]


def _study_document(study: Study | None) -> dict[str, Any] | None:
    if study is None:
        return None
    from hidl_cli.results.scaling import to_json

    return to_json(study)


def _keep(run: Run, verdict: str | None, reason: str, hint: str | None, study: dict[str, Any] | None) -> None:
    """Write the verdict, once: what a run directory says of an ended run does not change."""
    if run.document("verdict") is None:
        outcome = {"verdict": verdict, "reason": reason, "hint": hint, "study": study}
        run.write("verdict", {"schema": "hidl.verdict/1", "run": run.id, **outcome})


def _judge(plan: Plan, steps: list[dict[str, Any]]) -> Conclusion:
    for step in steps:
        difference = unequal(step["metrics"], plan.workload.metrics)
        if difference:
            return Conclusion("fail", difference, "does every rank take part in the allreduce?", steps, None)
    scaling = plan.workload.scaling
    if scaling is None or plan.target is None or not plan.is_study:
        return Conclusion(None, "one size only: there is no scaling to judge", None, steps, None)
    from hidl_cli.results.scaling import Observation, judge

    study = judge(
        kind=scaling.kind,
        target=plan.target,
        metric=scaling.metric,
        unit=plan.workload.metrics[scaling.metric].unit,
        step_unit=plan.unit,
        observations=[
            Observation(step=step[plan.unit], round=step["repetition"], value=step["metrics"][scaling.metric]["value"])
            for step in steps
        ],
    )
    return Conclusion(study.verdict, study.reason, study.hint, steps, study)


def _how_it_ended(run: Run, status: Status) -> str:
    words = {
        State.FAILED: f"ended with status {status.exit_status} in step {status.step} of {status.steps}",
        State.CANCELLED: "was cancelled",
        State.INTERRUPTED: "was interrupted",
        State.TIMEOUT: "reached its time limit",
        State.LOST: "vanished without recording its end (killed, or the machine went down?)",
    }
    message = f"run {run.id} {words.get(status.state, f'is {status.state.value}')}"
    tail = _tail(run)
    return f"{message}\n{tail}" if tail and status.state is State.FAILED else message


def _tail(run: Run) -> str:
    """The last lines of the job's stderr."""
    try:
        lines = run.stderr.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])

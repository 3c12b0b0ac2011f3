"""From an ended job to metrics and a verdict. Needs nothing but the run's directory, so it can be done at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hidl_cli.errors import HidlError, JobFailed, MetricMissing, SubmitRefused
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.runs.judging import Conclusion, judged
from hidl_cli.runs.measured import measured
from hidl_cli.runs.plan import Plan

if TYPE_CHECKING:
    from hidl_workloads.doctor.finding import Finding

_TAIL_LINES = 15
_FURTHER_CAUSES = 3


def conclude(run: Run, plan: Plan, status: Status) -> Conclusion:
    """Read and check the metrics of all steps, judge them, and write ``metrics.json`` and ``verdict.json``.

    Raises ``SubmitRefused`` where the job would never have started, ``JobFailed`` where it did not end well,
    ``MetricMissing`` where a metric is not there, and ``HidlError`` where the verdict cannot be written.
    Of a run that did not end well the likely causes are kept in ``causes.json``.
    """
    if status.state is not State.COMPLETED:
        keep_likely_causes(run, status)
        raise error_of(run, status)
    try:
        return _conclude(run, plan)
    except OSError as error:
        raise HidlError(
            f"run {run.id} ended well, but its verdict cannot be written: {error}",
            hint=f"make room in {run.directory}, then: hidl resume {run.id} (nothing is lost)",
        ) from error


def _conclude(run: Run, plan: Plan) -> Conclusion:
    try:
        steps = measured(run, plan)
    except MetricMissing as error:
        _keep(run, Conclusion("fail", error.message, error.hint, []))
        raise
    conclusion = judged(plan, steps)
    if run.document("metrics") is None:
        run.write("metrics", {"schema": "hidl.run-metrics/1", "run": run.id, "steps": steps})
    _keep(run, conclusion)
    return conclusion


def _keep(run: Run, conclusion: Conclusion) -> None:
    """Write the verdict, once: what a run directory says of an ended run does not change. Then it can be indexed."""
    from hidl_cli.results import pairs, ranking, scaling
    from hidl_cli.results.indexing import remember

    if run.document("verdict") is None:
        document = {
            "schema": "hidl.verdict/1",
            "run": run.id,
            "verdict": conclusion.verdict,
            "reason": conclusion.reason,
            "hint": conclusion.hint,
            "study": conclusion.study and scaling.to_json(conclusion.study),
            "ranking": conclusion.ranking and ranking.to_json(conclusion.ranking),
            "pairs": pairs.to_json(conclusion.fields) or None,
        }
        run.write("verdict", document)
        remember(run)


def error_of(run: Run, status: Status) -> HidlError:
    """What a run that did not end well is told as: what became of it, the scheduler's reason, the end of its stderr,
    the likely cause, and the next step."""
    if status.state is State.REFUSED:
        return SubmitRefused(
            f"run {run.id} was refused: {status.reason or 'the scheduler would never start it'}",
            hint="ask for what the site admits (hidl site show), and run it again",
        )
    what, hint = _ENDS.get(status.state, (f"is {status.state.value}", "hidl logs {run}"))
    if status.state is State.FAILED:
        what = _failure(status)
    reason = f" ({status.reason})" if status.reason else ""
    message = f"run {run.id} {what}{reason}"
    tail = _tail(run) if status.state in _TELLING else ""
    next_step = hint.format(run=run.id)
    causes = likely_causes(run, status)
    if causes and causes[0].severity == "error":
        next_step = f"{causes[0].mend}\n      hidl logs --stderr {run.id} shows what it complained about"
    return JobFailed("\n".join(part for part in (message, tail, _told(causes)) if part), hint=next_step)


def likely_causes(run: Run, status: Status) -> list[Finding]:
    """Why the run did not end well, as far as its job and its output tell, the likeliest first."""
    from hidl_cli.doctor.seen import causes_of

    if status.state not in _DIAGNOSED:
        return []
    return [cause for cause in causes_of(run) if cause.rule != _DIAGNOSED[status.state]]


def keep_likely_causes(run: Run, status: Status) -> None:
    """Write the likely causes of a run that did not end well to its directory, once."""
    from hidl_cli.doctor.seen.runs import keep_causes

    if status.state in _DIAGNOSED:
        keep_causes(run)


_ENDS = {
    State.FAILED: ("failed", "hidl logs {run}"),
    State.CANCELLED: ("was cancelled", "run it again"),
    State.INTERRUPTED: ("was interrupted", "run it again; --no-wait and hidl resume leave it running meanwhile"),
    State.TIMEOUT: (
        "reached its time limit",
        "hidl logs {run} shows how far it came; ask for more time with --time, or for fewer steps",
    ),
    State.NODE_FAIL: ("lost a node", "run it again: the fault is a node's (scontrol show node), not the program's"),
    State.OUT_OF_MEMORY: (
        "ran out of memory",
        "fewer ranks on each node (--ranks-per-node), more nodes, or a smaller problem",
    ),
    State.PREEMPTED: ("had to make way for another job", "run it again, or under another --qos or --partition"),
    State.LOST: (
        "vanished without recording its end (killed, or the machine went down?)",
        "hidl logs {run} shows how far it came; then run it again",
    ),
}
#: The states of which the end of the job's stderr tells more.
_TELLING = (State.FAILED, State.OUT_OF_MEMORY, State.NODE_FAIL, State.LOST)
#: The states that have causes, and the rule that would say no more than the state itself.
_DIAGNOSED = {**dict.fromkeys(_TELLING), State.TIMEOUT: "HD102", State.NODE_FAIL: "HD103"}


def _told(causes: list[Finding]) -> str:
    """The first cause with its reason, and the names of the next few. A warning is no more than a possible cause."""
    if not causes:
        return ""
    likely, *others = causes
    place = f" on {likely.where}" if likely.where else ""
    word = "likely" if likely.severity == "error" else "possible"
    lines = [f"{word} cause: {likely.title}{place} ({likely.rule})", f"  seen: {likely.seen}", f"  why: {likely.why}"]
    lines += [f"  mend: {likely.mend}"] if likely.severity != "error" else []
    lines += [f"also seen: {other.title} ({other.rule})" for other in others[:_FURTHER_CAUSES]]
    return "\n".join(lines)


def _failure(status: Status) -> str:
    if status.exit_status is None:
        return "failed before it could record a status"
    return f"ended with status {status.exit_status} in step {status.step} of {status.steps}"


def _tail(run: Run) -> str:
    """The last lines of the job's stderr."""
    try:
        lines = run.stderr.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])

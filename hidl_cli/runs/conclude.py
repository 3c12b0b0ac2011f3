"""From an ended job to metrics and a verdict; reads only the run's directory, so it works at any later time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hidl_cli.analysis import ranking
from hidl_cli.analysis.nodes import pairs
from hidl_cli.analysis.scaling import study
from hidl_cli.diagnoses.causes import format_causes, read_causes, write_causes
from hidl_cli.errors import HidlError, JobFailed, MetricMissing, SubmitRefused
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.runs.judging import Conclusion, judge_steps
from hidl_cli.runs.measured import count_complete_repetitions, read_steps
from hidl_cli.runs.parsers.output import last_lines
from hidl_cli.schedulers.decision import read_status
from hidl_cli.stack import damage
from hidl_cli.store.indexing import index_run
from hidl_workloads.doctor.finding import Finding
from hidl_workloads.enough import SHARED, UNBOUND

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
            hint=f"free some space in {run.directory}, then: hidl resume {run.id} (nothing is lost)",
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
                hint=f"free some space in {run.directory}, run it again",
            ) from error
        raise


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
            "pairs": pairs.to_json(conclusion.fields) or None,
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
        evidence = damage.look(Path(prefix), deep=True) if prefix else None
        write_causes(run, [damage.finding(evidence)] if evidence else [])


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

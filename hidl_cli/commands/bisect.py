"""``hidl bisect``: which of the changes between a good and a bad run explains that it became slower."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.api.bisecting import BUDGET
from hidl_cli.commands.arguments import (
    TIME,
    JsonOption,
    PrefixOption,
    SiteOption,
    complete_runs,
    limit_in_seconds,
)
from hidl_cli.commands.install import OfflineOption
from hidl_cli.commands.job_options import AccountOption, PartitionOption, QosOption, ReservationOption
from hidl_cli.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hidl_cli.bisect.journal import Bisect, Question
    from hidl_cli.record.run import Run
    from hidl_cli.record.state import Status

_NIGHT = "A run's id (or its first or last characters), or the file of a capsule"


def bisect(
    good: Annotated[
        str, typer.Argument(metavar="GOOD", help=f"{_NIGHT}: when it was good.", autocompletion=complete_runs)
    ],
    bad: Annotated[
        str, typer.Argument(metavar="BAD", help=f"{_NIGHT}: when it was slow.", autocompletion=complete_runs)
    ],
    *,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to compare by (default: the workload's main metric).")
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999999, metavar="P", help="Probability of the answer at which to stop.")
    ] = 0.95,
    budget: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at most.")] = BUDGET,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    partition: PartitionOption = None,
    account: AccountOption = None,
    qos: QosOption = None,
    reservation: ReservationOption = None,
    time: Annotated[
        str | None,
        typer.Option("--time", "-t", metavar=TIME, help="Time limit of the job; the next call goes on from there."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Value of a word that a capsule hides (default: $NAME); repeatable."
        ),
    ] = None,
    offline: OfflineOption = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin again, without what an earlier bisect of the two has measured.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before code of a capsule is installed and run.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the changes and the first runs, and touch nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Find which change between a good and a bad run explains the slowdown, by interleaved runs in one job.

    Names the change with its probability, or the machine itself, or says that it is not reproducible. Interrupted, it
    goes on when called again. Exit code 11 if undecided.
    """
    from hidl_cli.api.bisecting import ask, open_nights, site_of
    from hidl_cli.bisect.job import plan_job, require_end, run_job
    from hidl_cli.bisect.journal import open_bisect
    from hidl_cli.capsule.replay import Original
    from hidl_cli.commands.capsule import ask_consent, install_order
    from hidl_cli.commands.render import say
    from hidl_cli.launch.allocation import Asked
    from hidl_cli.record.state import State

    asked = Asked(
        partition=partition,
        time_limit=limit_in_seconds(time),
        account=account,
        qos=qos,
        reservation=reservation,
    )
    with ExitStack() as opened:
        both = open_nights(good, bad, opened, set_ or [])
        machine = site_of(both, site)
        question = ask(both, metric, machine, None)
        plan = plan_job(question, machine, asked)
        if dry_run:
            _show_plan(question, confidence, budget, json=json)
            return
        for line in _introduction(question):
            say(line)
        if any(isinstance(each, Original) for each in both):
            if not yes:
                ask_consent()
            question = ask(both, metric, machine, install_order, prefix=prefix, job=asked, offline=offline)
            plan = plan_job(question, machine, asked)
    found = open_bisect(question, fresh=fresh)
    say(f"bisect in {found.directory}")
    journal = found.journal()
    if journal.entries:
        say(f"going on after {journal.measured} run(s)")
    if not journal.is_over(question, confidence, budget):
        job, status = run_job(found, plan, confidence, budget, tell=_Progress(found, question, budget).update)
        require_end(job, status)
        if status.state is State.TIMEOUT:
            say("the job has reached its time limit; called again, hidl bisect goes on from there")
    _conclude(found, question, confidence, json=json)


def _introduction(question: Question) -> Iterator[str]:
    """Yield the lines that say what is compared, and which changes there are."""
    from statistics import median

    from hidl_cli.bisect.verdict import expected_runs

    metric = question.metric
    for which, side, values in (("good", question.good, metric.good), ("bad ", question.bad, metric.bad)):
        yield f"{which}  {side.plan.run}: {metric.measure.metric} {median(values):.6g} {metric.unit}"
    tried, left_out = question.changes.tried, question.changes.left_out
    yield f"{len(tried)} change(s) to try, the likeliest first; about {expected_runs(question)} runs:"
    for number, change in enumerate(tried, start=1):
        yield f"  {number:2}  {change}"
        yield from (f"        {detail}" for detail in change.details)
    if left_out:
        yield "left out, for they cannot be tried alone:"
        yield from (f"      {text}" for text in left_out)


def _show_plan(question: Question, confidence: float, budget: int, *, json: bool) -> None:
    """Print the changes and the first rounds."""
    from hidl_cli.bisect.journal import Journal
    from hidl_cli.bisect.verdict import describe_mixture, describe_plan
    from hidl_cli.commands.render import emit_json, printable, write

    if json:
        emit_json("hidl.bisect-plan/1", **describe_plan(question, budget))
        return
    first = Journal().next_round(question, confidence).planned
    several = "once bad is slower than good: good, bad, some of the changes, all others, in random order"
    lines = [
        *_introduction(question),
        f"warm-up: good{', bad' if question.changes.tried else ''}",
        f"round 1: {', '.join(describe_mixture(question, numbers) for numbers in first)}",
        *([several] if len(question.changes.tried) > 1 else []),
        f"until an answer has a probability of {confidence:g}, {budget} runs at most",
    ]
    write(printable("".join(f"{line}\n" for line in lines)))


class _Progress:
    """Says what each run has measured, and after each round what is most probable."""

    def __init__(self, found: Bisect, question: Question, budget: int) -> None:
        self._found, self._question, self._budget = found, question, budget
        self._shown = len(found.journal().entries)
        self._state = ""

    def update(self, _: Run, status: Status) -> None:
        """Show what is new."""
        from hidl_cli.bisect.verdict import describe_mixture
        from hidl_cli.commands.render import say

        state = f"{status.state.value.lower()}{f': {status.reason}' if status.reason else ''}"
        if state != self._state and not status.state.is_final:
            say(f"job {state}")
        self._state = state
        journal = self._found.journal()
        for entry in journal.entries[self._shown :]:
            what = describe_mixture(self._question, entry.changes)
            self._shown += 1
            count = sum(each.round > 0 for each in journal.entries[: self._shown])
            number = f"run {count} of at most {self._budget}" if entry.round else "warm-up"
            value = f"failed: {entry.failure}" if entry.value is None else f"{entry.value:.6g}"
            say(f"{number}: {what}: {value}")


def _conclude(found: Bisect, question: Question, confidence: float, *, json: bool) -> None:
    """Show the answer, and end with its exit code."""
    from hidl_cli.bisect.verdict import to_json, verdict
    from hidl_cli.commands.render import emit_json, printable, say, stdout

    journal = found.journal()
    said = verdict(question, journal, confidence)
    if json:
        document: dict[str, Any] = to_json(question, journal, said, confidence)
        emit_json("hidl.bisect/1", directory=str(found.directory), **document)
    else:
        stdout().print(printable(said.sentence), markup=False, soft_wrap=True)
        for note in said.notes:
            stdout().print(printable(f"  {note}"), markup=False, soft_wrap=True)
        say(f"{journal.measured} runs")
    if said.answer.outcome == "undecided":
        say(f"to go on: a larger --budget than {journal.measured}, or more --time")
        raise typer.Exit(ExitCode.INCONCLUSIVE)

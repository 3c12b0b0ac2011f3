"""``hidl capsule``, ``hidl replay`` and ``hidl bisect``: save a run to a file, replay it, or explain a slowdown."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli import paths
from hidl_cli.api.capsules import BUDGET
from hidl_cli.commands.arguments import (
    JsonOption,
    NoCheckOption,
    OfflineOption,
    PrefixOption,
    complete_runs,
    with_options,
)
from hidl_cli.errors import ExitCode, UsageError
from hidl_cli.launch.options import AllocationOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hidl_cli.bisect.journal import Bisect, Question
    from hidl_cli.capsule import Original, Replayed
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.record import Run, Status
    from hidl_cli.stack.installation import Installation
    from hidl_cli.stack.order import Order


def capsule(
    run: Annotated[
        str | None,
        typer.Argument(help="Run id, or its start or end (default: the last run).", autocompletion=complete_runs),
    ] = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write (default: RUN.capsule)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Save a run in one file: its plan, script, lockfile, stack, site and metrics, and the hashes of its inputs."""
    from hidl_cli.capsule import SUFFIX, capsule_of, is_capsule, keeps_sources, required_words
    from hidl_cli.commands.render import emit_json, printable, say, write
    from hidl_cli.documents import write_output
    from hidl_cli.errors import HidlError
    from hidl_cli.record import find

    found = find(run)
    made = capsule_of(found)
    file = output or Path(f"{made.run}{SUFFIX}")
    try:
        write_output(file, made.to_bytes(), is_capsule)
    except OSError as error:
        raise HidlError(
            f"cannot write {file}: {error.strerror}", hint="write to another file with --output FILE"
        ) from error
    if not keeps_sources(found):
        say(
            f"warning: run {found.id} did not keep its site and stack files; the capsule has the current ones",
            style="yellow",
        )
    for each in made.inputs:
        if each.modified:
            say(f"warning: {printable(each.path)} has changed since the run was submitted", style="yellow")
    hidden = [vars(each) for each in made.hidden or ()]
    if json:
        inputs = [vars(each) for each in made.inputs]
        emit_json("hidl.capsule-made/1", run=made.run, file=str(file.absolute()), inputs=inputs, hidden=hidden)
    else:
        write(printable(f"{file}\n"))
        if needed := required_words(made):
            say(f"a replay requires these redacted values: {', '.join(needed)}")
        say(f"to replay it, here or on another machine, run: hidl replay {file}")


_JOB = ("site", "partition", "account", "qos", "reservation", "time")


@with_options(AllocationOptions, only=_JOB, help={"time": "Time limit of the job; 10 means ten minutes."})
def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Capsule to replay (see hidl capsule).")],
    *,
    options: AllocationOptions,
    prefix: PrefixOption = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Number of repetitions (default: as in the run).")] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=100, metavar="PERCENT", help="Smallest regression worth reporting.")
    ] = 3.0,
    offline: OfflineOption = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Redacted value that the run requires (default: $NAME); repeatable."
        ),
    ] = None,
    changed_inputs: Annotated[
        bool, typer.Option("--changed-inputs", help="Run even if input files are missing or have changed.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Install and run the capsule's code without confirmation.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job script without running it.")] = False,
    no_check: NoCheckOption = False,
    json: JsonOption = False,
) -> None:
    """Install a capsule's stack from its lockfile, run its plan again, and compare the metrics.

    The exit code is 10 if the replay is worse, or differs in a metric without a direction, and 11 if it is
    inconclusive.
    """
    from dataclasses import replace

    from hidl_cli.capsule import (
        check_inputs,
        choose_site,
        order_for,
        read,
        read_hidden_words,
        request_of,
        require_words,
        unpacked,
    )
    from hidl_cli.commands.render import check_before_run, emit_json, say, write
    from hidl_cli.plan.job_script import job_script
    from hidl_cli.plan.prepare import prepare
    from hidl_cli.redaction import Secrets

    held = read(file)
    words = read_hidden_words([held], set_ or [])
    with unpacked(held, words) as original, paths.temporary_directory("replay") as brought:
        machine = choose_site(original.plan, options.site)
        if not changed_inputs:
            check_inputs(original)
        if not dry_run:
            require_words(original)
        order = order_for(original, machine, prefix, brought, options, offline=offline)
        request = request_of(original, machine, str(order.root), options, repeat)
        planned = prepare(replace(request, hypothetical=True), machine, original.plan.workload, original.stack)
        if dry_run:
            document = planned.to_json()
            secrets = Secrets().learn(document)
            script = secrets.hide(job_script(planned))
            if json:
                emit_json(
                    "hidl.replay-plan/1",
                    capsule=held.digest,
                    root=str(order.root),
                    plan=secrets.hide_document(document),
                    script=script,
                    missing_words=list(original.missing),
                )
            else:
                write(script)
                if original.missing:
                    say(f"not set: {', '.join(original.missing)}; a replay requires them (--set or variables)")
            return
        _introduce(original, planned, order)
        if not yes:
            ask_consent()
        installed = install_order(order)
        plan = prepare(request, machine, original.plan.workload, original.stack)
        script = job_script(plan)
        if not no_check:
            check_before_run(plan, machine, hypothetical=False)
        record = _run(plan, script, json=json)
        _conclude(original, record, installed, tolerance / 100, json=json)


def _introduce(original: Original, planned: Plan, order: Order) -> None:
    """Show what will be installed and run.

    The command lines are generated here, since those in a capsule cannot be trusted.
    """
    from hidl_cli.commands.render import printable, say

    plan = original.plan
    sizes = ", ".join(str(size) for size in sorted({step.size for step in plan.steps}))
    say(printable(f"run {plan.run} from {plan.created[:10]}, on site {plan.site}, by hidl {plan.hidl}"))
    say(printable(f"  workload  {plan.workload.name} on {sizes} {plan.unit}, {plan.repetitions} repetition(s)"))
    packages = len(original.capsule.packages)
    say(printable(f"  stack     {plan.stack}: {packages} packages, verified by hash, in {order.root}"))
    say(printable(f"  site      {order.site.name}"))
    if original.given:
        say(printable(f"  redacted  {', '.join(original.given)}: supplied"))
    for command in dict.fromkeys(planned.command_line(step) for step in planned.steps):
        say(printable(f"  $ {command}"), style="dim")


def ask_consent() -> None:
    """Ask for confirmation before a capsule's code is installed and run; without a terminal, raise ``UsageError``."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "a replay installs the capsule's packages and runs its program on this machine",
            hint="check the output of --dry-run, then add --yes",
        )
    typer.confirm("Install and run this?", abort=True, err=True)


def install_order(order: Order) -> Installation:
    """Install a capsule's stack from its lockfile and show the progress."""
    from hidl_cli.api.software import verifier_for
    from hidl_cli.commands.render import progress, say
    from hidl_cli.stack.install import install
    from hidl_cli.stack.verify import verification_place

    follower = progress()
    outcome = install(order, follower, verifier_for(order.site, verification_place(order.site), follower))
    say(f"stack {order.stack.name}: {outcome.action}, {outcome.installation.prefix}")
    return outcome.installation


def _run(plan: Plan, script: str, *, json: bool) -> Run:
    """Run the plan to its end and show its verdict, which does not affect the exit code."""
    from hidl_cli.commands.follow import follow_to_verdict, show, started
    from hidl_cli.commands.render import say

    with started(plan, script) as record:
        say(f"run {record.id} in {record.directory}")
        conclusion = follow_to_verdict(record, plan)
    if not json:
        show(record, conclusion)
    return record


def _conclude(original: Original, record: Run, installed: Installation, tolerance: float, *, json: bool) -> None:
    """Compare the replay with its original, save and show the result, and exit with the matching exit code."""
    from hidl_cli.capsule import compare_replay, write_result
    from hidl_cli.commands.render import emit_json
    from hidl_cli.commands.results import exit_by

    replayed = compare_replay(original, record, installed.manifest["packages"], tolerance)
    document = write_result(original, record, replayed)
    if json:
        emit_json("hidl.replay/1", **document)
    else:
        _show(replayed)
    exit_by(replayed.comparison)


def _show(replayed: Replayed) -> None:
    from hidl_cli.commands.render import printable, stdout
    from hidl_cli.commands.results import show_comparison

    show_comparison(replayed.comparison)
    out = stdout()
    out.print(printable(replayed.answer), markup=False)
    out.print("changed: " + (printable("; ".join(replayed.changed)) or "nothing that was recorded"), markup=False)


# ``hidl bisect``.


_SIDE = "run id (or its start or end), or capsule file"


@with_options(AllocationOptions, only=_JOB, help={"time": "Time limit of the job; run the command again to resume."})
def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help=f"The fast run: {_SIDE}.", autocompletion=complete_runs)],
    bad: Annotated[str, typer.Argument(metavar="BAD", help=f"The slow run: {_SIDE}.", autocompletion=complete_runs)],
    *,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Metric to compare (default: the workload's main metric).")
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999999, metavar="P", help="Stop when a result reaches this probability.")
    ] = 0.95,
    budget: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of runs.")] = BUDGET,
    options: AllocationOptions,
    prefix: PrefixOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Redacted value that a run requires (default: $NAME); repeatable."
        ),
    ] = None,
    offline: OfflineOption = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of resuming an earlier bisect of the two runs.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Install and run a capsule's code without confirmation.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the changes and the first runs without running anything.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Find the change between a good and a bad run that explains a slowdown, with interleaved runs in one job.

    The result is a change with its probability, or the machine itself, or that the slowdown is not reproducible. An
    interrupted bisect resumes when called again. The exit code is 11 if it is undecided.
    """
    from hidl_cli.api.capsules import build_question, choose_bisect_site, open_runs
    from hidl_cli.bisect.journal import open_bisect
    from hidl_cli.bisect.verdict import plan_job, require_end, run_job
    from hidl_cli.capsule import Original
    from hidl_cli.commands.render import say
    from hidl_cli.record import State

    with ExitStack() as opened:
        both = open_runs(good, bad, opened, set_ or [])
        machine = choose_bisect_site(both, options.site)
        question = build_question(both, metric, machine, None)
        plan = plan_job(question, machine, options)
        if dry_run:
            _show_plan(question, confidence, budget, json=json)
            return
        for line in _introduction(question):
            say(line)
        if any(isinstance(each, Original) for each in both):
            if not yes:
                ask_consent()
            question = build_question(both, metric, machine, install_order, prefix=prefix, job=options, offline=offline)
            plan = plan_job(question, machine, options)
    found = open_bisect(question, fresh=fresh)
    say(f"bisect in {found.directory}")
    journal = found.journal()
    if journal.entries:
        say(f"resuming after {journal.measured} run(s)")
    if not journal.is_over(question, confidence, budget):
        job, status = run_job(found, plan, confidence, budget, tell=_Progress(found, question, budget).update)
        require_end(job, status)
        if status.state is State.TIMEOUT:
            say("the job has reached its time limit; run the same command again to resume")
    _conclude_of_bisect(found, question, confidence, json=json)


def _introduction(question: Question) -> Iterator[str]:
    """Yield lines that describe the two runs and the changes between them."""
    from statistics import median

    from hidl_cli.bisect.verdict import expected_runs

    metric = question.metric
    for which, side, values in (("good", question.good, metric.good), ("bad ", question.bad, metric.bad)):
        yield f"{which}  {side.plan.run}: {metric.measure.metric} {median(values):.6g} {metric.unit}"
    tried, left_out = question.changes.tried, question.changes.left_out
    yield f"{len(tried)} change(s) to try, most likely first; about {expected_runs(question)} runs:"
    for number, change in enumerate(tried, start=1):
        yield f"  {number:2}  {change}"
        yield from (f"        {detail}" for detail in change.details)
    if left_out:
        yield "left out, because they cannot be tried separately:"
        yield from (f"      {text}" for text in left_out)


def _show_plan(question: Question, confidence: float, budget: int, *, json: bool) -> None:
    """Print the changes to try and the runs of the first round."""
    from hidl_cli.bisect.journal import Journal
    from hidl_cli.bisect.verdict import describe_mixture, describe_plan
    from hidl_cli.commands.render import emit_json, printable, write

    if json:
        emit_json("hidl.bisect-plan/1", **describe_plan(question, budget))
        return
    first = Journal().next_round(question, confidence).planned
    several = (
        "once bad is slower than good, each round runs good, bad, some of the changes and all others, in random order"
    )
    lines = [
        *_introduction(question),
        f"warm-up: good{', bad' if question.changes.tried else ''}",
        f"round 1: {', '.join(describe_mixture(question, numbers) for numbers in first)}",
        *([several] if len(question.changes.tried) > 1 else []),
        f"stops when a result has a probability of {confidence:g}, or after {budget} runs",
    ]
    write(printable("".join(f"{line}\n" for line in lines)))


class _Progress:
    """Progress of a bisect: the result of each run, and the state of the job."""

    def __init__(self, found: Bisect, question: Question, budget: int) -> None:
        self._found, self._question, self._budget = found, question, budget
        self._shown = len(found.journal().entries)
        self._state = ""

    def update(self, _: Run, status: Status) -> None:
        """Print new results and the state of the job."""
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


def _conclude_of_bisect(found: Bisect, question: Question, confidence: float, *, json: bool) -> None:
    """Show the result and exit with the matching exit code."""
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
        say(f"to continue, use a --budget above {journal.measured}, or a longer --time")
        raise typer.Exit(ExitCode.INCONCLUSIVE)

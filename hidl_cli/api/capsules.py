"""Capsules, replays and bisects: ``hidl capsule``, ``hidl replay`` and ``hidl bisect``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli import paths
from hidl_cli.api.execution import Run, find
from hidl_cli.api.software import Lines, ignore, verifier_for
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.plan.options import absolute

if TYPE_CHECKING:
    from hidl_cli.bisect.journal import Bisect, Question
    from hidl_cli.capsule import Original
    from hidl_cli.plan.launch_plan import Plan as LaunchPlan
    from hidl_cli.record import Run as Record
    from hidl_cli.record import Status
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.installation import Installation
    from hidl_cli.stack.order import Order


@dataclass(frozen=True)
class Replay:
    """A finished replay: its run, and a comparison of its metrics with those of the capsule.

    Attributes:
        outcome: The worst outcome of any metric.
        answer: The outcome in one line.
        changed: Differences in provenance between the two runs.
        document: The document that ``hidl replay --json`` prints.
    """

    run: Run
    outcome: Literal["worse", "different", "inconclusive", "same"]
    answer: str
    changed: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False)


def capsule(run: str | PathLike[str] | Run | None = None, file: str | PathLike[str] | None = None) -> Path:
    """Write a capsule of a run (default: the newest) to ``file`` (default: ``RUN.capsule``), like ``hidl capsule``.

    Raises ``MissingPrecondition`` for a run without metrics or a lockfile, and ``FileExistsError`` if ``file`` is
    not a capsule.
    """
    from hidl_cli.capsule import SUFFIX, capsule_of, is_capsule
    from hidl_cli.documents import write_output
    from hidl_cli.record import Run as Record

    found = run if isinstance(run, Run) else find(run)
    made = capsule_of(Record(found.directory))
    place = Path(file) if file is not None else Path(f"{made.run}{SUFFIX}")
    write_output(place, made.to_bytes(), is_capsule)
    return place


def replay(
    file: str | PathLike[str],
    *,
    site: str | None = None,
    prefix: str | PathLike[str] | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    reservation: str | None = None,
    time: float | None = None,
    repeat: int | None = None,
    tolerance: float = 0.03,
    offline: bool = False,
    changed_inputs: bool = False,
    words: Mapping[str, str] | None = None,
    progress: Callable[[str], object] | None = None,
) -> Replay:
    """Install a capsule's stack from its lockfile, run its plan again and compare metrics, like ``hidl replay --yes``.

    The packages and the program of a capsule run with your privileges.

    Args:
        file: The capsule.
        repeat: Number of repetitions (default: that of the original run).
        tolerance: Smallest regression worth reporting, as a fraction.
        time: Time limit of the job in seconds.
        changed_inputs: Whether to run even if input files are missing or have changed.
        words: Values of the words that the capsule hides (default: the environment variables with these names).
        progress: Function that is called with a line for each step.

    The other arguments are those of ``install`` and ``run``. Raises ``InvalidInput`` for a damaged capsule,
    ``MissingPrecondition`` if its lockfile cannot be used or an input is missing, and propagates errors from
    ``install`` and ``Run.wait``.
    """
    from hidl_cli.capsule import (
        check_inputs,
        choose_site,
        compare_replay,
        order_for,
        read,
        read_hidden_words,
        request_of,
        require_words,
        unpacked,
        write_result,
    )
    from hidl_cli.plan.job_script import job_script
    from hidl_cli.plan.prepare import prepare
    from hidl_cli.runs.follow import submit
    from hidl_cli.stack.install import install
    from hidl_cli.stack.verify import verification_place

    held = read(Path(file))
    job = AllocationOptions(partition=partition, time=time, account=account, qos=qos, reservation=reservation)
    follower = Lines(progress or ignore)
    given = read_hidden_words([held], [f"{name}={value}" for name, value in (words or {}).items()])
    with unpacked(held, given) as original, paths.temporary_directory("replay") as brought:
        machine = choose_site(original.plan, site)
        if not changed_inputs:
            check_inputs(original)
        require_words(original)
        order = order_for(original, machine, absolute(prefix), brought, job, offline=offline)
        verifier = verifier_for(machine, verification_place(machine), follower)
        installed = install(order, follower, verifier).installation
        request = request_of(original, machine, str(order.root), job, repeat)
        plan = prepare(request, machine, original.plan.workload, original.stack)
        ran = Run(submit(plan, job_script(plan)).directory).wait()
        from hidl_cli.record import Run as Record

        replayed = compare_replay(original, Record(ran.directory), installed.manifest["packages"], tolerance)
        document = write_result(original, Record(ran.directory), replayed)
    return Replay(ran, replayed.comparison.outcome, replayed.answer, replayed.changed, document)


# Bisects.


#: Default maximum number of runs of a bisect.
BUDGET = 150


@dataclass(frozen=True)
class Bisection:
    """The result of a bisect.

    Attributes:
        answer: The result in one sentence.
        confidence: Probability that the result is right.
        guilty: The changes that explain the slowdown.
        directory: Directory of the bisect and its runs.
        document: The document that ``hidl bisect --json`` prints.
    """

    outcome: Literal["changes", "several", "machine", "not reproducible", "undecided"]
    answer: str
    confidence: float
    guilty: tuple[str, ...]
    directory: Path
    document: Mapping[str, Any] = field(repr=False)


def bisect(
    good: str | PathLike[str] | Run,
    bad: str | PathLike[str] | Run,
    *,
    metric: str | None = None,
    confidence: float = 0.95,
    budget: int = BUDGET,
    site: str | None = None,
    prefix: str | PathLike[str] | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    reservation: str | None = None,
    time: float | None = None,
    offline: bool = False,
    fresh: bool = False,
    words: Mapping[str, str] | None = None,
    progress: Callable[[str], object] | None = None,
) -> Bisection:
    """Find the change between a good and a bad run that explains a slowdown, like ``hidl bisect --yes``.

    ``good`` and ``bad`` are runs or capsule files. The packages and the program of a capsule run with your privileges.
    An interrupted bisect is resumed.

    Args:
        good: The fast run.
        bad: The slow run.
        metric: Metric to compare (default: the workload's main metric).
        confidence: Probability of the result at which the search stops.
        budget: Maximum number of runs.
        fresh: Whether to start over instead of resuming an earlier bisect.

    The other arguments are those of ``replay``. Raises ``UsageError`` if the two runs cannot be compared,
    ``MissingPrecondition`` if a stack is missing, ``JobFailed`` if a configuration does not run, and propagates errors
    from ``install``.
    """
    from hidl_cli.bisect.journal import open_bisect
    from hidl_cli.bisect.verdict import plan_job, to_json, verdict
    from hidl_cli.stack.install import install
    from hidl_cli.stack.verify import verification_place

    follower = Lines(progress or ignore)

    def install_by(order: Order) -> Installation:
        verifier = verifier_for(order.site, verification_place(order.site), follower)
        return install(order, follower, verifier).installation

    job = AllocationOptions(partition=partition, time=time, account=account, qos=qos, reservation=reservation)
    with ExitStack() as opened:
        given = [f"{name}={value}" for name, value in (words or {}).items()]
        both = open_runs(good, bad, opened, given)
        machine = choose_bisect_site(both, site)
        question = build_question(both, metric, machine, install_by, prefix=absolute(prefix), job=job, offline=offline)
    plan = plan_job(question, machine, job)
    found = open_bisect(question, fresh=fresh)
    if not found.journal().is_over(question, confidence, budget):
        _run(found, plan, confidence, budget, progress or ignore)
    journal = found.journal()
    said = verdict(question, journal, confidence)
    document = to_json(question, journal, said, confidence)
    return Bisection(
        said.answer.outcome,
        said.sentence,
        said.answer.confidence,
        tuple(str(question.changes.tried[number]) for number in said.answer.guilty),
        found.directory,
        document,
    )


def _run(found: Bisect, plan: LaunchPlan, confidence: float, budget: int, progress: Callable[[str], object]) -> None:
    """Run the job and report new states to ``progress``; raises ``JobFailed`` unless it completes or times out."""
    from hidl_cli.bisect.verdict import require_end, run_job

    seen: list[str] = []

    def tell(_: Record, status: Status) -> None:
        if seen[-1:] != [status.state.value]:
            seen.append(status.state.value)
            progress(status.state.value)

    require_end(*run_job(found, plan, confidence, budget, tell=tell))


def open_runs(
    good: str | PathLike[str] | Run,
    bad: str | PathLike[str] | Run,
    opened: ExitStack,
    assignments: Sequence[str] = (),
) -> tuple[Record | Original, Record | Original]:
    """Return the runs with the given names, or the contents of the given capsule files.

    Capsules stay unpacked until ``opened`` is closed; ``assignments`` (``--set``) supply the words that they hide.
    Raises ``UsageError`` if there is neither such a run nor such a file, and ``InvalidInput`` for a damaged capsule.
    """
    from hidl_cli.capsule import Capsule, read, read_hidden_words, unpacked
    from hidl_cli.record import Run as Record

    def found(name: str | PathLike[str] | Run) -> Record | Capsule:
        if isinstance(name, Run):
            return Record(name.directory)
        return read(Path(name)) if Path(name).is_file() else Record(find(name).directory)

    both = (found(good), found(bad))
    words = read_hidden_words([each for each in both if isinstance(each, Capsule)], assignments)
    first, second = (
        opened.enter_context(unpacked(each, words)) if isinstance(each, Capsule) else each for each in both
    )
    return first, second


def choose_bisect_site(both: tuple[Record | Original, Record | Original], name: str | None) -> Site:
    """Return the site on which to bisect: the one called ``name`` (default: the site of the good run)."""
    from hidl_cli.capsule import Original, choose_site
    from hidl_cli.plan.launch_plan import plan_of

    good = both[0]
    return choose_site(good.plan if isinstance(good, Original) else plan_of(good), name)


def build_question(
    both: tuple[Record | Original, Record | Original],
    metric: str | None,
    site: Site,
    install: Callable[[Order], Installation] | None,
    *,
    prefix: str | None = None,
    job: AllocationOptions | None = None,
    offline: bool = False,
) -> Question:
    """Return the question that a bisect answers: the two runs to compare and the changes between them.

    ``install`` installs the stack of a capsule on this machine; without it, the question can only be displayed. ``job``
    contains the options for a job that builds software.
    """
    from hidl_cli.bisect.journal import ComparedRun, Question, metric_of, read_capsule, read_run, side_of
    from hidl_cli.capsule import Original, order_for, require_words

    def night(one: Record | Original) -> ComparedRun:
        if not isinstance(one, Original):
            return read_run(one)
        if install is None:
            return read_capsule(one, None)
        require_words(one)
        with paths.temporary_directory("bisect") as brought:
            return read_capsule(
                one, install(order_for(one, site, prefix, brought, job or AllocationOptions(), offline=offline))
            )

    good, bad = map(night, both)
    found = metric_of(good, bad, metric)
    return Question.between(side_of(good, found.measure), side_of(bad, found.measure), found)

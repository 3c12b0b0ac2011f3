"""Capsules and replays: what ``hidl capsule`` and ``hidl replay`` do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli import paths
from hidl_cli.api.installing import Lines, nobody, verifier_for
from hidl_cli.api.options import absolute
from hidl_cli.api.running import Run, find

if TYPE_CHECKING:
    from hidl_cli.bisect.journal import Bisect, Question
    from hidl_cli.capsule import Original
    from hidl_cli.launch.placement import Asked
    from hidl_cli.plan.launch_plan import Plan as LaunchPlan
    from hidl_cli.record.run import Run as Record
    from hidl_cli.record.run import Status
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.installation import Installation
    from hidl_cli.stack.order import Order


@dataclass(frozen=True)
class Replay:
    """A replay that ended: its run, and how its numbers compare with those of the capsule.

    ``outcome`` is the worst of all metrics; ``answer`` says it in a line; ``changed``: what differs between the two
    runs besides; ``document`` is that of ``hidl replay --json``.
    """

    run: Run
    outcome: Literal["worse", "different", "inconclusive", "same"]
    answer: str
    changed: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False)


def capsule(run: str | PathLike[str] | Run | None = None, file: str | PathLike[str] | None = None) -> Path:
    """Write the capsule of a run (None: the newest) to ``file``, by default ``RUN.capsule`` here: ``hidl capsule``.

    Raises ``MissingPrecondition`` for a run without metrics or without a lock.
    """
    from hidl_cli.capsule import SUFFIX, capsule_of
    from hidl_cli.documents import write_bytes
    from hidl_cli.record.run import Run as Record

    found = run if isinstance(run, Run) else find(run)
    made = capsule_of(Record(found.directory))
    place = Path(file) if file is not None else Path(f"{made.run}{SUFFIX}")
    write_bytes(place, made.to_bytes())
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
    """Install a capsule's stack by its lock, run its plan again, and compare: ``hidl replay --yes``.

    The packages and the program of a capsule are code that runs with your rights. ``tolerance``: a worsening by a
    smaller fraction is the same; ``time``: the job's limit in seconds; ``words``: the values of words that the capsule
    hides (default: variables of their names); other arguments as for ``install`` and ``run``.

    Raises ``InvalidInput`` for a capsule that is damaged, ``MissingPrecondition`` if its lock does not serve here or
    its inputs are not there, and what ``install`` and ``Run.wait`` raise.
    """
    from hidl_cli.api.options import submit
    from hidl_cli.capsule import (
        check_inputs,
        hold_against,
        keep,
        machine_for,
        order_for,
        read,
        request_of,
        require_words,
        unpacked,
        words_for,
    )
    from hidl_cli.launch.placement import Asked
    from hidl_cli.plan.job_script import job_script
    from hidl_cli.plan.prepare import prepare
    from hidl_cli.stack.install import install
    from hidl_cli.stack.verify import verification_place

    held = read(Path(file))
    asked = Asked(partition=partition, time_limit=time, account=account, qos=qos, reservation=reservation)
    follower = Lines(progress or nobody)
    given = words_for([held], [f"{name}={value}" for name, value in (words or {}).items()])
    with unpacked(held, given) as original, paths.temporary_directory("replay") as brought:
        machine = machine_for(original.plan, site)
        if not changed_inputs:
            check_inputs(original)
        require_words(original)
        order = order_for(original, machine, absolute(prefix), brought, asked, offline=offline)
        verifier = verifier_for(machine, verification_place(machine), follower)
        installed = install(order, follower, verifier).installation
        request = request_of(original, machine, str(order.root), asked, repeat)
        plan = prepare(request, machine, original.plan.workload, original.stack)
        ran = Run(submit(plan, job_script(plan)).directory).wait()
        from hidl_cli.record.run import Run as Record

        replayed = hold_against(original, Record(ran.directory), installed.manifest["packages"], tolerance)
        document = keep(original, Record(ran.directory), replayed)
    return Replay(ran, replayed.comparison.outcome, replayed.answer, replayed.changed, document)


# Bisects: what ``hidl bisect`` does.


#: Runs that a bisect takes at most, unless another number is given.
BUDGET = 150


@dataclass(frozen=True)
class Bisection:
    """What a bisect found. ``answer`` says it in a sentence, with its probability in ``confidence``.

    ``guilty``: the changes that explain the slowdown, in words; ``directory``: where it keeps its runs; ``document`` is
    that of ``hidl bisect --json``.
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
    """Find which change between a good and a bad run explains the slowdown: ``hidl bisect --yes``.

    Each is a run, or the file of a capsule, whose packages and program are code that runs with your rights. One that
    was interrupted goes on; ``fresh`` begins again. Other arguments as for ``replay``.

    Raises ``UsageError`` if the two cannot be compared, ``MissingPrecondition`` if a stack is not there, ``JobFailed``
    if a configuration does not run, and what ``install`` raises.
    """
    from hidl_cli.bisect.journal import open_bisect
    from hidl_cli.bisect.verdict import plan_job, to_json, verdict
    from hidl_cli.launch.placement import Asked
    from hidl_cli.stack.install import install
    from hidl_cli.stack.verify import verification_place

    follower = Lines(progress or nobody)

    def install_by(order: Order) -> Installation:
        verifier = verifier_for(order.site, verification_place(order.site), follower)
        return install(order, follower, verifier).installation

    asked = Asked(partition=partition, time_limit=time, account=account, qos=qos, reservation=reservation)
    with ExitStack() as opened:
        given = [f"{name}={value}" for name, value in (words or {}).items()]
        both = open_nights(good, bad, opened, given)
        machine = site_of(both, site)
        question = ask(both, metric, machine, install_by, prefix=absolute(prefix), job=asked, offline=offline)
    plan = plan_job(question, machine, asked)
    found = open_bisect(question, fresh=fresh)
    if not found.journal().is_over(question, confidence, budget):
        _run(found, plan, confidence, budget, progress or nobody)
    journal = found.journal()
    said = verdict(question, journal, confidence)
    document = to_json(question, journal, said, confidence)
    guilty = said.answer.best.explanation.changes if said.answer.outcome == "changes" else ()
    return Bisection(
        said.answer.outcome,
        said.sentence,
        said.answer.confidence,
        tuple(str(question.changes.tried[number]) for number in guilty),
        found.directory,
        document,
    )


def _run(found: Bisect, plan: LaunchPlan, confidence: float, budget: int, progress: Callable[[str], object]) -> None:
    """Run the job, and give each new state to ``progress``; raises ``JobFailed`` unless it ended well or in time."""
    from hidl_cli.bisect.verdict import require_end, run_job

    seen: list[str] = []

    def tell(_: Record, status: Status) -> None:
        if seen[-1:] != [status.state.value]:
            seen.append(status.state.value)
            progress(status.state.value)

    require_end(*run_job(found, plan, confidence, budget, tell=tell))


def open_nights(
    good: str | PathLike[str] | Run,
    bad: str | PathLike[str] | Run,
    opened: ExitStack,
    assignments: Sequence[str] = (),
) -> tuple[Record | Original, Record | Original]:
    """Return the runs of these names, or what is in the capsules of these files, unpacked until ``opened`` ends.

    ``assignments`` (``--set``): the values of words that the capsules hide. Raises ``UsageError`` if there is neither,
    ``InvalidInput`` for a capsule that is damaged.
    """
    from hidl_cli.capsule import Capsule, read, unpacked, words_for
    from hidl_cli.record.run import Run as Record

    def found(name: str | PathLike[str] | Run) -> Record | Capsule:
        if isinstance(name, Run):
            return Record(name.directory)
        return read(Path(name)) if Path(name).is_file() else Record(find(name).directory)

    both = (found(good), found(bad))
    words = words_for([each for each in both if isinstance(each, Capsule)], assignments)
    first, second = (
        opened.enter_context(unpacked(each, words)) if isinstance(each, Capsule) else each for each in both
    )
    return first, second


def site_of(both: tuple[Record | Original, Record | Original], name: str | None) -> Site:
    """Return the site to bisect on: of that name, else the one that the good run was on."""
    from hidl_cli.capsule import Original, machine_for
    from hidl_cli.plan.launch_plan import plan_of

    good = both[0]
    return machine_for(good.plan if isinstance(good, Original) else plan_of(good), name)


def ask(
    both: tuple[Record | Original, Record | Original],
    metric: str | None,
    site: Site,
    install: Callable[[Order], Installation] | None,
    *,
    prefix: str | None = None,
    job: Asked | None = None,
    offline: bool = False,
) -> Question:
    """Return the question between the two.

    ``install`` brings the stack of a capsule to this machine; None: the question is only looked at. ``job`` are the
    options of a job that builds.
    """
    from hidl_cli.bisect.journal import ComparedRun, Question, metric_of, read_capsule, read_run, side_of
    from hidl_cli.capsule import Original, order_for, require_words
    from hidl_cli.launch.placement import Asked

    def night(one: Record | Original) -> ComparedRun:
        if not isinstance(one, Original):
            return read_run(one)
        if install is None:
            return read_capsule(one, None)
        require_words(one)
        with paths.temporary_directory("bisect") as brought:
            return read_capsule(one, install(order_for(one, site, prefix, brought, job or Asked(), offline=offline)))

    good, bad = map(night, both)
    found = metric_of(good, bad, metric)
    return Question.between(side_of(good, found.measure), side_of(bad, found.measure), found)

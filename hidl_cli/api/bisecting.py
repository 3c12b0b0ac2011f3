"""Bisects: what ``hidl bisect`` does."""

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
    from hidl_cli.capsule.replay import Original
    from hidl_cli.launch.allocation import Asked
    from hidl_cli.plan.launch_plan import Plan as LaunchPlan
    from hidl_cli.record.run import Run as Record
    from hidl_cli.record.state import Status
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.installation import Installation
    from hidl_cli.stack.order import Order

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
    from hidl_cli.bisect.job import plan_job
    from hidl_cli.bisect.journal import open_bisect
    from hidl_cli.bisect.verdict import to_json, verdict
    from hidl_cli.launch.allocation import Asked
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
    from hidl_cli.bisect.job import require_end, run_job

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
    from hidl_cli.capsule.capsule import Capsule, read
    from hidl_cli.capsule.replay import unpacked, words_for
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
    from hidl_cli.capsule.replay import Original, machine_for
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
    from hidl_cli.bisect.journal import Question
    from hidl_cli.bisect.sides import Night, metric_of, of_capsule, of_run, side_of
    from hidl_cli.capsule.replay import Original, order_for, require_words
    from hidl_cli.launch.allocation import Asked

    def night(one: Record | Original) -> Night:
        if not isinstance(one, Original):
            return of_run(one)
        if install is None:
            return of_capsule(one, None)
        require_words(one)
        with paths.temporary_directory("bisect") as brought:
            return of_capsule(one, install(order_for(one, site, prefix, brought, job or Asked(), offline=offline)))

    good, bad = map(night, both)
    found = metric_of(good, bad, metric)
    return Question.between(side_of(good, found.measure), side_of(bad, found.measure), found)

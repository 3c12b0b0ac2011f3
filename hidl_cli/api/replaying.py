"""Capsules and replays: what ``hidl capsule`` and ``hidl replay`` do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from hidl_cli import paths
from hidl_cli.api.installing import Lines, nobody, verifier_for
from hidl_cli.api.options import absolute
from hidl_cli.api.running import Run, find


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
    from hidl_cli.capsule.capsule import SUFFIX
    from hidl_cli.capsule.collect import capsule_of
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
    from hidl_cli.api.launching import submit
    from hidl_cli.capsule.capsule import read
    from hidl_cli.capsule.replay import (
        check_inputs,
        hold_against,
        keep,
        machine_for,
        order_for,
        request_of,
        require_words,
        unpacked,
        words_for,
    )
    from hidl_cli.launch.allocation import Asked
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

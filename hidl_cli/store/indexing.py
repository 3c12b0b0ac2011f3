"""Update the store from run directories."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hidl_cli import __version__, paths
from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import SCHEMA, plan_of
from hidl_cli.record.run import Run
from hidl_cli.record.state import State
from hidl_cli.store.extract import Record, record_of
from hidl_cli.store.sqlite.database import Outdated
from hidl_cli.store.store import Store

#: Called with how many directories of how many have been read.
Progress = Callable[[int, int], None]

#: Judges runs that may have ended while nobody followed them; ``HidlError`` if a scheduler does not answer.
Judge = Callable[[Sequence[Run]], object]

#: What plans this hidl reads: others are looked at again by another one.
_READS = f"{SCHEMA} {__version__}"

#: Seconds that a run which just ended waits for other writers.
_AT_MOST = 10.0


def _nobody(_: int, __: int) -> None:
    pass


@dataclass
class Indexed:
    """The result: runs ``added``, directories ``gone``, and those of another version (``foreign``).

    ``unreadable``: directories that cannot be read at the moment; ``unfinished``: runs that go on or were not judged;
    ``unlistable``: directories of runs that cannot be listed; ``unjudged``: why ended runs could not be judged (the
    scheduler does not answer, the disk is full); ``aside``: the new name of an unusable file in the store's place.
    """

    added: int = 0
    gone: int = 0
    foreign: int = 0
    unreadable: int = 0
    unfinished: int = 0
    unlistable: list[Path] = field(default_factory=list)
    unjudged: str | None = None
    aside: Path | None = None


def index_run(run: Run) -> None:
    """Index a judged run. Errors are logged and harmless: ``reindex`` repairs the index."""
    store = Store(at_most=_AT_MOST)
    try:
        store.add([record_of(run)])
    except Outdated:
        pass  # the next command that looks at results fills the store again, and finds this run by its name
    except (HidlError, OSError) as error:
        logging.getLogger("hidl").warning(
            "warning: run %s is complete, but not among the results yet: %s\nnext: hidl results reindex", run.id, error
        )


def update(store: Store, root: Path | None = None, *, judge: Judge, tell: Progress = _nobody) -> Indexed:
    """Index the directories under ``root`` (None: this user's runs) whose names the store does not know.

    This user's runs that ended unattended are judged by ``judge``. Nothing is removed; ``reindex`` does that.
    """
    indexed = Indexed()
    place = (root or paths.runs()).resolve()
    try:
        known = store.known(str(place), _READS)
        indexed.foreign = sum(1 for outcome in known.values() if outcome == "foreign")
    except Outdated:
        return reindex(store, judge=judge, tell=tell)
    names = _names(place, indexed, expected=bool(known))
    new = sorted(names - set(known))
    _judge(place, new, indexed, judge)
    _index(store, place, new, indexed, tell)
    return indexed


def reindex(store: Store, roots: Sequence[Path] = (), *, judge: Judge, tell: Progress = _nobody) -> Indexed:
    """Read all directories again, and remove those that are gone from the index.

    ``roots``: the directories that hold them; empty: this user's and all that the store knows. A root that does not
    exist is emptied only if named, because its file system may not be mounted. An unusable file in the store's place is
    renamed. Readers see every indexed run at any time.
    """
    indexed = Indexed(aside=store.database.put_aside())
    named = [root.resolve() for root in roots]
    places = list(named)
    try:
        store.roots()
    except Outdated:
        store.renew()
        named = []
    if not named:
        places += [paths.runs().resolve(), *map(Path, store.roots())]
    for place in dict.fromkeys(places):
        known = set(store.known(str(place)))
        names = _names(place, indexed, expected=bool(known))
        gone = known - names
        if place in named and not place.exists():
            store.drop_root(str(place))
        elif place not in indexed.unlistable:
            store.drop(str(place), gone)
        else:
            continue
        indexed.gone += len(gone)
        found = sorted(names)
        _judge(place, found, indexed, judge)
        _index(store, place, found, indexed, tell)
    store.purge()
    return indexed


def _names(root: Path, indexed: Indexed, *, expected: bool) -> set[str]:
    """Return the names of the run directories under ``root`` without opening them.

    ``expected``: some are known, so a missing ``root`` is reported.
    """
    try:
        with os.scandir(root) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()}
    except FileNotFoundError:
        if expected:
            indexed.unlistable.append(root)
    except OSError:
        indexed.unlistable.append(root)
    return set()


def _index(store: Store, root: Path, names: Sequence[str], indexed: Indexed, tell: Progress) -> None:
    """Index these directories, and note which of them have no results."""
    without: dict[str, list[str]] = {"foreign": [], "ended": []}
    indexed.added += store.add(_records(root, names, without, indexed, tell))
    for outcome, found in without.items():
        store.note(str(root), found, outcome, _READS)
    indexed.foreign += len(without["foreign"])


def _records(
    root: Path, names: Sequence[str], without: dict[str, list[str]], indexed: Indexed, tell: Progress
) -> Iterator[Record]:
    for number, name in enumerate(names, start=1):
        run = Run(root / name)
        try:
            if run.document("verdict") is not None:
                yield record_of(run)
            elif not (root / name / "plan.json").is_file():
                continue
            elif plan_of(run) and run.status().state.is_final:
                without["ended"].append(name)
            else:
                indexed.unfinished += 1
        except HidlError as error:
            if isinstance(error.__cause__, OSError):  # maybe it can be read later: what is known of it stays
                indexed.unreadable += 1
            else:
                without["foreign"].append(name)
        tell(number, len(names))


def _judge(root: Path, names: Sequence[str], indexed: Indexed, judge: Judge) -> None:
    """Judge this user's runs that ended unattended."""
    if root != paths.runs().resolve():
        return
    runs = [Run(root / name) for name in names if not (root / name / "verdict.json").exists()]
    waiting = [run for run in runs if _may_end_well(run)]
    try:
        judge(waiting)
    except HidlError as error:
        indexed.unjudged = error.message


def _may_end_well(run: Run) -> bool:
    """Has the job recorded no other end?"""
    try:
        state = run.status().state
        return (not state.is_final or state is State.COMPLETED) and bool(plan_of(run))
    except HidlError:
        return False

"""Update the store from run directories."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hidl_cli import __version__, paths
from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import SCHEMA, plan_of
from hidl_cli.record.run import Run, State, Status
from hidl_cli.store.extract import RunRecord, record_of
from hidl_cli.store.sqlite import Outdated
from hidl_cli.store.store import Store

#: Called with how many directories of how many have been read.
Progress = Callable[[int, int], None]

#: Judges runs that may have ended while nobody followed them, and returns how they are; ``HidlError`` if a scheduler
#: does not answer.
Judge = Callable[[Sequence[Run]], Sequence[Status]]

#: What plans this hidl reads: others are looked at again by another one.
_READS = f"{SCHEMA} {__version__}"

#: Seconds that a run which just ended waits for other writers.
_AT_MOST = 10.0

#: For how many seconds a run that ended without results may come back: a job that seemed lost, or was put back into the
#: queue.
_MAY_COME_BACK = 7 * 86400.0


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
    back = {name for name, seen in store.noted(str(place), "ended").items() if _is_back(place / name, seen)}
    new = sorted(names - (set(known) - back))
    _index(store, place, _judge(place, new, indexed, judge), indexed, tell)
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
        _index(store, place, _judge(place, sorted(names), indexed, judge), indexed, tell)
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


def _index(store: Store, root: Path, found: Mapping[str, Status | None], indexed: Indexed, tell: Progress) -> None:
    """Index these directories, and note which of them have no results; ``found``: how each is, None if not asked."""
    without: dict[str, dict[str, str]] = {"foreign": {}, "ended": {}}
    indexed.added += store.add(_records(root, found, without, indexed, tell))
    for outcome, names in without.items():
        store.note(str(root), names, outcome)
    indexed.foreign += len(without["foreign"])


def _records(
    root: Path,
    found: Mapping[str, Status | None],
    without: dict[str, dict[str, str]],
    indexed: Indexed,
    tell: Progress,
) -> Iterator[RunRecord]:
    for number, (name, status) in enumerate(found.items(), start=1):
        run = Run(root / name)
        try:
            if run.document("verdict") is not None:
                yield record_of(run)
            elif not (root / name / "plan.json").is_file():
                continue
            elif plan_of(run) and (status or run.status()).state.is_final:
                without["ended"][name] = _status_time(run.directory)
            else:
                indexed.unfinished += 1
        except HidlError as error:
            if isinstance(error.__cause__, OSError):  # maybe it can be read later: what is known of it stays
                indexed.unreadable += 1
            else:
                without["foreign"][name] = _READS
        tell(number, len(found))


def _judge(root: Path, names: Sequence[str], indexed: Indexed, judge: Judge) -> dict[str, Status | None]:
    """Judge this user's runs that ended unattended; return all names with how these runs are (None: not asked)."""
    found: dict[str, Status | None] = dict.fromkeys(names)
    if root != paths.runs().resolve():
        return found
    runs = [Run(root / name) for name in names if not (root / name / "verdict.json").exists()]
    waiting = [run for run in runs if _may_have_results(run)]
    try:
        return found | {run.id: status for run, status in zip(waiting, judge(waiting), strict=True)}
    except HidlError as error:
        indexed.unjudged = error.message
        return found | {run.id: Status(State.PENDING) for run in waiting}


def _may_have_results(run: Run) -> bool:
    """Return False if the run failed for certain; a study that reached its time limit may have complete repetitions.

    What a job wrote of its end may be its first attempt's.
    """
    try:
        status = run.status()
        return (not status.is_settled or status.state in (State.COMPLETED, State.TIMEOUT)) and bool(plan_of(run))
    except HidlError:
        return False


def _status_time(directory: Path) -> str:
    """Return when the status was last written, in nanoseconds since the epoch; empty if it was not."""
    try:
        return str((directory / "status.json").stat().st_mtime_ns)
    except OSError:
        return ""


def _is_back(directory: Path, seen: str) -> bool:
    """Whether a job that had ended has written its status since."""
    recent = seen.isdecimal() and time.time() - int(seen) / 1e9 < _MAY_COME_BACK
    return recent and _status_time(directory) != seen

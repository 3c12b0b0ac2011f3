"""Index run directories in the store."""

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
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers.decision import read_status
from hidl_cli.store.extract import RunWithSamples, record_of
from hidl_cli.store.sqlite import OutdatedStore
from hidl_cli.store.store import Store

#: Called with the number of directories read so far, and the total.
Progress = Callable[[int, int], None]

#: A function that receives runs that may have ended while no command was following them, writes the verdicts of those
#: that have ended, and returns all statuses. It raises ``HidlError`` if a scheduler does not respond.
Judge = Callable[[Sequence[Run]], Sequence[Status]]

#: The plan schema that this version of hidl reads. Directories that it cannot read are skipped from then on, but tried
#: again by other versions of hidl.
_READS = f"{SCHEMA} {__version__}"

#: Maximum time in seconds to wait for other writers at the end of a run.
_AT_MOST = 10.0

#: Seconds within which a run that ended without results may become active again, because its job was requeued or only
#: seemed lost.
_REVIVAL_SECONDS = 7 * 86400.0


@dataclass
class Indexed:
    """The result of indexing.

    Attributes:
        added: Number of added runs.
        gone: Number of indexed directories that no longer exist.
        foreign: Number of directories written by another version of hidl.
        unreadable: Number of directories that cannot be read at the moment.
        unfinished: Number of runs that are active or have no verdict yet.
        unlistable: Roots that cannot be listed.
        unjudged: Reason why ended runs have no verdict, such as an unresponsive scheduler or a full disk.
        aside: New name of an unusable file that was found in place of the store.
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
    """Index a run that has a verdict. Errors are only logged, because ``reindex`` can repair the index."""
    store = Store(at_most=_AT_MOST)
    try:
        store.add([record_of(run)])
    except OutdatedStore:
        pass  # the next command that reads results will fill the store again
    except (HidlError, OSError) as error:
        logging.getLogger("hidl").warning(
            "warning: run %s is complete but not yet indexed: %s\nnext: hidl results reindex", run.id, error
        )


def update(store: Store, root: Path | None = None, *, judge: Judge, on_progress: Progress | None = None) -> Indexed:
    """Index new directories under ``root`` (default: this user's runs) without removing any records.

    First, ``judge`` writes the missing verdicts of this user's runs. ``on_progress`` reports the progress.
    """
    indexed = Indexed()
    place = (root or paths.runs()).resolve()
    try:
        known = store.known(str(place), _READS)
        indexed.foreign = sum(1 for outcome in known.values() if outcome == "foreign")
    except OutdatedStore:
        return reindex(store, judge=judge, on_progress=on_progress)
    names = _names(place, indexed, expected=bool(known))
    revived = {name for name, seen in store.noted(str(place), "ended").items() if _is_revived(place / name, seen)}
    new = sorted(names - (set(known) - revived))
    _index(store, place, _judge(place, new, indexed, judge), indexed, on_progress)
    return indexed


def reindex(store: Store, roots: Sequence[Path] = (), *, judge: Judge, on_progress: Progress | None = None) -> Indexed:
    """Index all directories again, and remove missing ones from the index, without affecting concurrent readers.

    An unusable file in place of the store is renamed.

    Args:
        store: The store.
        roots: Parents of run directories. If empty, this user's runs and all known roots are indexed. A missing root is
            removed from the index only if it is given here, because its file system may just not be mounted.
        judge: Function that writes the missing verdicts of this user's runs.
        on_progress: Called with the number of directories read so far, and the total.
    """
    indexed = Indexed(aside=store.database.put_aside())
    named = [root.resolve() for root in roots]
    places = list(named)
    try:
        store.roots()
    except OutdatedStore:
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
        _index(store, place, _judge(place, sorted(names), indexed, judge), indexed, on_progress)
    store.purge()
    return indexed


def _names(root: Path, indexed: Indexed, *, expected: bool) -> set[str]:
    """List the run directories under ``root``. A missing ``root`` is only reported if runs are ``expected`` there."""
    try:
        with os.scandir(root) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()}
    except FileNotFoundError:
        if expected:
            indexed.unlistable.append(root)
    except OSError:
        indexed.unlistable.append(root)
    return set()


def _index(
    store: Store, root: Path, found: Mapping[str, Status | None], indexed: Indexed, on_progress: Progress | None
) -> None:
    """Index run directories, and record those without results.

    ``found`` maps the names of the directories to the status of their runs, which is None if unknown.
    """
    without: dict[str, dict[str, str]] = {"foreign": {}, "ended": {}}
    indexed.added += store.add(_records(root, found, without, indexed, on_progress))
    for outcome, names in without.items():
        store.note(str(root), names, outcome)
    indexed.foreign += len(without["foreign"])


def _records(
    root: Path,
    found: Mapping[str, Status | None],
    without: dict[str, dict[str, str]],
    indexed: Indexed,
    on_progress: Progress | None,
) -> Iterator[RunWithSamples]:
    for number, (name, status) in enumerate(found.items(), start=1):
        run = Run(root / name)
        try:
            if run.document("verdict") is not None:
                yield record_of(run)
            elif not (root / name / "plan.json").is_file():
                continue
            elif plan_of(run) and (status or read_status(run)).state.is_final:
                without["ended"][name] = _status_time(run.directory)
            else:
                indexed.unfinished += 1
        except HidlError as error:
            if isinstance(error.__cause__, OSError):  # may be readable later, so its records are kept
                indexed.unreadable += 1
            else:
                without["foreign"][name] = _READS
        if on_progress is not None:
            on_progress(number, len(found))


def _judge(root: Path, names: Sequence[str], indexed: Indexed, judge: Judge) -> dict[str, Status | None]:
    """Write the missing verdicts of this user's runs, and return the status of each run (None if unknown)."""
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
    """Return whether the run may have results, which is False only if it has certainly failed.

    A study that reached its time limit may have complete repetitions, and an unsettled status may come from a requeued
    job's first attempt.
    """
    try:
        status = read_status(run)
        return (not status.is_settled or status.state in (State.COMPLETED, State.TIMEOUT)) and bool(plan_of(run))
    except HidlError:
        return False


def _status_time(directory: Path) -> str:
    """Return the modification time of the status in nanoseconds since the epoch (empty if there is no status)."""
    try:
        return str((directory / "status.json").stat().st_mtime_ns)
    except OSError:
        return ""


def _is_revived(directory: Path, seen: str) -> bool:
    """Return whether a job that seemed to have ended has written its status again since the time ``seen``."""
    recent = seen.isdecimal() and time.time() - int(seen) / 1e9 < _REVIVAL_SECONDS
    return recent and _status_time(directory) != seen

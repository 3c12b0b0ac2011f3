"""Run profiles for the report page: who sent what to whom, what each rank did, and the lost efficiency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hidl_cli.errors import HidlError
from hidl_cli.profile import CAUSES, describe_slow, find_step, present_losses, read_profile, step_document
from hidl_cli.report.model import LoadedRun, RankTimes, ReportedLoss, ReportedProfile, ReportedWaterfall

MOST_CELLS = 32  # more cells would be too small
MOST_RANKS = 64  # if there are more ranks, only the slowest and the fastest are shown


def profile_of(group: Sequence[LoadedRun], *, name: str, where: str) -> Iterator[ReportedProfile]:
    """Yield the profile of the newest profiled run in a group, if there is one."""
    for loaded in reversed(group):
        if loaded.plan.profile is None or not loaded.status.state.is_final:
            continue
        with suppress(HidlError):  # nothing was recorded
            document = read_profile(loaded.run, loaded.plan)
            step = find_step(loaded.run, document, None)
            yield _profile(loaded, document, {**step, **step_document(loaded.run, loaded.plan, step)}, name, where)
            return


def _profile(
    loaded: LoadedRun, document: Mapping[str, Any], step: Mapping[str, Any], name: str, where: str
) -> ReportedProfile:
    names, sent = _folded(step["matrix"])
    return ReportedProfile(
        name=name,
        where=where,
        run=loaded.run.id,
        created=loaded.plan.created,
        ranks=step["ranks"],
        mpi_share=step["mpi_share"],
        waiting_share=step["waiting_share"],
        waiting=step["waiting"],
        slow=tuple(describe_slow(step)),
        times=tuple(_times(step["by_rank"])),
        names=names,
        sent=sent,
        falls=tuple(
            ReportedWaterfall(
                fall["n"],
                fall["efficiency"],
                tuple(
                    ReportedLoss(CAUSES[loss["cause"]], loss["value"], *(loss["interval"] or (None, None)))
                    for loss in present_losses(fall)
                ),
            )
            for fall in document["waterfalls"]
        ),
    )


def _folded(matrix: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Sum the channels of a matrix in at most ``MOST_CELLS`` groups of ranks; return their first ranks and the sums."""
    import numpy as np

    whole = np.sum([np.array(each, dtype=np.int64) for each in matrix["bytes"].values()], axis=0)
    width = -(-len(whole) // MOST_CELLS)
    starts = np.arange(0, len(whole), width)
    sums = np.add.reduceat(np.add.reduceat(whole, starts, axis=0), starts, axis=1)
    names = tuple((starts * matrix["ranks_per_cell"]).tolist())
    return names, tuple(tuple(row) for row in sums.tolist())


def _times(ranks: Sequence[Mapping[str, Any]]) -> Iterator[RankTimes]:
    found = []
    for each in ranks:
        wall = each["wall_seconds"] or 1.0
        mpi = min(each["mpi_seconds"] / wall, 1.0)
        waiting = min(each["waiting_seconds"] / wall, mpi)
        found.append(RankTimes(each["rank"], each["host"], 1 - mpi, waiting, mpi - waiting))
    if len(found) > MOST_RANKS:
        slowest = sorted(found, key=lambda each: -each.outside)
        found = slowest[: MOST_RANKS // 2] + slowest[-MOST_RANKS // 2 :]
    yield from found

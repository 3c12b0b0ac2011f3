"""Which nodes are slow: what each host yielded, held against the median of all hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from hidl_cli.report.loaded import Loaded
from hidl_cli.report.model import HeatMap, HeatRow
from hidl_cli.report.text import minute

MOST_COLUMNS = 12
LATELY = 3  # columns: one bad night condemns no node, and an old one does not redeem it
SLOW = 0.05  # a smaller difference is no reason to call somebody
_SIGMAS = 3.0
_SIGMA_OF_MAD = 1.4826  # of normal noise: Rousseeuw & Croux 1993, J. Am. Stat. Assoc. 88, 1273
_FEWEST_TO_JUDGE = 3

Columns = dict[str, dict[str, float]]


def heat_map(runs: Sequence[Loaded], metric: str, better: str, *, name: str, where: str) -> HeatMap | None:
    """The map of one metric over runs of one kind; None where it was not measured on two hosts.

    A run that measured several hosts is a column of its own. Runs that measured one host each are pooled: the usual
    of that host. The last ``MOST_COLUMNS`` columns are shown.
    """
    columns = _columns(runs, metric)
    hosts = sorted({host for values in columns.values() for host in values}, key=_natural)
    if len(hosts) < 2:
        return None
    shown = dict(list(columns.items())[-MOST_COLUMNS:])
    relative = [_relative(values, better) for values in shown.values()]
    rows = [(host, tuple(column.get(host) for column in relative)) for host in hosts]
    lately = {host: median(cells) for host, row in rows if (cells := [c for c in row if c is not None][-LATELY:])}
    slow = slow_hosts(lately)
    return HeatMap(
        name=name,
        where=where,
        metric=metric,
        columns=tuple(shown),
        rows=tuple(HeatRow(host, cells, lately[host], host in slow) for host, cells in rows if host in lately),
    )


def slow_hosts(lately: Mapping[str, float]) -> set[str]:
    """The hosts that lie below the median by more than 5 %, and by more than three robust standard deviations."""
    if len(lately) < _FEWEST_TO_JUDGE:
        return set()
    middle = median(lately.values())
    spread = _SIGMA_OF_MAD * median(abs(value - middle) for value in lately.values())
    border = middle - max(SLOW, _SIGMAS * spread)
    return {host for host, value in lately.items() if value < border}


def _columns(runs: Sequence[Loaded], metric: str) -> Columns:
    columns: Columns = {}
    alone: dict[str, list[float]] = {}
    alone_runs = 0
    for run in runs:
        of_run: dict[str, list[float]] = {}
        for host, value in _by_host(run, metric):
            of_run.setdefault(host, []).append(value)
        if len(of_run) > 1:
            columns[minute(run.plan.created)] = {host: median(values) for host, values in of_run.items()}
        elif of_run:
            alone_runs += 1
            for host, values in of_run.items():
                alone.setdefault(host, []).append(median(values))
    if len(alone) > 1:
        usual = {host: median(values) for host, values in alone.items()}
        columns = {f"{alone_runs} runs on one node": usual, **columns}
    return columns


def _by_host(run: Loaded, metric: str) -> Iterator[tuple[str, float]]:
    """What single hosts yielded in a run: ranks that have a sample each, or a step that ran on one host."""
    for step, hosts in zip(run.steps, run.worlds, strict=True):
        found = step["metrics"].get(metric)
        if found is None or not hosts:
            continue
        ranks = found.get("ranks")
        if ranks is not None and max(ranks, default=0) < len(hosts):
            yield from ((hosts[rank], float(v)) for rank, v in zip(ranks, found["samples"], strict=True))
        elif len(set(hosts)) == 1 and step.get(run.plan.unit) == min(s.size for s in run.plan.steps):
            yield hosts[0], float(found["value"])


def _relative(values: Mapping[str, float], better: str) -> dict[str, float]:
    """By how much each host is better than the median (0.05: 5 %)."""
    middle = median(values.values())
    if better == "lower":
        return {host: middle / value - 1 for host, value in values.items() if value}
    return {host: value / middle - 1 for host, value in values.items()} if middle else {}


def _natural(host: str) -> tuple[object, ...]:
    import re

    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", host))


def all_maps(groups: Iterable[tuple[str, str, Sequence[Loaded]]]) -> tuple[HeatMap, ...]:
    """The maps of every (name, place, runs of one kind), for each metric that knows which direction is better."""
    maps = []
    for name, where, runs in groups:
        for metric, promised in runs[-1].plan.workload.metrics.items():
            if promised.better is None:
                continue
            found = heat_map(runs, metric, promised.better, name=name, where=where)
            if found is not None:
                maps.append(found)
    return tuple(maps)

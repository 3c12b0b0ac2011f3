"""Slow nodes: each host's values compared with the median of all hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from statistics import median

from hidl_cli.analysis.nodes.pairs import natural
from hidl_cli.analysis.nodes.slow_nodes import nodes
from hidl_cli.report.loaded import Loaded
from hidl_cli.report.model import HeatMap, HeatRow
from hidl_cli.report.text import minute
from hidl_workloads.repetitions import rounding

MOST_COLUMNS = 12
LATELY = 3  # columns: one bad night condemns no node, and an old one does not redeem it

Columns = dict[str, dict[str, float]]


def heat_map(runs: Sequence[Loaded], metric: str, better: str, *, name: str, where: str) -> HeatMap | None:
    """The map of one metric over runs of one kind; None where it was not measured on two hosts.

    A run that measured several hosts is a column of its own. Runs that measured one host each are pooled: the usual
    of that host. The last ``MOST_COLUMNS`` columns are shown.
    """
    columns = _columns(runs, metric)
    hosts = sorted({host for values in columns.values() for host in values}, key=natural)
    if len(hosts) < 2:
        return None
    shown = {column: _rates(values, better) for column, values in list(columns.items())[-MOST_COLUMNS:]}
    relative = [_relative(rates) for rates in shown.values()]
    printed = [value for column in list(shown)[-LATELY:] for value in columns[column].values() if value > 0]
    slow = slow_hosts(list(shown.values())[-LATELY:], digits=rounding(printed) if printed else None)
    rows = []
    for host in hosts:
        cells = tuple(column.get(host) for column in relative)
        measured = [cell for cell in cells if cell is not None]
        if measured:
            rows.append(HeatRow(host, cells, median(measured[-LATELY:]), host in slow))
    return HeatMap(name, where, metric, tuple(shown), tuple(rows))


def slow_hosts(rounds: Sequence[Mapping[str, float]], *, digits: float | None = None) -> set[str]:
    """Return the hosts whose rates are slow over these rounds, by the rule of the verdict on copies.

    ``digits``: see ``nodes``.
    """
    return {node.host for node in nodes(dict(enumerate(rounds)), digits=digits) if node.slow}


def _columns(runs: Sequence[Loaded], metric: str) -> Columns:
    columns: Columns = {}
    alone: dict[str, list[float]] = {}
    alone_runs = 0
    for run in runs:
        of_run: dict[str, list[float]] = {}
        for host, value in _by_host(run, metric):
            of_run.setdefault(host, []).append(value)
        if len(of_run) > 1:
            columns[_unused(minute(run.plan.created), columns)] = {
                host: median(values) for host, values in of_run.items()
            }
        elif of_run:
            alone_runs += 1
            for host, values in of_run.items():
                alone.setdefault(host, []).append(median(values))
    if len(alone) > 1:
        usual = {host: median(values) for host, values in alone.items()}
        columns = {f"{alone_runs} runs on one node": usual, **columns}
    return columns


def _unused(name: str, columns: Columns) -> str:
    """Return the name of a further column: several runs may have been planned in the same minute."""
    numbered = (f"{name} ({number})" for number in count(2))
    return next(each for each in chain([name], numbered) if each not in columns)


def _by_host(run: Loaded, metric: str) -> Iterator[tuple[str, float]]:
    """What single hosts yielded in a run: copies, ranks that have a sample each, or a step that ran on one host."""
    study = run.study
    copies = [each for each in study.observations if each.kind == "copy"] if study and study.metric == metric else []
    if copies:
        yield from ((copy.hosts[0], copy.value) for copy in copies)
        return
    smallest = min(step.size for step in run.plan.steps)
    for step, hosts in zip(run.steps, run.worlds, strict=True):
        found = step["metrics"].get(metric)
        if found is None or not hosts:
            continue
        ranks = found.get("ranks")
        measured: list[tuple[str, object]] = []
        if ranks is not None and max(ranks, default=0) < len(hosts):
            measured = [(hosts[rank], sample) for rank, sample in zip(ranks, found["samples"], strict=True)]
        elif len(set(hosts)) == 1 and step.get(run.plan.unit) == smallest:
            measured = [(hosts[0], found["value"])]
        yield from ((host, float(value)) for host, value in measured if isinstance(value, (int, float)))


def _rates(values: Mapping[str, float], better: str) -> dict[str, float]:
    """The values as rates: the higher, the better."""
    positive = {host: value for host, value in values.items() if value > 0}
    return {host: 1 / value for host, value in positive.items()} if better == "lower" else positive


def _relative(rates: Mapping[str, float]) -> dict[str, float]:
    """By how much each host is better than the median (0.05: 5 %)."""
    middle = median(rates.values()) if rates else 1.0
    return {host: rate / middle - 1 for host, rate in rates.items()}


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

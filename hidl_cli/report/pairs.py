"""What was measured between every two nodes, as maps: of the newest run of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hidl_cli.report.loaded import Loaded
from hidl_cli.report.model import PairMap
from hidl_cli.results.pairs_table import relative
from hidl_cli.results.pairs_verdict import exclude, fields_of, told

MOST_NODES = 64  # of more, no cell of a map could be read


def pair_map(group: Sequence[Loaded], *, name: str, where: str) -> Iterator[PairMap]:
    """One map for each metric that belongs to pairs of nodes."""
    for run in reversed(group):
        fields = fields_of(run.plan.workload.metrics, run.steps)
        for each in fields:
            rates = relative(each)
            names = each.names if len(each.names) <= MOST_NODES else ()
            yield PairMap(
                name=name,
                where=where,
                run=run.run.id,
                created=run.plan.created,
                metric=each.metric,
                unit=each.unit,
                usual=median(each.values.values()),
                names=names,
                cells=tuple(tuple(rates[a, b] - 1 if (a, b) in rates else None for b in names) for a in names),
                slow=tuple(told([each])),
                exclude=exclude([each]),
            )
        if fields:
            return

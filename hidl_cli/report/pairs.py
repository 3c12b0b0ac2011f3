"""Maps of metrics measured between every two nodes, of the newest run of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hidl_cli.analysis.nodes.pairs import relative_rates
from hidl_cli.analysis.nodes.verdict import describe_slow, fields_of, slow_host_list
from hidl_cli.report.loaded import Loaded
from hidl_cli.report.model import PairMap

MOST_NODES = 64  # of more, no cell of a map could be read


def pair_map(group: Sequence[Loaded], *, name: str, where: str) -> Iterator[PairMap]:
    """Yield one map for each metric of pairs of nodes."""
    for run in reversed(group):
        fields = fields_of(run.plan.workload.metrics, run.steps)
        for each in fields:
            rates = relative_rates(each)
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
                slow=tuple(describe_slow([each])),
                exclude=slow_host_list([each]),
            )
        if fields:
            return

"""Judged runs as plain data, from the store alone; the directories may be gone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hidl_cli.store.extract import StoredRun
from hidl_cli.store.filters import Filters
from hidl_cli.store.store import Store


def result_document(store: Store, run: StoredRun, *, metric: str | None = None) -> dict[str, Any]:
    """Return a run with its verdict and steps; with only one metric if named.

    ``parameters`` of a step are those of the matrix. A metric has a value and a unit, and ``ranks`` if there is a value
    for each rank.
    """
    steps: dict[tuple[str, int, tuple[str, ...]], dict[str, Any]] = {}
    for sample in store.samples(Filters(run=run.run, metric=metric)):
        key = (sample.series, sample.repetition, sample.hosts)
        step = steps.setdefault(
            key,
            {
                "series": sample.series,
                "nodes": sample.nodes,
                "ranks": sample.ranks,
                "parameters": dict(sample.point),
                "repetition": sample.repetition,
                "hosts": list(sample.hosts),
                "metrics": {},
            },
        )
        found = step["metrics"].setdefault(sample.metric, {"value": sample.value, "unit": sample.unit})
        if sample.rank is not None:
            found.setdefault("ranks", []).append(sample.value)
    document = asdict(run)
    verdict = {"verdict": document.pop("verdict"), "reason": document.pop("reason")}
    return {**document, "metric": metric or run.metric, "verdict": verdict, "steps": list(steps.values())}

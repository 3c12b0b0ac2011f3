"""What a program yielded: read from the file that its rank 0 wrote, and held against what the workload promises."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from hidl_cli.documents import read_json
from hidl_cli.errors import MetricMissing
from hidl_cli.runs.workload import Metric

SCHEMA = "hidl.metrics/1"
_ALWAYS = ("value", "unit", "samples")
_KEYS = ("sizes", "ranks", "pairs")  # what the samples may belong to


def read_metrics(path: Path, promised: Mapping[str, Metric], *, ranks: int) -> dict[str, dict[str, Any]]:
    """Return the metrics by name: ``{"value", "unit", "samples"}``; numbers or, for checksums, text. Where samples
    belong to message sizes, ranks or pairs of nodes, ``sizes``, ``ranks`` or ``pairs`` says which.

    Raises ``MetricMissing`` where the file is not there or no such document, was written by a world of another size,
    or lacks a promised metric; where a value is not finite, has another unit, or is not one per rank where it must be.
    """
    try:
        document = read_json(path)
    except FileNotFoundError:
        if not any(metric.required for metric in promised.values()):
            return {}
        raise MetricMissing(
            f"the program ended well but wrote no metrics to {path}",
            hint="rank 0 must write the file named by $HIDL_METRICS; see docs/reference/metrics.md",
        ) from None
    except (OSError, ValueError) as error:
        raise MetricMissing(f"the metrics in {path} cannot be read: {error}") from error
    metrics = _by_name(document, path)
    size = document.get("world", {}).get("size") if isinstance(document.get("world"), dict) else None
    if size != ranks:
        raise MetricMissing(f"the metrics in {path} are those of {size} rank(s), not of {ranks}")
    return hold(metrics, promised, ranks=ranks, source=path)


def hold(
    metrics: dict[str, dict[str, Any]], promised: Mapping[str, Metric], *, ranks: int, source: Path
) -> dict[str, dict[str, Any]]:
    """Return ``metrics``, read from ``source``, where they are what is promised; else raise ``MetricMissing``."""
    for name, metric in promised.items():
        if name in metrics:
            _check(name, metrics[name], metric, ranks, source)
        elif metric.required:
            found = ", ".join(metrics) or "none"
            raise MetricMissing(f"metric {name} is not in {source}", hint=f"it holds: {found}")
    return metrics


def unequal(metrics: Mapping[str, dict[str, Any]], promised: Mapping[str, Metric]) -> str | None:
    """The sentence that says which metric differs between ranks though it must not; None where none does."""
    for name, metric in promised.items():
        if metric.equal_on_all_ranks and name in metrics and len(set(metrics[name]["samples"])) > 1:
            samples = metrics[name]["samples"]
            other = next(rank for rank, sample in enumerate(samples) if sample != samples[0])
            return (
                f"{name} differs between ranks (rank 0: {str(samples[0])[:12]}..., rank {other}: "
                f"{str(samples[other])[:12]}...): the ranks do not have one result"
            )
    return None


def _by_name(document: Any, path: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise MetricMissing(f"{path} is no document of schema {SCHEMA}")
    metrics = document.get("metrics")
    keys = {"name", *_ALWAYS}
    if not isinstance(metrics, list) or not all(isinstance(m, dict) and keys <= m.keys() for m in metrics):
        raise MetricMissing(f"{path}: `metrics` is no list of objects with name, value, unit and samples")
    for metric in metrics:
        _check_keys(metric, path)
    return {metric["name"]: {key: metric[key] for key in (*_ALWAYS, *_KEYS) if key in metric} for metric in metrics}


def _check_keys(metric: Mapping[str, Any], path: Path) -> None:
    """``sizes`` and ``ranks`` are whole numbers, ``pairs`` two different names: one for each sample, each once."""
    for key in _KEYS:
        if key not in metric:
            continue
        numbers, samples = metric[key], metric["samples"]
        what = "pair of names" if key == "pairs" else "whole number"
        fits = isinstance(numbers, list) and all((_is_pair if key == "pairs" else _is_whole)(each) for each in numbers)
        if not fits or not isinstance(samples, list) or not _count_of(numbers) == len(numbers) == len(samples):
            raise MetricMissing(f"metric {metric['name']} in {path}: `{key}` is not one {what} for each sample")


def _is_whole(number: object) -> bool:
    return type(number) is int and number >= 0


def _is_pair(pair: object) -> bool:
    return (
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair) and pair[0] != pair[1]
    )


def _count_of(numbers: list[Any]) -> int:
    """How many different ones there are; a pair is the same in either order."""
    return len({tuple(sorted(each)) if isinstance(each, list) else each for each in numbers})


def _check(name: str, found: Mapping[str, Any], promised: Metric, ranks: int, path: Path) -> None:
    if found["unit"] != promised.unit:
        raise MetricMissing(f"metric {name} in {path} has the unit {found['unit']!r}, not {promised.unit!r}")
    samples = found["samples"]
    if not isinstance(samples, list):
        raise MetricMissing(f"metric {name} in {path}: `samples` is no list")
    if promised.equal_on_all_ranks:
        if len(samples) != ranks or not all(isinstance(sample, (str, int, float)) for sample in samples):
            raise MetricMissing(
                f"metric {name} in {path} has {len(samples)} sample(s), not one for each of {ranks} rank(s)"
            )
        return
    for value in (found["value"], *samples):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise MetricMissing(f"metric {name} in {path} is {value!r}: not a finite number")

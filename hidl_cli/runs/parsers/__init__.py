"""Output parsers for third-party programs, registered in ``hidl_cli.plan.workload.PARSERS``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hidl_cli.errors import HidlError, MetricMissing
from hidl_cli.plan.workload import PARSERS

_KEYS = {"value", "unit", "samples"}


def parse(parser: str, path: Path) -> dict[str, dict[str, Any]]:
    """Parse the program output in ``path``, and return the metrics in the same form as ``read_metrics``.

    Raises ``MetricMissing`` if the file is missing, or if the parser fails or finds nothing, and
    ``MissingPrecondition`` if the parser is a plug-in that cannot be loaded.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise MetricMissing(f"cannot read the output of the program: {error}") from error
    read = PARSERS.get(parser)
    try:
        metrics = read(text)
    except MetricMissing as error:
        raise MetricMissing(f"{path}: {error.message}", hint=error.hint) from None
    except HidlError:
        raise
    except Exception as error:  # a plug-in may raise anything
        raise MetricMissing(f"{path}: parser {parser} failed: {type(error).__name__}: {error}") from error
    if not _are_metrics(metrics):
        raise MetricMissing(f"{path}: parser {parser} must return a dict of metrics, each with value, unit and samples")
    return metrics


def _are_metrics(found: object) -> bool:
    return isinstance(found, dict) and all(isinstance(one, dict) and one.keys() >= _KEYS for one in found.values())

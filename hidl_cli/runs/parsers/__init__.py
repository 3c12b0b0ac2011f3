"""Readers of what programs of others print: one module each, with ``parse(text)`` that returns their metrics."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from hidl_cli.errors import MetricMissing
from hidl_cli.runs.workload import Parser


def parse(parser: Parser, path: Path) -> dict[str, dict[str, Any]]:
    """Return the metrics by name in what a program printed to ``path``, as ``read_metrics`` does.

    Raises ``MetricMissing`` where the file is not there, or holds nothing that the parser knows.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise MetricMissing(f"what the program printed cannot be read: {error}") from error
    try:
        metrics: dict[str, dict[str, Any]] = import_module(f"{__name__}.{parser.replace('-', '_')}").parse(text)
    except MetricMissing as error:
        raise MetricMissing(f"{path}: {error.message}", hint=error.hint) from None
    return metrics

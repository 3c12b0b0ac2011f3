"""Readers of what programs of others print: a workload names one (``parser: omb``) where its program writes no
metrics document of its own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

#: From a program's whole standard output to its metrics, in the shape of ``read_metrics``; raises ``MetricMissing``.
Parse = Callable[[str], dict[str, dict[str, Any]]]

_MODULES = {"omb": "hidl_cli.runs.parsers.omb"}
NAMES = tuple(_MODULES)


def parser(name: str) -> Parse:
    """The parser of that name; raises ``KeyError`` where there is none."""
    parse: Parse = import_module(_MODULES[name]).parse
    return parse

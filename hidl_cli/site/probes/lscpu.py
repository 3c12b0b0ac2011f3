"""What ``lscpu`` prints of a processor: lines of a key and its value, or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

JSON = ("lscpu", "--json")
MODEL = "Model name"
_LINE = re.compile(r"^[ \t]*([A-Za-z][^:\n]{0,60}):[ \t]*(\S.*)$", re.MULTILINE)


def fields(text: str) -> Mapping[str, str]:
    """The values by their keys, of a key that stands there twice the first; a value of ``-`` is none."""
    pairs = _json(text) if text.lstrip().startswith("{") else ((each[1], each[2]) for each in _LINE.finditer(text))
    found: dict[str, str] = {}
    for key, value in pairs:
        if value.strip() not in ("", "-"):
            found.setdefault(key.strip(), value.strip())
    return found


def _json(text: str) -> Iterator[tuple[str, str]]:
    """The fields of a list, which newer versions nest."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    waiting: list[Any] = [document.get("lscpu")] if isinstance(document, dict) else []
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += reversed(part)
        elif isinstance(part, dict):
            if isinstance(part.get("field"), str) and isinstance(part.get("data"), str):
                yield part["field"].rstrip(":"), part["data"]
            waiting.append(part.get("children"))

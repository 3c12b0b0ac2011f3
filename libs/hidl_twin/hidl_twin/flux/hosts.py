"""Host lists as Flux writes them (RFC 29): tuolumne[1001-1004]. Standard library alone: nodes have no ClusterShell."""

from __future__ import annotations

import re
from collections.abc import Iterable


def fold(names: Iterable[str]) -> str:
    """The list in its short form, in the given order."""
    groups: list[tuple[str, list[str]]] = []
    for name in names:
        found = re.fullmatch(r"(.*?)(\d*)", name)
        assert found is not None
        prefix, digits = found[1], found[2]
        if groups and digits and groups[-1][0] == prefix and len(groups[-1][1][-1]) == len(digits):
            groups[-1][1].append(digits)
        else:
            groups.append((prefix, [digits] if digits else []))
    return ",".join(prefix + _ranges(numbers) for prefix, numbers in groups)


def _ranges(numbers: list[str]) -> str:
    if len(numbers) < 2:
        return "".join(numbers)
    runs: list[list[str]] = []
    for number in numbers:
        if runs and int(number) == int(runs[-1][-1]) + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return f"[{','.join('-'.join(run) for run in runs)}]"


def expand(text: str) -> list[str]:
    """The hosts of a list."""
    names = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text):
        prefix, bracket, inner = part.partition("[")
        for run in inner.rstrip("]").split(",") if bracket else [""]:
            low, _, high = run.partition("-")
            names += [f"{prefix}{n:0{len(low)}d}" for n in range(int(low), int(high or low) + 1)] if run else [prefix]
    return names

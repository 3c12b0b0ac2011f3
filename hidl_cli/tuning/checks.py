"""Check the tuning in site, stack and workload files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hidl_cli.inputs.faults import Fault, mapping
from hidl_cli.mpi import FAMILIES, Family
from hidl_cli.tuning.judge import Misfit, judge

_Path = tuple[str | int, ...]


def check_site(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check ``mpi.<name>.tuning`` of a site, by the library's family and version, and ``tuning.<family>``."""
    yield from check_by_family(data)
    libraries = mapping(data, "mpi")
    for name in libraries:
        library = mapping(libraries, name)
        version = library.get("version")
        if family := _family(library.get("family")):
            known = version if isinstance(version, str) else None
            yield from _faults(family, known, mapping(library, "tuning"), ("mpi", name, "tuning"))
            added = mapping(mapping(library, "with_gpus"), "tuning")
            yield from _faults(family, known, added, ("mpi", name, "with_gpus", "tuning"))


def check_by_family(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check ``tuning.<family>`` of a site, a stack or a workload, for any version."""
    tuning = mapping(data, "tuning")
    for word in tuning:
        if family := _family(word):
            yield from _faults(family, None, mapping(tuning, word), ("tuning", word))


def _faults(family: Family, version: str | None, values: Mapping[str, Any], path: _Path) -> Iterator[Fault]:
    seen: dict[str, tuple[str, str]] = {}
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            continue  # the schema reports it
        judged = judge(family, version, name, value)
        if isinstance(judged, Misfit):
            yield Fault((*path, name), judged.message, judged.expected, judged.suggestion, on_key=judged.on_name)
            continue
        other, text = seen.setdefault(judged.variable, (name, judged.value))
        if text != judged.value:
            yield Fault(
                (*path, name), f"{other} and {name} are the same variable, with different values", "one of them"
            )


def _family(word: object) -> Family | None:
    return next((family for family in FAMILIES if family == word), None)

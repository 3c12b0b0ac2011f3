"""Describe variables, either one in detail or many as a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from hidl_cli.errors import UsageError
from hidl_cli.inputs.problems import nearest
from hidl_cli.mpi import FAMILIES, Family
from hidl_cli.tuning import catalogue
from hidl_cli.tuning.catalogue import Variable, VariablePattern, format_expectation
from hidl_cli.tuning.judge import list_counterparts
from hidl_cli.tuning.layers import load_presets


def parse_library(text: str) -> tuple[Family, str | None]:
    """Parse ``family`` or ``family@version``. Raises ``UsageError`` for an unknown family."""
    word, _, version = text.partition("@")
    for family in FAMILIES:
        if family == word:
            return family, version or None
    suggestion = nearest(word, FAMILIES)
    hint = f"did you mean {suggestion}?" if suggestion else f"choose one of: {', '.join(FAMILIES)}"
    raise UsageError(f"unknown MPI family {word!r}", hint=hint)


def list_variables(words: str | None, mpi: str | None) -> list[dict[str, Any]]:
    """List variables as JSON data.

    Args:
        words: Text that occurs in the name or meaning, or a pattern with ``*`` and ``?`` for the name (default: all
            variables).
        mpi: ``family`` or ``family@version`` that must read the variable (default: any).
    """
    library = parse_library(mpi) if mpi else None
    return [
        _summary(variable)
        for variable in catalogue.all_variables()
        if _matches(variable, words) and (library is None or _read_by(variable, *library))
    ]


def format_rows(documents: Sequence[dict[str, Any]], mpi: str | None) -> list[dict[str, str | None]]:
    """Convert the result of ``list_variables`` to table rows.

    If ``mpi`` is given, each row has the versions of that family that read the variable. Otherwise, it has all families
    with their versions.
    """
    family = parse_library(mpi)[0] if mpi else None
    rows = []
    for document in documents:
        words = document["values"]
        accepts = "|".join(words) if isinstance(words, list) else f"{document['type']} {words or ''}".strip()
        row = {"name": document["name"], "takes": accepts, "default": document["default"]}
        if family is None:
            row["read by"] = format_readers(document["readers"])
        else:
            row["versions"] = next(r["versions"] for r in document["readers"] if r["family"] == family)
        rows.append(row | {"meaning": document["meaning"]})
    return rows


def format_readers(documents: Sequence[dict[str, Any]]) -> str:
    """Format a variable's readers on one line."""
    return ", ".join(f"{reader['family']}{reader['versions'] or ''}" for reader in documents)


def explain_variable(name: str) -> dict[str, Any]:
    """Return everything known about a variable, given any of its names.

    Raises ``UsageError`` if the name is unknown.
    """
    rows, pattern = catalogue.variables(name), catalogue.pattern(name)
    if not rows and pattern is None:
        suggestion = catalogue.nearest_name(name)
        hint = f"did you mean {suggestion}?" if suggestion else "hidl tuning list shows all variables"
        raise UsageError(f"unknown variable {name!r}", hint=hint)
    return {
        "name": name,
        "variables": [_full(variable) for variable in rows],
        "pattern": _pattern(pattern) if pattern else None,
        "counterparts": [
            {
                "families": list(other.families),
                "variable": other.variable or None,
                "how": other.how,
                "provenance": other.provenance,
            }
            for other in list_counterparts(name)
        ],
        "presets": list(_presets(catalogue.names_of(name))),
    }


def _matches(variable: Variable, words: str | None) -> bool:
    if not words:
        return True
    if any(sign in words for sign in "*?["):
        return any(fnmatchcase(name, words.upper()) for name in variable.names)
    return words.upper() in " ".join(variable.names) or words.casefold() in variable.meaning.casefold()


def _read_by(variable: Variable, family: Family, version: str | None) -> bool:
    reader = variable.reader(family)
    return reader is not None and reader.includes(version) and variable.type != "internal"


def _summary(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "type": variable.type,
        "values": list(variable.words) or variable.values or None,
        "default": variable.default or None,
        "readers": [_reader(variable, family) for family in FAMILIES if variable.reader(family)],
        "meaning": variable.meaning,
    }


def _full(variable: Variable) -> dict[str, Any]:
    return _summary(variable) | {
        "takes": format_expectation(variable),
        "also": list(variable.also),
        "meaning_from": variable.meaning_from,
        "provenance": variable.provenance,
    }


def _reader(variable: Variable, family: Family) -> dict[str, Any]:
    reader = variable.reader(family)
    return {"family": family, "versions": (reader.versions or None) if reader else None}


def _pattern(pattern: VariablePattern) -> dict[str, Any]:
    return {
        "prefix": pattern.prefix,
        "families": list(pattern.families),
        "meaning": pattern.meaning,
        "provenance": pattern.provenance,
    }


def _presets(names: frozenset[str]) -> Iterator[dict[str, Any]]:
    for preset in load_presets():
        for name in names.intersection(preset.values):
            yield {
                "family": preset.family,
                "value": preset.values[name],
                "when": preset.conditions,
                "source": preset.source,
            }

"""Load files by name: find them, merge them with the files that they extend, and validate the result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.inputs import source, yamlfile
from hidl_cli.inputs.check import check
from hidl_cli.inputs.overlay import KindName, OverlayEntry, find, list_all
from hidl_cli.inputs.problems import Check, Fault, clipped, nearest, one_of
from hidl_cli.inputs.source import YamlNode

# JSON Schemas (draft 2020-12) for editors and other programs, generated from the models.


_MODELS: dict[KindName, tuple[str, str]] = {
    "site": ("hidl_cli.site.schema", "Site"),
    "stack": ("hidl_cli.stack.schema", "Stack"),
    "workload": ("hidl_cli.plan.workload", "Workload"),
}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_EXTENDS = {"properties": {"extends": {"type": "string"}}, "required": ["extends"]}
_WHOLE = "Whole"


def schema(kind: KindName) -> dict[str, Any]:
    """Return the JSON Schema for files of this kind.

    A file that extends another may omit any key at any level, so the root does not require any keys. A file that
    extends nothing must be complete, which is enforced by a second set of definitions.
    """
    document = _closed(model_schema(kind))
    definitions = document.pop("$defs", {})
    whole = _renamed({**definitions, "": document})
    relaxed = _without_required({**document, "$defs": definitions})
    return {
        "$schema": _DIALECT,
        **relaxed,
        "if": {"not": _EXTENDS},
        "then": {"$ref": f"#/$defs/{_WHOLE}"},
        "$defs": relaxed["$defs"] | {f"{_WHOLE}{name}": definition for name, definition in whole.items()},
    }


def text(kind: KindName) -> str:
    """Return the JSON Schema as text to be written to a file."""
    return json.dumps(schema(kind), indent=2) + "\n"


def model_schema(kind: KindName) -> dict[str, Any]:
    """Return pydantic's own schema of the model: descriptions, defaults and required keys."""
    module, name = _MODELS[kind]
    model: type[BaseModel] = getattr(import_module(module), name)
    return model.model_json_schema()


def _closed(part: Any) -> Any:
    """Forbid all keys that do not match a mapping's pattern, because pydantic's schema only states the pattern."""
    if isinstance(part, dict):
        closing = {"additionalProperties": False} if "patternProperties" in part else {}
        return closing | {key: _closed(value) for key, value in part.items()}
    return [_closed(item) for item in part] if isinstance(part, list) else part


def _without_required(part: Any) -> Any:
    """Remove all ``required`` lists, but keep properties with that name."""
    if isinstance(part, dict):
        return {
            key: _without_required(value)
            for key, value in part.items()
            if not (key == "required" and isinstance(value, list))
        }
    return [_without_required(item) for item in part] if isinstance(part, list) else part


def _renamed(part: Any) -> Any:
    """Redirect all references to the complete definitions."""
    if isinstance(part, dict):
        return {
            key: value.replace("#/$defs/", f"#/$defs/{_WHOLE}") if key == "$ref" else _renamed(value)
            for key, value in part.items()
        }
    return [_renamed(item) for item in part] if isinstance(part, list) else part


M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Rules(Generic[M]):
    """The model and checks for one kind of file, and the rules for merging a file with the file that it extends.

    Attributes:
        appended: Paths of lists that are appended to instead of replaced.
        own: Top-level keys that are not inherited from an entry with another name.
    """

    kind: KindName
    model: type[M]
    checks: tuple[Check, ...] = ()
    appended: frozenset[tuple[str, ...]] = frozenset()
    own: frozenset[str] = frozenset({"name", "extends"})


@dataclass(frozen=True)
class LoadResult(Generic[M]):
    """A loaded entry.

    ``model`` is None if there are problems. ``files`` lists the entry's file and the files that it extends.
    """

    entry: OverlayEntry
    model: M | None
    files: tuple[Path, ...]
    problems: tuple[Problem, ...]


def load(rules: Rules[M], name: str) -> M:
    """Load an entry by name.

    Raises ``UsageError`` if the name is unknown and ``InvalidInput`` if the entry is invalid.
    """
    return valid(examine(rules, find(rules.kind, name)))


def valid(result: LoadResult[M]) -> M:
    """Return the model. Raises ``InvalidInput`` with all problems if the entry is invalid."""
    if result.model is None:
        raise faulty([result])
    return result.model


def faulty(results: Sequence[LoadResult[M]]) -> InvalidInput:
    """Combine several results' problems into one error, without duplicates."""
    problems = list(dict.fromkeys(problem for result in results for problem in result.problems))
    what = ", ".join(f"{result.entry.kind} '{result.entry.name}'" for result in results if result.problems)
    return InvalidInput(f"{what}: {counted(len(problems))}", problems=problems)


def counted(faults: int) -> str:
    """Format a number of errors: ``1 error``, ``2 errors``."""
    return f"{faults} error" if faults == 1 else f"{faults} errors"


def examine(rules: Rules[M], entry: OverlayEntry) -> LoadResult[M]:
    """Read and validate an entry and everything it extends. Problems in the files are returned, not raised."""
    links, complete = _chain(entry)
    files = tuple(link.entry.path for link in links)
    problems = [problem for link in links for problem in link.problems]
    if links[0].root is None:
        return LoadResult(entry, None, files, tuple(problems))
    merged = links[0].root
    for link in links[1:]:
        if link.root is not None:
            dropped = rules.own if link.entry.name != entry.name else frozenset({"extends"})
            merged = source.merge(source.without(link.root, dropped), merged, appended=rules.appended)
    across = rules.checks if complete else ()  # a check could report keys as missing that are in an unreadable file
    checks = (*across, lambda data: _names_its_file(data, entry))
    model, faults = check(merged, rules.model, checks, complete=complete)
    problems = sorted([*problems, *faults], key=lambda problem: _order(problem, files))
    return LoadResult(entry, None if problems else model, files, tuple(problems))


@dataclass(frozen=True)
class _Link:
    """A file in a chain of ``extends``. ``root`` is None if the file could not be read."""

    entry: OverlayEntry
    root: YamlNode | None
    problems: tuple[Problem, ...]


def _chain(entry: OverlayEntry) -> tuple[list[_Link], bool]:
    """Return the entry's file and the files that it extends, in order, and whether this chain is complete."""
    links: list[_Link] = []
    following: OverlayEntry | None = entry
    while following is not None:
        document = yamlfile.read(following.path)
        root, problems = document.root, document.problems
        if root is None:
            return [*links, _Link(following, None, problems)], False
        base = _base(following, root, [link.entry for link in links])
        if isinstance(base, Fault):
            fault = Problem(base.message, base.expected, base.path, source.place(root, base.path), base.suggestion)
            root = source.without(root, {"extends"})
            return [*links, _Link(following, root, (*problems, fault))], False
        links.append(_Link(following, root, problems))
        following = base
    return links, True


def _base(entry: OverlayEntry, root: YamlNode, above: Sequence[OverlayEntry]) -> OverlayEntry | Fault | None:
    """Return what ``entry`` extends: nothing, another entry, or the entry with the same name that it shadows."""
    name = source.plain(root).get("extends")
    if name is None:
        return None
    path = ("extends",)
    if not isinstance(name, str):
        return Fault(path, f"`extends` is {source.describe(name)}", f"the name of a {entry.kind}")
    known = {candidate.name: candidate for candidate in list_all(entry.kind, bases=True)}
    base = known.get(name)
    if name == entry.name:
        base = entry.shadows[0] if entry.shadows else None
        if base is None:
            return Fault(path, f"`{clipped(name)}` extends itself", f"another {entry.kind}")
    if base is None:
        expected = one_of(sorted(known.keys() - {entry.name}))
        return Fault(path, f"unknown {entry.kind} `{clipped(name)}`", expected, nearest(name, known))
    if base.path in [other.path for other in (*above, entry)]:
        circle = " -> ".join(other.name for other in (*above, entry, base))
        return Fault(path, f"circular `extends`: {circle}", f"a {entry.kind} that is not part of the circle")
    return base


def _names_its_file(data: Mapping[str, Any], entry: OverlayEntry) -> Iterator[Fault]:
    name = data.get("name")
    if isinstance(name, str) and name != entry.name:
        message = f"the name `{clipped(name)}` does not match the file {entry.path.name}"
        yield Fault(("name",), message, f"`{entry.name}`, or the file name {clipped(name)}.yaml")


def _order(problem: Problem, files: Sequence[Path]) -> tuple[int, int, int]:
    """Sort problems by file, with extending files first, and then by line."""
    if problem.mark is None:
        return len(files), 0, 0
    return files.index(problem.mark.file), problem.mark.line, problem.mark.column

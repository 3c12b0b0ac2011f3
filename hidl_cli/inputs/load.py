"""From a name to a checked model: find the file, lay it over what it extends, validate it as a whole."""

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
from hidl_cli.inputs.overlay import Entry, KindName, find, list_all
from hidl_cli.inputs.problems import Check, Fault, clipped, nearest, one_of
from hidl_cli.inputs.source import YamlNode

# The schemas for editors and other programs: JSON Schema (draft 2020-12) made from the models.


_MODELS: dict[KindName, tuple[str, str]] = {
    "site": ("hidl_cli.site.schema", "Site"),
    "stack": ("hidl_cli.stack.schema", "Stack"),
    "workload": ("hidl_cli.plan.workload", "Workload"),
}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_EXTENDS = {"properties": {"extends": {"type": "string"}}, "required": ["extends"]}
_WHOLE = "Whole"


def schema(kind: KindName) -> dict[str, Any]:
    """The JSON Schema of a file of this kind.

    A file that extends another may leave out any key, on any level: the root requires none. Where a file extends
    nothing, it must be whole, which is a second set of definitions.
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
    """The JSON Schema as the text of a file."""
    return json.dumps(schema(kind), indent=2) + "\n"


def model_schema(kind: KindName) -> dict[str, Any]:
    """What pydantic says of the model alone: descriptions, defaults, and the keys that a whole file must have."""
    module, name = _MODELS[kind]
    model: type[BaseModel] = getattr(import_module(module), name)
    return model.model_json_schema()


def _closed(part: Any) -> Any:
    """``part`` with no key allowed in a mapping but those of the pattern (pydantic says it by the pattern alone)."""
    if isinstance(part, dict):
        closing = {"additionalProperties": False} if "patternProperties" in part else {}
        return closing | {key: _closed(value) for key, value in part.items()}
    return [_closed(item) for item in part] if isinstance(part, list) else part


def _without_required(part: Any) -> Any:
    """``part`` with no key required; ``required`` as the name of a property stays."""
    if isinstance(part, dict):
        return {
            key: _without_required(value)
            for key, value in part.items()
            if not (key == "required" and isinstance(value, list))
        }
    return [_without_required(item) for item in part] if isinstance(part, list) else part


def _renamed(part: Any) -> Any:
    """``part`` with its references going to the whole definitions."""
    if isinstance(part, dict):
        return {
            key: value.replace("#/$defs/", f"#/$defs/{_WHOLE}") if key == "$ref" else _renamed(value)
            for key, value in part.items()
        }
    return [_renamed(item) for item in part] if isinstance(part, list) else part


M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Rules(Generic[M]):
    """What a file of one kind must satisfy, and how it joins with the file that it extends.

    ``appended`` are the paths of lists that grow instead of being replaced; ``own`` the top keys that are not taken
    over from an entry of another name.
    """

    kind: KindName
    model: type[M]
    checks: tuple[Check, ...] = ()
    appended: frozenset[tuple[str, ...]] = frozenset()
    own: frozenset[str] = frozenset({"name", "extends"})


@dataclass(frozen=True)
class Examined(Generic[M]):
    """The outcome of reading one entry: its model, or None and why not; ``files``: it, and what it extends."""

    entry: Entry
    model: M | None
    files: tuple[Path, ...]
    problems: tuple[Problem, ...]


def load(rules: Rules[M], name: str) -> M:
    """The model of the named entry; ``UsageError`` for an unknown name, ``InvalidInput`` with all that is wrong."""
    return valid(examine(rules, find(rules.kind, name)))


def valid(examined: Examined[M]) -> M:
    """The model; raises ``InvalidInput`` with all problems where there is none."""
    if examined.model is None:
        raise faulty([examined])
    return examined.model


def faulty(examined: Sequence[Examined[M]]) -> InvalidInput:
    """The error that carries the problems of all of ``examined``, each once."""
    problems = list(dict.fromkeys(problem for one in examined for problem in one.problems))
    what = ", ".join(f"{one.entry.kind} '{one.entry.name}'" for one in examined if one.problems)
    return InvalidInput(f"{what}: {counted(len(problems))}", problems=problems)


def counted(faults: int) -> str:
    """``1 error``, ``2 errors``, ..."""
    return f"{faults} error" if faults == 1 else f"{faults} errors"


def examine(rules: Rules[M], entry: Entry) -> Examined[M]:
    """Read and check an entry with all that it extends; never raises for what a file holds."""
    links, complete = _chain(entry)
    files = tuple(link.entry.path for link in links)
    problems = [problem for link in links for problem in link.problems]
    if links[0].root is None:
        return Examined(entry, None, files, tuple(problems))
    merged = links[0].root
    for link in links[1:]:
        if link.root is not None:
            dropped = rules.own if link.entry.name != entry.name else frozenset({"extends"})
            merged = source.merge(source.without(link.root, dropped), merged, appended=rules.appended)
    across = rules.checks if complete else ()  # what these would miss may stand in what could not be read
    checks = (*across, lambda data: _names_its_file(data, entry))
    model, faults = check(merged, rules.model, checks, complete=complete)
    problems = sorted([*problems, *faults], key=lambda problem: _order(problem, files))
    return Examined(entry, None if problems else model, files, tuple(problems))


@dataclass(frozen=True)
class _Link:
    """One file of a chain of ``extends``; ``root`` is None where it could not be read."""

    entry: Entry
    root: YamlNode | None
    problems: tuple[Problem, ...]


def _chain(entry: Entry) -> tuple[list[_Link], bool]:
    """The entry, what it extends, what that extends, ...; and whether all of it is there and could be read."""
    links: list[_Link] = []
    following: Entry | None = entry
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


def _base(entry: Entry, root: YamlNode, above: Sequence[Entry]) -> Entry | Fault | None:
    """What ``entry`` extends: nothing, another entry, or the one of its own name that it hides."""
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
        return Fault(path, f"circular `extends`: {circle}", f"a {entry.kind} outside the circle")
    return base


def _names_its_file(data: Mapping[str, Any], entry: Entry) -> Iterator[Fault]:
    name = data.get("name")
    if isinstance(name, str) and name != entry.name:
        message = f"the name `{clipped(name)}` does not match the file {entry.path.name}"
        yield Fault(("name",), message, f"`{entry.name}`, or the file name {clipped(name)}.yaml")


def _order(problem: Problem, files: Sequence[Path]) -> tuple[int, int, int]:
    """The faults of a file before those of the files that it extends, in the order of their lines."""
    if problem.mark is None:
        return len(files), 0, 0
    return files.index(problem.mark.file), problem.mark.line, problem.mark.column

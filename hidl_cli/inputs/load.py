"""From a name to a checked model: find the file, lay it over what it extends, validate it as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.inputs import overlay, tree, yamlfile
from hidl_cli.inputs.check import check
from hidl_cli.inputs.faults import Check, Fault, nearest, one_of
from hidl_cli.inputs.overlay import Entry, KindName
from hidl_cli.inputs.problems import clipped
from hidl_cli.inputs.tree import YamlNode

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
    return valid(examine(rules, overlay.find(rules.kind, name)))


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
            merged = tree.merge(tree.without(link.root, dropped), merged, appended=rules.appended)
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
            fault = Problem(base.message, base.expected, base.path, tree.place(root, base.path), base.suggestion)
            root = tree.without(root, {"extends"})
            return [*links, _Link(following, root, (*problems, fault))], False
        links.append(_Link(following, root, problems))
        following = base
    return links, True


def _base(entry: Entry, root: YamlNode, above: Sequence[Entry]) -> Entry | Fault | None:
    """What ``entry`` extends: nothing, another entry, or the one of its own name that it hides."""
    name = tree.plain(root).get("extends")
    if name is None:
        return None
    path = ("extends",)
    if not isinstance(name, str):
        return Fault(path, f"`extends` is {tree.describe(name)}", f"the name of a {entry.kind}")
    known = {candidate.name: candidate for candidate in overlay.list_all(entry.kind, bases=True)}
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

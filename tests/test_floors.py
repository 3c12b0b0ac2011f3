"""Imports between the files of ``hidl_cli`` go down the floors of ``docs/explanation/architecture.md``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.conftest import REPOSITORY
from tools import draw_floors
from tools.imports import floors, imports, imports_of, package


def test_every_package_has_one_floor() -> None:
    members = {path.stem for path in (REPOSITORY / "hidl_cli").iterdir() if path.suffix == ".py" or _is_package(path)}
    named = [name for _, names in floors() for name in names]
    assert sorted(named) == sorted(set(named))
    assert members == set(named)


def test_imports_go_down() -> None:
    floor = {name: number for number, names in floors() for name in names}
    upward = [
        str(each)
        for each in imports()
        if (here := package(each.importer)) != (there := package(each.imported)) and floor[here] <= floor[there]
    ]
    assert upward == []


def test_no_files_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for each in imports():
        if each.kind != "type checking":
            graph.setdefault(each.importer, set()).add(each.imported)
    assert [sorted(circle) for circle in circles(graph)] == []


def test_files_of_stack_have_no_circle_even_among_types() -> None:
    graph: dict[str, set[str]] = {}
    for each in imports():
        if package(each.importer) == package(each.imported) == "stack":
            graph.setdefault(each.importer, set()).add(each.imported)
    assert graph
    assert [sorted(circle) for circle in circles(graph)] == []


def test_imports_in_functions_have_a_reason() -> None:
    """``hidl --help`` and ``import hidl_cli.api`` must be fast; elsewhere a comment says why."""
    fast = ("commands", "api", "__main__")
    silent = [
        str(each)
        for each in imports()
        if each.kind == "function" and package(each.importer) not in fast and not each.comment
    ]
    assert silent == []


def test_programs_in_jobs_do_not_import_hidl() -> None:
    paths = (REPOSITORY / "hidl_workloads").rglob("*.py")
    assert [str(each) for path in paths for each in imports_of(path, {"hidl_cli"})] == []


def test_the_picture_shows_these_imports() -> None:
    assert draw_floors.PICTURE.read_text(encoding="utf-8") == draw_floors.draw(), "run: python -m tools.draw_floors"


def test_an_arrow_that_others_imply_is_left_out() -> None:
    assert draw_floors.reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}
    assert sorted(sorted(circle) for circle in circles(graph)) == [["b", "c"]]


def circles(graph: Mapping[str, Iterable[str]]) -> Iterator[set[str]]:
    """The sets of nodes that reach each other, of two or more nodes."""
    reached = {node: _reached(node, graph) for node in graph}
    seen: set[str] = set()
    for node in graph:
        circle = {other for other in reached[node] if node in reached.get(other, ())}
        if len(circle) > 1 and node not in seen:
            seen |= circle
            yield circle


def _reached(start: str, graph: Mapping[str, Iterable[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += graph.get(node, ())
    return found


def _is_package(path: Path) -> bool:
    return (path / "__init__.py").is_file()

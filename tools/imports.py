"""The imports between the files of ``hidl_cli``, read from their source, and the floors of the architecture page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Kind = Literal["module", "function", "type checking"]

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "explanation" / "architecture.md"
_ROW = re.compile(r"\| (?P<floor>\d+) \| (?P<packages>`[^|]+`) \|")


@dataclass(frozen=True)
class Import:
    """``importer`` imports ``imported`` (modules) in line ``line``; ``comment``: what that line says after ``#``."""

    importer: str
    imported: str
    kind: Kind
    line: int
    comment: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported} ({self.kind})"


@cache
def imports() -> tuple[Import, ...]:
    """Every import of a module of ``hidl_cli`` by another one."""
    modules = {_module(path): path for path in (REPOSITORY / "hidl_cli").rglob("*.py")}
    return tuple(each for path in modules.values() for each in imports_of(path, modules))


@cache
def floors() -> list[tuple[int, list[str]]]:
    """The floors of the page's table with the packages on each, from the top."""
    rows = (_ROW.match(line) for line in PAGE.read_text(encoding="utf-8").splitlines())
    return [(int(row["floor"]), re.findall(r"`([^`]+)`", row["packages"])) for row in rows if row]


def package(module: str) -> str:
    """The member of ``hidl_cli`` that the module belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def imports_of(path: Path, modules: Iterable[str]) -> Iterator[Import]:
    """The imports in one file of ``modules``, or of modules below them."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node, kind in _nodes(ast.parse(text), "module"):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}: a relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else str(node.module) for name in whole]
        comment = lines[node.lineno - 1].partition("#")[2] or lines[node.lineno - 2].strip().partition("#")[2]
        for name in dict.fromkeys(names):
            if name in modules or name.partition(".")[0] in modules:
                yield Import(_module(path), name, kind, node.lineno, comment)


def _nodes(node: ast.AST, kind: Kind) -> Iterator[tuple[ast.Import | ast.ImportFrom, Kind]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, kind
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _nodes(child, "function")
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            yield from _nodes(child, "type checking")
        else:
            yield from _nodes(child, kind)


def _module(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)

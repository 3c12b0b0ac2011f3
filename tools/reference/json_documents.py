"""The page of JSON documents, out of the code that prints and writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from hidl_cli.commands.app import command_line

from .markdown import code, plain, table

_ROOT = Path(__file__).parents[2]
_PACKAGE = "hidl_cli.commands"
_SCHEMA = re.compile(r"hidl\.[a-z-]+/\d+")
_HEAD = """\
# JSON documents

Each is one object whose `schema` names what it is and its version. Keys may be added in a version; a key that goes away
or changes its meaning gives a new number.

A command that fails prints its error as a message on stderr, also with `--json`, and exits with one of
[these codes](exit-codes.md). stdout is empty then, or has the document of what was done before.

## Printed by commands with `--json`

"""
_FILES = """\
## Written to files

What runs, installations and validations keep, and what passes between hidl and programs
([the metrics document](metrics.md), [the store of results](results-store.md)).

"""
#: A function of hidl_cli.commands: module and name.
_Function = tuple[str, str]


def pages() -> dict[str, str]:
    """The page."""
    keys: dict[str, dict[str, None]] = {}
    commands: dict[str, list[str]] = {}
    for name, callback in _callbacks(get_command(command_line()), "hidl"):
        for schema, given in _printed(callback, frozenset()):
            keys.setdefault(schema, {}).update(dict.fromkeys(given))
            if name not in commands.setdefault(schema, []):
                commands[schema].append(name)
    rows = [
        (code(schema), ", ".join(map(code, commands[schema])), ", ".join(map(code, keys[schema])))
        for schema in sorted(keys)
    ]
    written = [(code(schema), plain(doc)) for schema, doc in sorted(_written()) if schema not in keys]
    text = _HEAD + table(("schema", "by", "keys that are always there"), rows) + _FILES
    return {"reference/documents.md": text + table(("schema", "is"), written)}


def _callbacks(command: Any, name: str) -> Iterator[tuple[str, _Function]]:
    """Every command with the function that carries it out."""
    for word, below in getattr(command, "commands", {}).items():
        yield from _callbacks(below, f"{name} {word}")
    if command.callback:
        function = command.callback
        yield name, (function.__module__.rpartition(".")[2], function.__name__)


def _printed(function: _Function, before: frozenset[_Function]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The documents that a function prints, itself or by those that it calls: schema, and keys given by name."""
    tree = _functions(function[0]).get(function[1])
    if tree is None or function in before:
        return
    names = _imported(function[0])
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id == "emit_json" and node.args and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value), tuple(word.arg for word in node.keywords if word.arg)
        else:
            called = names.get(node.func.id, (function[0], node.func.id))
            yield from _printed(called, before | {function})


@cache
def _module(name: str) -> ast.Module:
    file = _ROOT / "hidl_cli" / "commands" / f"{name}.py"
    return ast.parse(file.read_text(encoding="utf-8") if file.exists() else "")


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.walk(_module(module)) if isinstance(node, ast.FunctionDef)}


@cache
def _imported(module: str) -> dict[str, _Function]:
    """The names that a module has from other modules of the commands."""
    return {
        alias.asname or alias.name: (node.module.rpartition(".")[2], alias.name)
        for node in ast.walk(_module(module))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{_PACKAGE}.")
        for alias in node.names
    }


def _written() -> Iterator[tuple[str, str]]:
    """Schemas that stand in the code outside the commands, each with what its module is about."""
    seen = set()
    for package in ("hidl_cli", "hidl_workloads"):
        for file in sorted((_ROOT / package).rglob("*.py")):
            module = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(module):
                found = isinstance(node, ast.Constant) and _SCHEMA.fullmatch(str(node.value))
                if found and found[0] not in seen and file.parent.name != "commands":
                    seen.add(found[0])
                    yield found[0], _about(module)


def _about(module: ast.Module) -> str:
    text = (ast.get_docstring(module) or "").split("\n\n")[0]
    return " ".join(text.replace("``", "`").split())

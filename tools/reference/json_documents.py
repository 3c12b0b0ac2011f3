"""The page of JSON documents, out of the code that prints and writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .markdown import code, plain, table

_ROOT = Path(__file__).parents[2]
_SCHEMA = re.compile(r"hidl\.[a-z-]+/\d+")
_HEAD = """\
# JSON documents

Each is one object whose `schema` names what it is and its version. Keys may be added in a version; a key that goes away
or changes its meaning gives a new number.

## Printed by commands with `--json`

"""
_FILES = """\
## Written to files

What runs, installations and validations keep, and what passes between hidl and programs
([the metrics document](metrics.md), [the store of results](results-store.md)).

"""


@dataclass(frozen=True)
class _Printed:
    """One place in the code that prints a document: its schema, the function, its docstring, the keys given by name."""

    schema: str
    function: str
    doc: str
    keys: tuple[str, ...]


def pages() -> dict[str, str]:
    """The page."""
    printed: dict[str, list[_Printed]] = {}
    for file in sorted((_ROOT / "hidl_cli" / "commands").glob("*.py")):
        for one in _printed(ast.parse(file.read_text(encoding="utf-8"))):
            printed.setdefault(one.schema, []).append(one)
    rows = [_row(schema, printed[schema]) for schema in sorted(printed)]
    written = [(code(schema), plain(doc)) for schema, doc in sorted(_written()) if schema not in printed]
    text = _HEAD + table(("schema", "keys", "from"), rows) + _FILES + table(("schema", "is"), written)
    return {"reference/documents.md": text}


def _row(schema: str, places: list[_Printed]) -> tuple[str, str, str]:
    keys = dict.fromkeys(key for one in places for key in one.keys)
    return code(schema), ", ".join(map(code, keys)), plain(" ".join(dict.fromkeys(one.doc for one in places)))


def _printed(module: ast.Module) -> Iterator[_Printed]:
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "emit_json":
                schema = call.args[0]
                keys = tuple(word.arg for word in call.keywords if word.arg)
                if isinstance(schema, ast.Constant):
                    yield _Printed(str(schema.value), function.name, _first_line(function), keys)


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
                    yield found[0], _first_line(module)


def _first_line(node: ast.Module | ast.FunctionDef) -> str:
    text = (ast.get_docstring(node) or "").split("\n\n")[0]
    return " ".join(text.replace("``", "`").split())

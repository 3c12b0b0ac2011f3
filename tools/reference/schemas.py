"""The pages of the files that people write: sites, stacks, workloads, out of the models that read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hidl_cli.inputs.check import PATTERNS
from hidl_cli.inputs.load import model_schema
from hidl_cli.inputs.overlay import KindName

from .markdown import code, plain, table

_HEADS: dict[KindName, str] = {
    "site": "A site is one machine. [How to describe one](../how-to/describe-a-site.md); "
    "[those that are known](sites.md).",
    "stack": "A stack is a set of packages with one MPI library. [How it is locked and installed]"
    "(../how-to/lock-and-offline.md); [what it may build](builds.md).",
    "workload": "A workload is a program with parameters, and what it yields. "
    "[How to write one](../how-to/run-your-own-program.md).",
}
_COMMON = """\
Files are YAML 1.2. They lie in `~/.config/hidl/{kind}s/`, `/etc/hidl/{kind}s/`, or are shipped; the first of the same
name wins (`hidl config show --origin`). An unknown key, a wrong type or a missing key is an error with its line
(exit code 3). `hidl {kind} schema` prints the JSON Schema for editors. A file with `extends` may leave out any key.

"""
_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "minLength": "at least {} character(s)",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "minProperties": "at least {}",
}


def pages() -> dict[str, str]:
    """A page for each kind of file."""
    return {f"reference/{kind}-file.md": "".join(_page(kind, head)) for kind, head in _HEADS.items()}


def _page(kind: KindName, head: str) -> Iterator[str]:
    document = model_schema(kind)
    yield f"# The file of a {kind}\n\n{head}\n\n{_COMMON.format(kind=kind)}"
    yield f"## The file\n\n{_prose(document)}\n\n{_keys(document)}"
    for name, definition in sorted(document.get("$defs", {}).items()):
        yield f"## {name}\n\n{_prose(definition)}\n\n"
        yield _keys(definition) if "properties" in definition else f"{_type(definition)}\n\n"


def _keys(definition: dict[str, Any]) -> str:
    required = definition.get("required", ())
    rows = [
        (code(key), _type(one), _default(one, key in required), plain(one.get("description", "")))
        for key, one in definition["properties"].items()
    ]
    return table(("key", "type", "default", "means"), rows)


def _default(one: dict[str, Any], required: bool) -> str:
    return "**required**" if required else code(json.dumps(one.get("default"))) if "default" in one else ""


def _prose(definition: dict[str, Any]) -> str:
    return plain(" ".join(definition.get("description", "").replace("``", "`").split()))


def _type(one: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in one:
        name = one["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in one:
        return " or ".join(map(_type, one["anyOf"]))
    if "enum" in one or "const" in one:
        return ", ".join(code(str(word)) for word in one.get("enum", [one.get("const")]))
    kind = one.get("type", "any value")
    if kind == "array":
        kind = f"list of {_type(one.get('items', {}))}"
    elif kind == "object":
        kind = _mapping(one)
    limits = [_LIMITS[key].format(one[key]) for key in _LIMITS if key in one]
    if "pattern" in one:
        limits.append(PATTERNS.get(one["pattern"]) or f"matching {code(one['pattern'])}")
    return kind + (f" ({'; '.join(limits)})" if limits else "")


def _mapping(one: dict[str, Any]) -> str:
    """``name -> value``."""
    if "patternProperties" in one:
        return "mapping of names to " + " or ".join(map(_type, one["patternProperties"].values()))
    keys = one.get("propertyNames", {})
    names = _type(keys) if "enum" in keys or "$ref" in keys else "names"
    values = one.get("additionalProperties")
    return f"mapping of {names} to {_type(values)}" if isinstance(values, dict) else "mapping"

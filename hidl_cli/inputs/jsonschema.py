"""The schemas for editors and other programs: JSON Schema (draft 2020-12) made from the models."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hidl_cli.inputs.overlay import KindName

if TYPE_CHECKING:
    from pydantic import BaseModel

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

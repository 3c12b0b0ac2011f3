"""From a name to a checked model: find the file, merge what it extends, validate it as a whole."""

from __future__ import annotations

from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hidl_cli.errors import InvalidInput
from hidl_cli.inputs import overlay

M = TypeVar("M", bound=BaseModel)


def load(kind: overlay.KindName, name: str, model: type[M], *, appended: frozenset[tuple[str, ...]] = frozenset()) -> M:
    """The model of the named entry; ``UsageError`` for an unknown name, ``InvalidInput`` for a faulty file."""
    entry = overlay.find(kind, name)
    data = _read(kind, entry, appended)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidInput(f"{entry.path}: {error}") from error


def _read(kind: overlay.KindName, entry: overlay.Entry, appended: frozenset[tuple[str, ...]]) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(entry.path.read_text(encoding="utf-8"))
    base = data.get("extends")
    if base is None:
        return data
    inherited = _read(kind, entry.shadows[0] if base == entry.name else overlay.find(kind, base), appended)
    return _merge(inherited, data, (), appended)


def _merge(base: Any, own: Any, path: tuple[str, ...], appended: frozenset[tuple[str, ...]]) -> Any:
    if isinstance(base, dict) and isinstance(own, dict):
        merged = {key: _merge(base[key], own[key], (*path, key), appended) if key in own else base[key] for key in base}
        return merged | {key: value for key, value in own.items() if key not in base}
    if path in appended and isinstance(base, list) and isinstance(own, list):
        return base + [item for item in own if item not in base]
    return own

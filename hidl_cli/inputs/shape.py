"""What a model expects at a place of a document: read from the model's annotations."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from hidl_cli.inputs.fields import NameIn

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}


@dataclass(frozen=True)
class Spot:
    """A place in a document as its model sees it.

    ``path`` is the place; ``annotation`` what may stand there (None: nothing may); ``description`` the field's own
    words; ``siblings`` the keys that are valid beside it; ``on_key``: the key itself is meant, not its value.
    """

    path: tuple[str | int, ...]
    annotation: Any
    description: str | None = None
    siblings: tuple[str, ...] = ()
    on_key: bool = False


def locate(model: type[BaseModel], location: Sequence[str | int]) -> Spot:
    """The place that the location of a pydantic error stands for.

    pydantic appends steps that are no places of the document: ``[key]`` for a mapping's key, and the names of a
    union's branches.
    """
    spot = Spot((), model)
    below_dict = False
    for step in location:
        if step == "[key]" and below_dict:
            return Spot(spot.path, spot.annotation, on_key=True)
        inner = _bare(spot.annotation)
        path = (*spot.path, step)
        below_dict = get_origin(inner) is dict
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            field = inner.model_fields.get(str(step))
            siblings = tuple(inner.model_fields)
            if field is None:
                return Spot(path, None, siblings=siblings, on_key=True)
            names = next((each for each in field.metadata if isinstance(each, NameIn)), None)
            annotation = Annotated[field.annotation, names] if names else field.annotation
            spot = Spot(path, annotation, field.description, siblings)
        elif below_dict or get_origin(inner) is list:
            spot = Spot(path, get_args(inner)[-1])
        else:
            return spot
    return spot


def phrase(annotation: Any) -> str:
    """What may stand there, in a person's words."""
    bare = _bare(annotation)
    if words := choices(annotation):
        return f"one of: {', '.join(words)}"
    if get_origin(bare) in (Union, types.UnionType):
        *others, last = dict.fromkeys(phrase(branch) for branch in get_args(bare) if branch is not int)
        return f"{', '.join(others)} or {last}" if others else last
    return _WORDS.get(get_origin(bare) or bare, "a mapping of `key: value` lines")


def choices(annotation: Any) -> tuple[str, ...]:
    """The words of a ``Literal``, or the names of a registry; nothing for any other annotation."""
    if names := _names(annotation):
        return names.names()
    bare = _bare(annotation)
    return tuple(map(str, get_args(bare))) if get_origin(bare) is Literal else ()


def _names(annotation: Any) -> NameIn | None:
    """The registry that the annotation, without an alternative None, is bound to."""
    if get_origin(annotation) is Annotated:
        _, *metadata = get_args(annotation)
        return next((each for each in metadata if isinstance(each, NameIn)), None)
    if get_origin(annotation) in (Union, types.UnionType):
        branches = [branch for branch in get_args(annotation) if branch is not type(None)]
        return _names(branches[0]) if len(branches) == 1 else None
    return None


def _bare(annotation: Any) -> Any:
    """The annotation without ``Annotated`` and without an alternative None."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        branches = [branch for branch in get_args(annotation) if branch is not type(None)]
        return _bare(branches[0]) if len(branches) == 1 else annotation
    return annotation

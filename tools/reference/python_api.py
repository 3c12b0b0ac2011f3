"""The page of the Python interface, out of the docstrings of ``hidl_cli.api``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from hidl_cli import api

_HEAD = """\
# Python

`import hidl_cli.api as hidl` ([how to use it](../how-to/use-hidl-from-python.md)). These names are the public
interface.

"""


def pages() -> dict[str, str]:
    """The page."""
    members = {name: getattr(api, name) for name in api.__all__}
    functions = {name: each for name, each in members.items() if inspect.isfunction(each)}
    errors = {name: each for name, each in members.items() if _is_error(each)}
    classes = {name: each for name, each in members.items() if name not in functions and name not in errors}
    text = [_HEAD, "## Functions\n\n", *(_function(name, each) for name, each in functions.items())]
    text += ["## Classes\n\n", *(part for name, each in classes.items() for part in _class(name, each))]
    text += ["## Errors\n\n", *(f"- `{name}`: {_first(each)}\n" for name, each in errors.items())]
    return {"reference/python.md": "".join(text)}


def _is_error(member: Any) -> bool:
    return inspect.isclass(member) and issubclass(member, Exception)


def _function(name: str, function: Any) -> str:
    parameters = list(inspect.signature(function).parameters.values())
    result = inspect.signature(function).return_annotation
    shown = "".join(f"    {parameter},\n" for parameter in _with_star(parameters))
    head = f"{name}(\n{shown}) -> {result}" if parameters else f"{name}() -> {result}"
    return f"### `{name}`\n\n```text\n{head}\n```\n\n{_prose(function)}\n\n"


def _with_star(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Yield each parameter as in a signature, with ``*`` before those that are given by name alone."""
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield str(parameter).replace("'", "")


def _class(name: str, of: Any) -> Iterator[str]:
    yield f"### `{name}`\n\n{_prose(of)}\n\n"
    fields = [f"`{field}`" for field in getattr(of, "__dataclass_fields__", {}) if not field.startswith("_")]
    if fields:
        yield f"Fields: {', '.join(fields)}.\n\n"
    for member, value in vars(of).items():
        if member.startswith("_") or not (isinstance(value, property) or inspect.isfunction(value)):
            continue
        call = "" if isinstance(value, property) else "()"
        yield f"- `{member}{call}`: {_prose(value).replace(chr(10), ' ')}\n"
    yield "\n"


def _first(member: Any) -> str:
    return _prose(member).split("\n\n")[0].replace("\n", " ")


def _prose(member: Any) -> str:
    return re.sub(r"``(.*?)``", r"`\1`", inspect.getdoc(member) or "")

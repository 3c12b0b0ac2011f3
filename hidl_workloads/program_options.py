"""Tell the options of a Python program that reads its command line by argparse, click or typer.

::

    HIDL_OPTIONS=FILE python .../hidl_workloads/program_options.py PROGRAM.py [ARG...]

The program is executed up to the place where it reads its command line. There its options go to FILE as JSON, with the
values that the arguments give them, and the process ends. A program that reads none runs to its own end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

OPTIONS_FILE = "HIDL_OPTIONS"
SCHEMA = "hidl.program-options/1"

_LARGEST_FILE = 64 * 2**20  # maximum size in bytes of a file that the program writes meanwhile

_COMMANDS = (("click.core", "Command"), ("typer.core", "TyperCommand"), ("typer.core", "TyperGroup"))

_parse_known_args = argparse.ArgumentParser.parse_known_args


def main(arguments: list[str]) -> None:
    """Run the program; ends the process where it reads its options."""
    program = arguments[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    argparse.ArgumentParser.parse_known_args = _tell_argparse  # type: ignore[method-assign, assignment]  # never returns
    for module, name in _COMMANDS:
        with suppress(ImportError, AttributeError):
            getattr(import_module(module), name).main = _tell_click
    sys.argv = list(arguments)
    sys.path[0] = str(Path(program).resolve().parent)  # as `python PROGRAM.py` does
    runpy.run_path(program, run_name="__main__")


def _tell_argparse(
    parser: argparse.ArgumentParser, args: list[str] | None = None, namespace: argparse.Namespace | None = None
) -> None:
    """Take the place of ``parse_known_args``, which every way of parsing calls."""
    values, unknown = _parse_known_args(parser, sys.argv[1:] if args is None else args, namespace)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    _end(parser.description, list(_of_argparse(parser, vars(values))))


def _of_argparse(parser: argparse.ArgumentParser, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._VersionAction):
            continue
        value = values.get(action.dest)
        both = isinstance(action, argparse.BooleanOptionalAction)
        simple = type(action) is argparse._StoreAction and action.nargs is None
        flag = isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction)
        try:
            text = parser._get_formatter()._expand_help(action) if action.help else ""
        except (KeyError, TypeError, ValueError):
            text = action.help or ""
        names = action.option_strings
        if both and value is True:  # the flag that changes the default
            names = [name for name in names if name.startswith("--no-")]
        elif both:
            names = [name for name in names if not name.startswith("--no-")]
        yield {
            "names": names,
            "dest": action.dest,
            "kind": "flag" if flag or both else "value" if simple else "other",
            "type": _type(action.type, value),
            "value": (value == action.const) if flag else False if both else _plain(value),
            "choices": [str(choice) for choice in action.choices] if action.choices and simple else [],
            "help": text,
        }


def _tell_click(command: Any, args: Any = None, *_: Any, **__: Any) -> None:
    """Take the place of click's ``Command.main``."""
    if hasattr(command, "commands"):
        _end(command.help, [], "it has subcommands: " + ", ".join(sorted(command.commands)))
    try:
        context = command.make_context(command.name or "program", list(sys.argv[1:] if args is None else args))
    except Exception as error:
        show: Callable[[], None] | None = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(2)
    _end(command.help, list(_of_click(command, context.params)))


def _of_click(command: Any, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in command.params:
        value, kind = values.get(one.name), getattr(one, "type", None)
        is_option = one.param_type_name == "option"
        flag = bool(getattr(one, "is_flag", False))
        names = list(one.opts) if is_option else []
        if flag and value is True and one.secondary_opts:
            names, value = list(one.secondary_opts), False
        simple = one.nargs == 1 and not one.multiple if is_option else one.nargs == 1
        types = {"integer": int, "integer range": int, "float": float, "float range": float}
        yield {
            "names": names,
            "dest": one.name,
            "kind": "flag" if flag else "value" if simple and not getattr(one, "count", False) else "other",
            "type": _type(types.get(getattr(kind, "name", "")), value),
            "value": bool(value) if flag else _plain(value),
            "choices": [str(choice) for choice in getattr(kind, "choices", ())],
            "help": getattr(one, "help", None) or "",
        }


def _type(given: Any, value: Any) -> str:
    if given in (int, float):
        return str(given.__name__)
    return type(value).__name__ if type(value) in (int, float) and given is None else "str"


def _plain(value: Any) -> Any:
    """Return a number, text, a list of texts, or None; of an enumeration's member its value."""
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or (isinstance(value, int | float | str) and not isinstance(value, bool)):
        return value
    return [str(each) for each in value] if isinstance(value, list | tuple) else str(value)


def _end(title: str | None, options: list[dict[str, Any]], problem: str | None = None) -> None:
    document = {"schema": SCHEMA, "title": title or "", "options": options, "problem": problem}
    with suppress(OSError):
        Path(os.environ[OPTIONS_FILE]).write_text(json.dumps(document), encoding="ascii")
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])

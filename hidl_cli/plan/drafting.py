"""Draft a workload's file from a program: its options become parameters, with their defaults."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from hidl_cli import process
from hidl_cli.documents import read_json
from hidl_cli.errors import ProcessFailed, UsageError
from hidl_cli.inputs.check import Identifier
from hidl_cli.inputs.load import examine, valid
from hidl_cli.inputs.overlay import at_path
from hidl_cli.plan.checks import RULES
from hidl_cli.plan.own import ScalingKind, own_workload
from hidl_cli.plan.workload import Workload
from hidl_cli.quoting import comment
from hidl_cli.stack.installation import Installation
from hidl_workloads import program_options
from hidl_workloads.program_options import OPTIONS_FILE, SCHEMA

#: Seconds after which a program that does not read its options is ended.
SECONDS = 30.0

_PLAIN = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TERM": "dumb", "TYPER_STANDARD_TRACEBACK": "1"}
_LARGEST = 2**20  # bytes of its answer
_MOST_TEXT = 200
_READS_OPTIONS = re.compile(r"\b(argparse|ArgumentParser|click|typer|jsonargparse|simple_parsing|HfArgumentParser)\b")


class Option(BaseModel):
    """One option or argument: ``names`` as typed (``-n``, ``--lr``), empty if it has none.

    ``kind``: one ``value``, a ``flag``, or ``other`` (several values, counts, ...). ``value``: the default, or what the
    given arguments say.
    """

    names: list[str]
    dest: str
    kind: Literal["value", "flag", "other"]
    type: Literal["int", "float", "str"] = "str"
    value: bool | int | float | str | list[str] | None = None
    choices: list[str] = []
    help: str = ""


class ProgramOptions(BaseModel):
    """What a program says about itself: a title, its options, and why these are incomplete."""

    title: str = ""
    options: list[Option] = []
    problem: str | None = None


@dataclass(frozen=True)
class WorkloadDraft:
    """A workload, its file's text, and what the draft leaves out."""

    workload: Workload
    text: str
    remarks: tuple[str, ...] = ()


@dataclass
class _Words:
    """The words after the program, the parameters in them, and what was left out."""

    words: list[str] = field(default_factory=list)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def may_read_options(file: Path) -> bool:
    """Does a Python file name a library that reads command lines? ``UsageError`` if it cannot be read."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="name the program's file") from None
    return file.suffix == ".py" and _READS_OPTIONS.search(text) is not None


def read_options(file: Path, given: Sequence[str], installed: Installation) -> ProgramOptions:
    """Execute a Python file with ``given`` arguments until it reads its command line, and return its options.

    It runs with the stack's Python, for ``SECONDS`` at most. ``UsageError`` if it refuses the arguments; any other
    failure is a ``problem``.
    """
    with tempfile.TemporaryDirectory(prefix="hidl-") as directory:
        answer = Path(directory, "options.json")
        # By its path: with -m, modules of the directory that hidl was called in would come first.
        words = [str(installed.python), program_options.__file__, str(file), *given]
        environment = {**installed.environment(os.environ), **_PLAIN, OPTIONS_FILE: str(answer)}
        try:
            process.run(words, env=environment, timeout=SECONDS)
        except ProcessFailed as error:
            last = next((line for line in reversed(error.output.splitlines()) if line.strip()), "")
            if error.status == 2:
                raise UsageError(
                    f"{file.name}: {last.strip()}", hint=f"give its arguments: hidl workload new {file} -- ARG..."
                ) from None
            if not answer.is_file():
                return ProgramOptions(problem=f"it failed before it read its options: {last.strip()}")
        return _read(answer)


def _read(answer: Path) -> ProgramOptions:
    try:
        if answer.stat().st_size > _LARGEST:
            return ProgramOptions(problem="it has too many options")
        document = read_json(answer)
        if document.pop("schema", None) != SCHEMA:
            raise ValueError
        return ProgramOptions.model_validate(document)
    except FileNotFoundError:
        return ProgramOptions(problem="it ended without reading its options")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ProgramOptions(problem="its options cannot be read")


def draft_workload(
    name: str,
    command: Sequence[str],
    given: Sequence[str],
    options: ProgramOptions | None,
    *,
    directory: str,
    stack: str | None = None,
    scaling: ScalingKind | None = None,
    uses_mpi: bool = True,
) -> WorkloadDraft:
    """Draft the workload that starts ``command`` with ``options`` as parameters, or with ``given`` as it is."""
    found = _Words()
    if options is None or options.problem is not None or not options.options:
        found.words = list(given)
    else:
        for option in options.options:
            _add(found, option)
    if options is not None and options.problem:
        found.remarks.append(f"no parameters: {options.problem}")
    base = own_workload(command, directory=directory, stack=stack, scaling=scaling, uses_mpi=uses_mpi)
    document = base.model_dump(mode="json", exclude_defaults=True)
    document["name"] = name
    document["title"] = _line(options.title if options else "") or base.title
    document["program"]["arguments"] = [*(document["program"].get("arguments") or []), *found.words]
    if found.parameters:
        document["parameters"] = found.parameters
    keys = ("name", "title", "program", "stacks", "parameters", "metrics", "scaling")
    ordered = {key: document[key] for key in keys if key in document}
    text = yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    remarks = "".join(f"# {comment(remark)}\n" for remark in found.remarks)
    text = f"# Drafted by hidl workload new.\n{remarks}{text}"
    return WorkloadDraft(_checked(name, text), text, tuple(found.remarks))


def _checked(name: str, text: str) -> Workload:
    """Read the draft as ``hidl run`` will; ``InvalidInput`` if it is faulty, as by braces in the given arguments."""
    with tempfile.TemporaryDirectory(prefix="hidl-") as directory:
        file = Path(directory, f"{name}.yaml")
        file.write_text(text, encoding="utf-8")
        return valid(examine(RULES, at_path("workload", file)))


def _add(found: _Words, option: Option) -> None:
    """Add one option: its words, and its parameter where it has one value."""
    shown = max(option.names, key=len, default=option.dest)
    name = re.sub(r"[^a-z0-9_]+", "_", shown.lstrip("-").lower())
    if option.kind == "flag" and option.names and _is_identifier(name):
        found.words.append(f"{{{name}?{shown}}}")
        found.parameters[name] = {"type": "bool", "default": bool(option.value), "help": _line(option.help)}
        return
    if option.kind == "other" or option.value is None or isinstance(option.value, list) or not _is_identifier(name):
        values = option.value if isinstance(option.value, list) else []
        found.words += [*option.names[:1], *values] if values else []
        found.remarks.append(f"{shown} is not a parameter: {_why(option)}")
        return
    found.words += list(_placed(option, shown, name))
    found.parameters[name] = {**_typed(option), "help": _line(option.help)}


def _placed(option: Option, shown: str, name: str) -> Iterator[str]:
    if not option.names:
        yield f"{{{name}}}"
    elif shown.startswith("--"):
        yield f"{shown}={{{name}}}"
    else:
        yield from (shown, f"{{{name}}}")


def _typed(option: Option) -> dict[str, Any]:
    value = option.value
    if option.choices and str(value) in option.choices:
        return {"type": "choice", "choices": option.choices, "default": str(value)}
    if option.type in ("int", "float"):
        try:
            return {"type": option.type, "default": {"int": int, "float": float}[option.type](str(value))}
        except ValueError:
            pass
    return {"type": "str", "default": str(value)}


def _why(option: Option) -> str:
    if option.kind == "other" or isinstance(option.value, list):
        return "it takes several values, or none; its words are in `arguments` where they were given"
    return "it has no default; give it after --, or add it to `arguments`"


def _is_identifier(name: str) -> bool:
    try:
        TypeAdapter(Identifier).validate_python(name)
    except ValidationError:
        return False
    return True


def _line(text: str) -> str:
    line = comment(" ".join(text.split()))
    return line if len(line) <= _MOST_TEXT else f"{line[: _MOST_TEXT - 3]}..."

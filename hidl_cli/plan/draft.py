"""Draft the workload file for a program, whose options become parameters with their default values."""

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
from hidl_cli.plan.program import ScalingKind, own_workload
from hidl_cli.plan.workload import Workload
from hidl_cli.quoting import comment
from hidl_cli.stack.installation import Installation
from hidl_workloads import program_options
from hidl_workloads.program_options import OPTIONS_FILE, SCHEMA

#: Seconds after which a program that has not parsed its options is killed.
SECONDS = 30.0

_PLAIN = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TERM": "dumb", "TYPER_STANDARD_TRACEBACK": "1"}
_LARGEST = 2**20  # bytes of the document that contains the options
_MOST_TEXT = 200
_READS_OPTIONS = re.compile(r"\b(argparse|ArgumentParser|click|typer|jsonargparse|simple_parsing|HfArgumentParser)\b")


class Option(BaseModel):
    """An option or positional argument of a program.

    Attributes:
        names: Names as typed (``-n``, ``--lr``). A positional argument has none.
        kind: ``value`` for a single value, ``flag``, or ``other`` (several values, counts, ...).
        value: Value in the given arguments, or else the default.
        choices: Valid values. If empty, every value is valid.
    """

    names: list[str]
    dest: str
    kind: Literal["value", "flag", "other"]
    type: Literal["int", "float", "str"] = "str"
    value: bool | int | float | str | list[str] | None = None
    choices: list[str] = []
    help: str = ""


class ProgramOptions(BaseModel):
    """A program's title and options, and the reason if the options are incomplete."""

    title: str = ""
    options: list[Option] = []
    problem: str | None = None


@dataclass(frozen=True)
class WorkloadDraft:
    """A drafted workload, the text of its file, and notes about omitted options."""

    workload: Workload
    text: str
    remarks: tuple[str, ...] = ()


@dataclass
class _Arguments:
    """A program's arguments, the parameters that they contain, and notes about omitted options."""

    words: list[str] = field(default_factory=list)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def may_read_options(file: Path) -> bool:
    """Return whether a Python file mentions an option parsing library; raises ``UsageError`` if it is unreadable."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="pass the program's file") from None
    return file.suffix == ".py" and _READS_OPTIONS.search(text) is not None


def read_options(file: Path, given: Sequence[str], installed: Installation) -> ProgramOptions:
    """Execute a Python file until it parses its options, and return them.

    The file runs with the stack's Python interpreter for at most ``SECONDS``.

    Args:
        file: The Python file.
        given: Arguments to pass to it.
        installed: Installation of the stack.

    Raises:
        UsageError: The program rejects the arguments. Any other failure is returned as the ``problem`` of the options.
    """
    with tempfile.TemporaryDirectory(prefix="hidl-") as directory:
        output = Path(directory, "options.json")
        # The module is started by its path, because ``-m`` would give modules in the current directory precedence.
        words = [str(installed.python), program_options.__file__, str(file), *given]
        environment = {**installed.environment(os.environ), **_PLAIN, OPTIONS_FILE: str(output)}
        try:
            process.run(words, env=environment, timeout=SECONDS)
        except ProcessFailed as error:
            last = next((line for line in reversed(error.output.splitlines()) if line.strip()), "")
            if error.status == 2:
                raise UsageError(
                    f"{file.name}: {last.strip()}", hint=f"to pass arguments, run: hidl workload new {file} -- ARG..."
                ) from None
            if not output.is_file():
                return ProgramOptions(problem=f"the program failed before reading its options: {last.strip()}")
        return _read(output)


def _read(file: Path) -> ProgramOptions:
    try:
        if file.stat().st_size > _LARGEST:
            return ProgramOptions(problem="the program has too many options")
        document = read_json(file)
        if document.pop("schema", None) != SCHEMA:
            raise ValueError
        return ProgramOptions.model_validate(document)
    except FileNotFoundError:
        return ProgramOptions(problem="the program ended without reading its options")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ProgramOptions(problem="the options of the program cannot be read")


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
    """Draft a workload for a command.

    Args:
        name: Name of the workload.
        command: Command that every rank starts.
        given: Arguments to use unchanged if the program's options are unknown.
        options: The program's options, which become parameters; None if they are unknown.
        directory: Directory in which the program starts.
        stack: Name of the stack; None selects the default.
        scaling: How the program scales; None selects the default.
        uses_mpi: Whether the program uses MPI.
    """
    found = _Arguments()
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
    """Load the draft as ``hidl run`` does; raises ``InvalidInput`` if, for example, arguments contain braces."""
    with tempfile.TemporaryDirectory(prefix="hidl-") as directory:
        file = Path(directory, f"{name}.yaml")
        file.write_text(text, encoding="utf-8")
        return valid(examine(RULES, at_path("workload", file)))


def _add(found: _Arguments, option: Option) -> None:
    """Add the words of an option, and a parameter if the option has a single value."""
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
        return "it does not have exactly one value; if given, its values are in `arguments`"
    return "it has no default; pass it after --, or add it to `arguments`"


def _is_identifier(name: str) -> bool:
    try:
        TypeAdapter(Identifier).validate_python(name)
    except ValidationError:
        return False
    return True


def _line(text: str) -> str:
    line = comment(" ".join(text.split()))
    return line if len(line) <= _MOST_TEXT else f"{line[: _MOST_TEXT - 3]}..."

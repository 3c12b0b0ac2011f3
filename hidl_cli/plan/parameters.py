"""Parse the values of ``--set name=value`` and ``--matrix name=value,value``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from math import isfinite

from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.plan.workload import Parameter, Program, Value, Workload
from hidl_cli.redaction import redact_variable
from hidl_cli.site.schema import NodeType
from hidl_cli.tuning.judge import COMPARED, DEFAULT

#: ``{name}`` is replaced with the value. ``{name?word}`` is replaced with the word, or omitted if the value is false, 0
#: or empty.
PLACEHOLDER = re.compile(r"\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(\?(?P<word>[^{}]+))?\}")


#: Placeholders for a step's size in the words of programs with ``arguments``. A parameter with the same name takes
#: precedence.
SIZES = ("ranks", "nodes")


def command(program: Program, values: Mapping[str, Value]) -> list[str]:
    """Return the program's command, in which placeholders are replaced if the program has ``arguments``."""
    words = program.command or []
    return list(words) if program.arguments is None else list(_fill(words, values, {}))


def arguments(program: Program, values: Mapping[str, Value], parameters: Mapping[str, Parameter]) -> list[str]:
    """Return the arguments that follow the command (default: ``--name=value`` for each parameter).

    ``parameters`` are the workload's parameters, whose values may each be replaced with several ``words``.
    """
    if program.arguments is None:
        return [f"--{name}={_text(value)}" for name, value in values.items()]
    return list(_fill(program.arguments, values, parameters))


def _fill(words: list[str], values: Mapping[str, Value], parameters: Mapping[str, Parameter]) -> Iterator[str]:
    for word in words:
        alone = PLACEHOLDER.fullmatch(word)
        name = alone["name"] if alone and alone["name"] in values else None
        if alone and name and alone["word"]:
            if values[name]:
                yield alone["word"]
        elif name and name in parameters and (several := parameters[name].words.get(str(values[name]))) is not None:
            yield from several
        else:
            yield PLACEHOLDER.sub(lambda found: _replacement(found, values), word)


def _replacement(found: re.Match[str], values: Mapping[str, Value]) -> str:
    """Return the value of a placeholder. Other text in braces, such as in awk programs, is returned unchanged."""
    return found[0] if found["word"] or found["name"] not in values else _text(values[found["name"]])


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def resolve(workload: Workload, assignments: Sequence[str]) -> dict[str, Value]:
    """Return all parameters of a workload, with the values from ``assignments`` (``name=value``; the last one wins).

    Raises ``InvalidInput``, which lists all errors in the assignments.
    """
    values: dict[str, Value] = {name: parameter.default for name, parameter in workload.parameters.items()}
    problems: list[Problem] = []
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        parameter = workload.parameters.get(name)
        if not equals:
            problems.append(Problem(f"--set {assignment!r} has no '='", "name=value"))
        elif parameter is None:
            problems.append(_unknown(name, workload.parameters))
        else:
            try:
                values[name] = parse_value(parameter, text)
            except ValueError as error:
                problems.append(Problem(f"--set {name}: invalid value {text!r}", str(error)))
    if problems:
        raise InvalidInput(
            f"{len(problems)} invalid --set value(s) for workload {workload.name}",
            problems=problems,
            hint=f"to list its parameters, run: hidl workload show {workload.name}",
        )
    return values


def gpu_defaults(workload: Workload, node: NodeType, given: Collection[str]) -> dict[str, Value]:
    """Return the GPU-specific default values for a node type, except for parameters in ``given``."""
    found: dict[str, Value] = {}
    for name, parameter in workload.parameters.items():
        fitting = (each for each in parameter.on_gpus if each.fits(node.gpu_arch, node.gpu_memory_gib))
        if name not in given and (first := next(fitting, None)):
            found[name] = first.value
    return found


def expand_matrix(workload: Workload, matrix: Sequence[str]) -> list[dict[str, Value]]:
    """Return all combinations of the values in ``matrix`` (``name=value,value``); the last name varies fastest.

    ``mpi.VARIABLE`` is a run-time variable of the MPI library. It is compared with its default, which comes first. Its
    values may contain commas if they are separated by bars (``rc,sm|tcp,sm``). ``merge_layers`` checks the variable
    later.

    Raises ``InvalidInput``, which lists all errors: unknown or repeated names, invalid, repeated or single values, and
    parameters combined with variables.
    """
    axes: dict[str, list[Value]] = {}
    problems: list[Problem] = []
    for word in matrix:
        name, equals, text = word.partition("=")
        parameter = workload.parameters.get(name)
        if not equals:
            problems.append(Problem(f"--matrix {word!r} has no '='", "name=value,value"))
        elif parameter is None and not name.startswith(COMPARED):
            problems.append(_unknown(name, workload.parameters, "--matrix"))
        elif name in axes:
            problems.append(Problem(f"--matrix {name}: given twice", f"a single --matrix {name}=VALUE,VALUE"))
        elif parameter is None:
            axes[name] = [DEFAULT, *(value for value in split_values(text) if value != DEFAULT)]
            if len(set(axes[name])) < len(axes[name]) or len(axes[name]) < 2:
                problems.append(Problem(f"--matrix {word!r}: too few different values", "one or more different values"))
        else:
            axes[name] = []
            for value in text.split(","):
                try:
                    axes[name].append(parse_value(parameter, value))
                except ValueError as error:
                    problems.append(Problem(f"--matrix {name}: invalid value {value!r}", str(error)))
            if len(set(axes[name])) < len(axes[name]) or len(text.split(",")) < 2:
                problems.append(Problem(f"--matrix {word!r}: too few different values", "two or more different values"))
    if any(name.startswith(COMPARED) for name in axes) and not all(name.startswith(COMPARED) for name in axes):
        others = ", ".join(name for name in axes if not name.startswith(COMPARED))
        problems.append(
            Problem(
                f"--matrix: {others} cannot be combined with run-time variables", f"--set {others}=VALUE, or two runs"
            )
        )
    if problems:
        raise InvalidInput(
            f"{len(problems)} invalid --matrix value(s) for workload {workload.name}",
            problems=problems,
            hint=f"to list its parameters, run: hidl workload show {workload.name}",
        )
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def split_values(text: str) -> list[str]:
    """Split the values of a run-time variable at bars, or at commas if there are no bars."""
    return [value for value in text.split("|") if value] if "|" in text else text.split(",")


def matrix_word(name: str, values: Sequence[object]) -> str:
    """Return the ``--matrix`` argument for these values."""
    words = [str(value) for value in values]
    if name.startswith(COMPARED) and any("," in word for word in words):
        return f"{name}={'|'.join(words)}|"
    return f"{name}={','.join(words)}"


def parse_value(parameter: Parameter, text: str) -> Value:
    """Parse a parameter value; raises ``ValueError`` with the expected form if it is invalid."""
    if "\0" in text:
        raise ValueError("text without NUL characters")
    if parameter.type == "str":
        return text
    if parameter.type == "choice":
        if text not in parameter.choices:
            raise ValueError("one of " + ", ".join(parameter.choices))
        return text
    if parameter.type == "bool":
        if text.lower() not in _BOOLEANS:
            raise ValueError("true or false")
        return _BOOLEANS[text.lower()]
    return _number(parameter, text)


def format_parameters(point: Mapping[str, Value]) -> str:
    """Format parameters as typed, without secrets: ``framework=torch backend=mpi4py``."""
    return " ".join(f"{name}={redact_variable(name, str(value))}" for name, value in point.items())


def _number(parameter: Parameter, text: str) -> int | float:
    kind = {"int": "a whole number", "float": "a number"}[parameter.type]
    at_least = "" if parameter.min is None else f" of at least {parameter.min:g}"
    at_most = "" if parameter.max is None else f"{' and' if at_least else ' of'} at most {parameter.max:g}"
    expected = f"{kind}{at_least}{at_most}"
    try:
        value = int(text) if parameter.type == "int" else float(text)
    except ValueError:
        raise ValueError(expected) from None
    too_small = parameter.min is not None and value < parameter.min
    too_large = parameter.max is not None and value > parameter.max
    if not isfinite(value) or too_small or too_large:
        raise ValueError(expected)
    return value


def _unknown(name: str, known: Mapping[str, Parameter], option: str = "--set") -> Problem:
    near = get_close_matches(name, known, 1)
    expected = "one of " + ", ".join(known) if known else f"no {option}: the workload has no parameters"
    return Problem(f"{option} {name}: unknown parameter", expected, suggestion=near[0] if near else None)

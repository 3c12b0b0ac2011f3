"""``--set name=value`` and ``--matrix name=value,value``: from words to typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from math import isfinite

from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.findings import Finding
from hidl_cli.runs.workload import Parameter, Value, Workload

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def resolve(workload: Workload, assignments: Sequence[str]) -> dict[str, Value]:
    """Return all parameters of ``workload``: the defaults, changed by ``assignments`` (``name=value``; the last wins).

    Raises ``InvalidInput`` with every fault of every assignment.
    """
    values: dict[str, Value] = {name: parameter.default for name, parameter in workload.parameters.items()}
    findings: list[Finding] = []
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        parameter = workload.parameters.get(name)
        if not equals:
            findings.append(Finding(f"--set {assignment!r} has no '='", "name=value"))
        elif parameter is None:
            findings.append(_unknown(name, workload.parameters))
        else:
            try:
                values[name] = read(parameter, text)
            except ValueError as error:
                findings.append(Finding(f"--set {name}: {text!r} is not valid", str(error)))
    if findings:
        raise InvalidInput(
            f"{len(findings)} value(s) of --set do not fit workload {workload.name}",
            findings=findings,
            hint=f"hidl workload show {workload.name}",
        )
    return values


def points(workload: Workload, matrix: Sequence[str]) -> list[dict[str, Value]]:
    """Return every combination of the values in ``matrix`` (``name=value,value``), the last name changing quickest.

    Raises ``InvalidInput`` with every fault: an unknown name, one given twice, a value that is not valid or comes
    twice, a single value.
    """
    axes: dict[str, list[Value]] = {}
    findings: list[Finding] = []
    for word in matrix:
        name, equals, text = word.partition("=")
        parameter = workload.parameters.get(name)
        if not equals:
            findings.append(Finding(f"--matrix {word!r} has no '='", "name=value,value"))
        elif parameter is None:
            findings.append(_unknown(name, workload.parameters, "--matrix"))
        elif name in axes:
            findings.append(Finding(f"--matrix {name}: it is given twice", "all its values in one word"))
        else:
            axes[name] = []
            for value in text.split(","):
                try:
                    axes[name].append(read(parameter, value))
                except ValueError as error:
                    findings.append(Finding(f"--matrix {name}: {value!r} is not valid", str(error)))
            if len(set(axes[name])) < len(axes[name]) or len(text.split(",")) < 2:
                findings.append(Finding(f"--matrix {word!r} does not compare", "two or more different values"))
    if findings:
        raise InvalidInput(
            f"{len(findings)} value(s) of --matrix do not fit workload {workload.name}",
            findings=findings,
            hint=f"hidl workload show {workload.name}",
        )
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def read(parameter: Parameter, text: str) -> Value:
    """Read one value; ``ValueError`` says what was expected."""
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


def in_words(point: Mapping[str, Value]) -> str:
    """Parameters as a person writes them: ``framework=torch backend=mpi4py``."""
    return " ".join(f"{name}={value}" for name, value in point.items())


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


def _unknown(name: str, known: Mapping[str, Parameter], option: str = "--set") -> Finding:
    near = get_close_matches(name, known, 1)
    expected = "one of " + ", ".join(known) if known else f"no {option}: the workload has no parameters"
    return Finding(f"{option} {name}: there is no such parameter", expected, suggestion=near[0] if near else None)

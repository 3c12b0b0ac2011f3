"""What must hold across the fields of a workload, beside its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from hidl_cli.inputs.faults import Fault, mapping, nearest, one_of
from hidl_cli.inputs.findings import clipped
from hidl_cli.inputs.load import Rules
from hidl_cli.inputs.tree import describe
from hidl_cli.runs.words import PLACEHOLDER
from hidl_cli.runs.workload import Workload

_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
_DIRECTION = {"weak": "higher", "strong": "lower"}


def one_program(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Exactly one of ``module`` and ``command`` says what is started."""
    for path, program in _programs(data):
        given = [key for key in ("module", "command") if program.get(key) is not None]
        if len(given) != 1:
            message = "both `module` and `command` are given" if given else "neither `module` nor `command` is given"
            yield Fault(path, message, "exactly one of `module` and `command`", on_key=True)


def estimated_program(data: Mapping[str, Any]) -> Iterator[Fault]:
    """What ``estimate`` is told about is a module: it imports it."""
    for _, program in _programs(data):
        if data.get("estimate") is not None and program.get("command") is not None:
            yield Fault(("estimate",), "a program that is a `command` cannot be estimated", "a program with `module`")


def placeholders(data: Mapping[str, Any]) -> Iterator[Fault]:
    """What ``arguments`` names in braces, and ``command`` beside them, are parameters."""
    known = mapping(data, "parameters")
    for path, program in _programs(data):
        if not isinstance(program.get("arguments"), list):
            continue
        for key in ("command", "arguments"):
            words = program.get(key)
            for index, word in enumerate(words if isinstance(words, list) else []):
                yield from _placeholders((*path, key, index), word, known)


def _placeholders(path: tuple[str | int, ...], word: Any, known: Mapping[str, Any]) -> Iterator[Fault]:
    for found in PLACEHOLDER.finditer(word) if isinstance(word, str) else ():
        if found["name"] not in known:
            message = f"there is no parameter called `{clipped(found['name'])}`"
            yield Fault(path, message, one_of(known), nearest(found["name"], known))
        if found["word"] and found[0] != word:
            yield Fault(path, f"`{clipped(found[0])}` is only a part of its word", "{name?word} as a word of its own")


def _programs(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    """``program`` and its alternatives, as far as they are mappings, each with its place."""
    others = data.get("alternatives")
    if isinstance(data.get("program"), dict):
        yield ("program",), data["program"]
    for index, other in enumerate(others if isinstance(others, list) else []):
        if isinstance(other, dict):
            yield ("alternatives", index), other


def parameters(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Choices, limits and defaults of a parameter agree with its type and with one another."""
    known = mapping(data, "parameters")
    for name in known:
        yield from _choices(name, mapping(known, name))
        yield from _limits(name, mapping(known, name))
        if "default" in mapping(known, name):
            yield from _value(("parameters", name, "default"), mapping(known, name), known[name]["default"])


def conditions(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Each ``when`` names parameters and values that they can have."""
    known = mapping(data, "parameters")
    for key in ("stacks", "alternatives"):
        choices = data.get(key)
        for index, choice in enumerate(choices if isinstance(choices, list) else []):
            for name, value in mapping(choice, "when").items():
                path = (key, index, "when", name)
                if name not in known:
                    message = f"there is no parameter called `{clipped(name)}`"
                    yield Fault(path, message, one_of(known), nearest(name, known), on_key=True)
                else:
                    yield from _value(path, mapping(known, name), value)


def scaling_metric(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Efficiency is computed from a metric of this workload, one that grows (weak) or shrinks (strong) with ranks."""
    scaling, metrics = mapping(data, "scaling"), mapping(data, "metrics")
    name, kind = scaling.get("metric"), scaling.get("kind")
    if not isinstance(name, str):
        return
    if name not in metrics:
        message = f"there is no metric called `{clipped(name)}`"
        yield Fault(("scaling", "metric"), message, one_of(metrics), nearest(name, metrics))
    wanted = _DIRECTION.get(kind) if isinstance(kind, str) else None
    better = mapping(metrics, name).get("better")
    if wanted and isinstance(better, str) and better in _DIRECTION.values() and better != wanted:
        message = f"{kind} scaling is judged by a metric that is better {wanted}, and `{name}` is better {better}"
        yield Fault(("scaling", "metric"), message, f"a metric that is better {wanted}")
    if mapping(metrics, name).get("equal_on_all_ranks") is True:
        message = f"`{name}` is a value that all ranks must agree on, no measure of performance"
        yield Fault(("scaling", "metric"), message, "a metric without `equal_on_all_ranks`")


def tuning(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Each MPI family reads the variables that are set for it, and their values fit."""
    if data.get("tuning"):
        from hidl_cli.tuning import checks  # the catalogue is read for files that have any tuning

        yield from checks.by_family(data)


def _choices(name: str, parameter: Mapping[str, Any]) -> Iterator[Fault]:
    path = ("parameters", name)
    kind, choices = parameter.get("type"), parameter.get("choices", [])
    if kind == "choice" and not choices:
        yield Fault(path, f"parameter `{name}` has type choice, but no `choices`", "`choices: [...]`", on_key=True)
    if kind in _TYPES and choices:
        yield Fault(
            (*path, "choices"), f"type {kind} takes no `choices`", "`type: choice`, or no `choices`", on_key=True
        )


def _limits(name: str, parameter: Mapping[str, Any]) -> Iterator[Fault]:
    kind, lowest, highest = (parameter.get(key) for key in ("type", "min", "max"))
    for key in ("min", "max"):
        if parameter.get(key) is not None and kind in ("str", "bool", "choice"):
            yield Fault(("parameters", name, key), f"type {kind} takes no `{key}`", "type int or float", on_key=True)
    if _is_number(lowest) and _is_number(highest) and lowest > highest:
        yield Fault(("parameters", name, "min"), f"min ({lowest}) is more than max ({highest})", f"at most {highest}")


def _value(path: tuple[str | int, ...], parameter: Mapping[str, Any], value: Any) -> Iterator[Fault]:
    """What is wrong with a parameter's value, where its type and limits are themselves in order."""
    kind, choices = parameter.get("type"), parameter.get("choices")
    if kind == "choice" and isinstance(choices, list) and choices and value not in choices:
        words = [str(choice) for choice in choices]
        yield Fault(path, f"`{clipped(str(value))}` is none of the choices", one_of(words), nearest(value, words))
    if kind not in _TYPES or isinstance(value, dict | list):
        return
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
        yield Fault(path, f"the value is {describe(value)}, but the parameter's type is {kind}", _WORDS[kind])
    elif _is_number(value) and not any(_limits("", parameter)):
        if _is_number(lowest := parameter.get("min")) and value < lowest:
            yield Fault(path, f"{value} is less than min", f"at least {lowest}")
        if _is_number(highest := parameter.get("max")) and value > highest:
            yield Fault(path, f"{value} is more than max", f"at most {highest}")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: What a workload's file must satisfy.
RULES = Rules(
    "workload",
    Workload,
    (one_program, estimated_program, placeholders, parameters, conditions, scaling_metric, tuning),
)

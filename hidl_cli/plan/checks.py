"""Rules for workload files that the schema cannot express, and a function that loads workloads by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import ValidationError

from hidl_cli.inputs.load import Rules, examine, load, valid
from hidl_cli.inputs.overlay import at_path
from hidl_cli.inputs.problems import Fault, clipped, mapping, nearest, one_of
from hidl_cli.inputs.source import describe
from hidl_cli.plan.parameters import PLACEHOLDER, SIZES
from hidl_cli.plan.workload import Mistake, Pattern, Workload, captures_of, mistakes

_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}


def one_program(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require exactly one of ``module`` and ``command``."""
    for path, program in _programs(data):
        given = [key for key in ("module", "command") if program.get(key) is not None]
        if len(given) != 1:
            message = "both `module` and `command` are given" if given else "neither `module` nor `command` is given"
            yield Fault(path, message, "exactly one of `module` and `command`", on_key=True)


def estimated_program(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require ``module`` for all programs of a workload with ``estimate``, because estimating imports the modules."""
    for _, program in _programs(data):
        if data.get("estimate") is not None and program.get("command") is not None:
            yield Fault(("estimate",), "a program with `command` cannot be estimated", "a program with `module`")


def placeholders(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require that each placeholder in ``arguments`` and ``command`` is a parameter or a size."""
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
        if found["name"] not in known and (found["word"] or found["name"] not in SIZES):
            message = f"unknown parameter `{clipped(found['name'])}`"
            yield Fault(path, message, one_of(known), nearest(found["name"], known))
        if found["word"] and found[0] != word:
            yield Fault(path, f"`{clipped(found[0])}` must be a separate word", "{name?word} as a separate word")


def _programs(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    """Yield the path and the contents of ``program`` and of each alternative, skipping those that are not mappings."""
    others = data.get("alternatives")
    if isinstance(data.get("program"), dict):
        yield ("program",), data["program"]
    for index, other in enumerate(others if isinstance(others, list) else []):
        if isinstance(other, dict):
            yield ("alternatives", index), other


def patterns(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check that each pattern is valid and extracts declared metrics, and that each metric has only one pattern."""
    known = mapping(data, "metrics")
    units = {name: unit for name in known if isinstance(unit := mapping(known, name).get("unit"), str)}
    for path, program in _programs(data):
        found: dict[str, int] = {}
        given = program.get("patterns")
        for index, entry in enumerate(given if isinstance(given, list) else []):
            at = (*path, "patterns", index)
            pattern = _as_pattern(entry)
            if pattern is None:
                continue
            wrong = mistakes(pattern, units)
            yield from (Fault((*at, each.key), each.message, each.expected) for each in wrong)
            for name in () if wrong else _finds(pattern):
                key = (*at, "metric" if pattern.metric == name else "pattern")
                if name not in known:
                    message = f"unknown metric `{clipped(name)}`"
                    yield Fault(key, message, one_of(known), nearest(name, known))
                elif name in found:
                    yield Fault(key, f"patterns[{found[name]}] also finds `{name}`", "one pattern for each metric")
                found.setdefault(name, index)


def _as_pattern(entry: Any) -> Pattern | None:
    """Return a pattern without its invalid keys, or None if the expression itself is invalid."""
    try:
        return Pattern.model_validate(entry)
    except ValidationError as error:
        wrong = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
        if not isinstance(entry, dict) or "pattern" in wrong:
            return None
        return Pattern.model_validate({key: value for key, value in entry.items() if key not in wrong})


def _finds(pattern: Pattern) -> list[str]:
    try:
        return [capture.metric for capture in captures_of(pattern.pattern, pattern.metric)]
    except Mistake:
        return []


def parameters(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check that the choices, limits and defaults of each parameter match its type."""
    known = mapping(data, "parameters")
    for name in known:
        yield from _choices(name, mapping(known, name))
        yield from _limits(name, mapping(known, name))
        if "default" in mapping(known, name):
            yield from _value(("parameters", name, "default"), mapping(known, name), known[name]["default"])
        on_gpus = mapping(known, name).get("on_gpus")
        for index, each in enumerate(on_gpus if isinstance(on_gpus, list) else []):
            path = ("parameters", name, "on_gpus", index, "value")
            yield from _value(path, mapping(known, name), each.get("value") if isinstance(each, dict) else None)


def conditions(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check that each ``when`` contains valid values and refers only to parameters without ``on_gpus``."""
    known = mapping(data, "parameters")
    for key in ("stacks", "alternatives", "devices"):
        choices = data.get(key)
        for index, choice in enumerate(choices if isinstance(choices, list) else []):
            for name, value in mapping(choice, "when").items():
                path = (key, index, "when", name)
                if name not in known:
                    message = f"unknown parameter `{clipped(name)}`"
                    yield Fault(path, message, one_of(known), nearest(name, known), on_key=True)
                elif mapping(known, name).get("on_gpus"):
                    message = f"parameter `{name}` has other defaults on GPUs"
                    yield Fault(path, message, "a parameter without `on_gpus`", on_key=True)
                elif isinstance(value, list):
                    for place, each in enumerate(value):
                        yield from _value((*path, place), mapping(known, name), each)
                else:
                    yield from _value(path, mapping(known, name), value)


def elastic_parameters(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check that ``elastic`` contains valid values and refers only to parameters."""
    known, elastic = mapping(data, "parameters"), mapping(data, "elastic")
    named: list[tuple[tuple[str | int, ...], Any]] = [
        (("elastic", "when", name), name) for name in mapping(elastic, "when")
    ]
    requires = elastic.get("requires")
    named += [
        (("elastic", "requires", at), each) for at, each in enumerate(requires if isinstance(requires, list) else [])
    ]
    named += [(("elastic", "batch"), elastic.get("batch"))]
    for path, name in named:
        if isinstance(name, str) and name not in known:
            message = f"unknown parameter `{clipped(name)}`"
            yield Fault(path, message, one_of(known), nearest(name, known), on_key="when" in path)
    for name, value in mapping(elastic, "when").items():
        if name in known:
            for each in value if isinstance(value, list) else [value]:
                yield from _value(("elastic", "when", name), mapping(known, name), each)


def scaling_metric(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check that ``scaling`` names one of the workload's metrics, which must be a rate for weak scaling."""
    scaling, metrics = mapping(data, "scaling"), mapping(data, "metrics")
    name, kind = scaling.get("metric"), scaling.get("kind")
    if not isinstance(name, str):
        return
    if name not in metrics:
        message = f"unknown metric `{clipped(name)}`"
        yield Fault(("scaling", "metric"), message, one_of(metrics), nearest(name, metrics))
    if kind == "weak" and mapping(metrics, name).get("better") == "lower":
        message = f"weak scaling requires a rate, for which higher is better, but lower is better for `{name}`"
        yield Fault(("scaling", "metric"), message, "a metric for which higher is better")
    if mapping(metrics, name).get("equal_on_all_ranks") is True:
        message = f"`{name}` has the same value on all ranks, so it cannot measure performance"
        yield Fault(("scaling", "metric"), message, "a metric without `equal_on_all_ranks`")


def tuning(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check the names and values of the run-time variables for each family of MPI libraries."""
    if data.get("tuning"):
        from hidl_cli.tuning.judge import check_by_family  # takes 13 ms, and few files contain tuning

        yield from check_by_family(data)


def _choices(name: str, parameter: Mapping[str, Any]) -> Iterator[Fault]:
    path = ("parameters", name)
    kind, choices = parameter.get("type"), parameter.get("choices", [])
    if kind == "choice" and not choices:
        yield Fault(path, f"parameter `{name}` has type choice, but no `choices`", "`choices: [...]`", on_key=True)
    if kind in _TYPES and choices:
        message = f"type {kind} does not support `choices`"
        yield Fault((*path, "choices"), message, "`type: choice`, or no `choices`", on_key=True)
    known = [str(choice) for choice in choices] if isinstance(choices, list) else []
    for choice in mapping(parameter, "words"):
        if choice not in known:
            message = f"`{clipped(choice)}` is not one of the choices"
            yield Fault((*path, "words", choice), message, one_of(known), nearest(choice, known), on_key=True)


def _limits(name: str, parameter: Mapping[str, Any]) -> Iterator[Fault]:
    kind, lowest, highest = (parameter.get(key) for key in ("type", "min", "max"))
    for key in ("min", "max"):
        if parameter.get(key) is not None and kind in ("str", "bool", "choice"):
            message = f"type {kind} does not support `{key}`"
            yield Fault(("parameters", name, key), message, "type int or float", on_key=True)
    if _is_number(lowest) and _is_number(highest) and lowest > highest:
        yield Fault(("parameters", name, "min"), f"min ({lowest}) exceeds max ({highest})", f"at most {highest}")


def _value(path: tuple[str | int, ...], parameter: Mapping[str, Any], value: Any) -> Iterator[Fault]:
    """Yield an error if a value does not fit its parameter's type and limits, provided that these are valid."""
    if value is None or isinstance(value, dict | list):
        return  # reported by the schema
    kind, choices = parameter.get("type"), parameter.get("choices")
    if kind == "choice" and isinstance(choices, list) and choices and value not in choices:
        words = [str(choice) for choice in choices]
        yield Fault(path, f"`{clipped(str(value))}` is not one of the choices", one_of(words), nearest(value, words))
    if kind not in _TYPES:
        return
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
        yield Fault(path, f"the value is {describe(value)}, but the parameter's type is {kind}", _WORDS[kind])
    elif _is_number(value) and not any(_limits("", parameter)):
        if _is_number(lowest := parameter.get("min")) and value < lowest:
            yield Fault(path, f"{value} is less than min", f"at least {lowest}")
        if _is_number(highest := parameter.get("max")) and value > highest:
            yield Fault(path, f"{value} exceeds max", f"at most {highest}")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: All rules for workload files.
RULES = Rules(
    "workload",
    Workload,
    (
        one_program,
        estimated_program,
        placeholders,
        patterns,
        parameters,
        conditions,
        elastic_parameters,
        scaling_metric,
        tuning,
    ),
)


def load_workload(name: str) -> Workload:
    """Load a workload by its name or the path of its file, including the workloads that it extends.

    Raises ``UsageError`` if the workload is unknown, and ``InvalidInput`` if it is invalid.
    """
    file = Path(name)
    if file.suffix in (".yaml", ".yml") and file.is_file():
        return valid(examine(RULES, at_path("workload", file)))
    return load(RULES, name)

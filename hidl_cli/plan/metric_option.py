"""``--metric NAME=REGEX``: metrics that a run reads from the program's output besides those of its workload."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args

from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.inputs.fields import MAX_REGEX
from hidl_cli.plan.patterns import Pattern, Ranks, Reduction, Take, mistakes, names_of
from hidl_cli.plan.units import better_of, is_time
from hidl_cli.plan.workload import Metric, Program, Scaling, Workload

#: The efficiency that a study of such a metric must reach if its workload names none.
TARGET = 0.8

#: ``NAME=REGEX`` or ``NAME[option=value,...]=REGEX``.
_WORD = re.compile(r"(?P<name>[^=\[\]]*)(?:\[(?P<options>[^\]]*)\])?=(?P<regex>.*)", re.DOTALL)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_EXPECTED = "NAME=REGEX or NAME[unit=s,take=last]=REGEX"
_TIMES = {"second": "s", "sec": "s", "minute": "min", "hour": "h", "microsecond": "us", "millisecond": "ms"}

#: The options in brackets, with their values; None: any text.
OPTIONS: dict[str, tuple[str, ...] | None] = {
    "unit": None,
    "printed": None,
    "better": ("higher", "lower"),
    "take": get_args(Take),
    "skip": None,
    "ranks": tuple(str(each) for each in get_args(Ranks)),
    "reduce": get_args(Reduction),
    "per": ("rank",),
}


@dataclass(frozen=True)
class Asked:
    """One ``--metric``: its name, what it is, and how it is found."""

    name: str
    metric: Metric
    pattern: Pattern


def with_metrics(
    workload: Workload,
    words: Sequence[str],
    *,
    judged: bool = False,
    scaling: Literal["weak", "strong"] | None = None,
) -> Workload:
    """Return the workload with the metrics of ``--metric``; one of a name that it has is read from the output instead.

    ``judged``: a study compares the first of them; ``scaling``: how the work of the program grows. Raises
    ``InvalidInput`` with every error in all words.
    """
    if not words:
        return workload
    asked: list[Asked] = []
    problems: list[Problem] = []
    for word in words:
        found = _parse(word, workload.metrics)
        if isinstance(found, Asked):
            asked.append(found)
        else:
            problems += found
    problems += _repeated([one.name for one in asked])
    if problems:
        raise InvalidInput(
            f"{len(problems)} invalid value(s) of --metric",
            problems=problems,
            hint="for example --metric 'images_per_second=Img/sec: ([0-9.]+)'",
        )
    changes = _extended(workload, asked)
    if judged:
        changes["scaling"] = _scaling(asked[0], workload.scaling.target if workload.scaling else TARGET, scaling)
    return workload.model_copy(update=changes)


def _extended(workload: Workload, asked: Sequence[Asked]) -> dict[str, Any]:
    names = {one.name for one in asked}
    patterns = [one.pattern for one in asked]
    return {
        "metrics": {**workload.metrics, **{one.name: one.metric for one in asked}},
        "program": _with_patterns(workload.program, patterns, names),
        "alternatives": [_with_patterns(other, patterns, names) for other in workload.alternatives],
    }


def _scaling(first: Asked, target: float, kind: Literal["weak", "strong"] | None) -> Scaling:
    """Return how a study judges the metric; without ``kind``, a time is of strong scaling and a rate of weak."""
    better, unit = first.metric.better, first.metric.unit
    if better is None:
        raise InvalidInput(
            f"a study judges --metric {first.name}, and unit {unit!r} does not say which direction is better",
            hint=f"{first.name}[better=higher]=REGEX or {first.name}[better=lower]=REGEX",
        )
    if kind == "weak" and better == "lower":
        raise InvalidInput(
            f"--metric {first.name} is better lower, and weak scaling is judged by a rate that grows with the ranks",
            hint="a rate of all ranks, such as steps_per_second[printed=s/step,per=rank]=REGEX for a time per step",
        )
    return Scaling(metric=first.name, kind=kind or ("strong" if better == "lower" else "weak"), target=target)


def _with_patterns(program: Program, patterns: Sequence[Pattern], names: set[str]) -> Program:
    kept = [pattern for pattern in program.patterns if not names_of([pattern]) <= names]
    return program.model_copy(update={"patterns": [*kept, *patterns]})


def _parse(word: str, known: Mapping[str, Metric]) -> Asked | list[Problem]:
    """Read one word; the problems say everything that is wrong with it. ``known``: the metrics of the workload."""
    found = _WORD.fullmatch(word)
    if not found:
        return [Problem(f"--metric {word!r} has no '='", _EXPECTED)]
    name, regex = found["name"].strip(), found["regex"]
    options, problems = _options(name, found["options"] or "")
    if not _NAME.fullmatch(name):
        problems.insert(0, _problem(name or word, "invalid metric name", "lower-case letters, digits and _"))
    if not regex or len(regex) > MAX_REGEX:
        what = f"the pattern has more than {MAX_REGEX} characters" if regex else "no pattern"
        return [*problems, _problem(name, what, "a regular expression with one group")]
    own = known.get(name)
    unit = options.pop("unit", None) or (own.unit if own else unit_of(name))
    better = options.pop("better", None) or (own.better if own and own.unit == unit else better_of(unit))
    pattern = Pattern.model_validate({"pattern": regex, "metric": name if _NAME.fullmatch(name) else None, **options})
    wrong = mistakes(pattern.model_copy(update={"metric": name}), {name: unit})
    problems += [_problem(name, each.message, each.expected) for each in wrong]
    if problems:
        return problems
    return Asked(name, Metric(unit=unit, better=better), pattern)


def _options(name: str, text: str) -> tuple[dict[str, Any], list[Problem]]:
    options: dict[str, Any] = {}
    problems = []
    for word in filter(None, (each.strip() for each in text.split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if key not in OPTIONS:
            near = get_close_matches(key, OPTIONS, 1)
            expected = "one of " + ", ".join(OPTIONS)
            problems.append(_problem(name, f"unknown option {key!r}", expected, near[0] if near else None))
        elif not equals or not value:
            problems.append(_problem(name, f"option {key} has no value", f"{key}=VALUE"))
        elif key in options:
            problems.append(_problem(name, f"option {key} given twice", "one value"))
        elif (values := OPTIONS[key]) and value not in values:
            near = get_close_matches(value, values, 1)
            expected = "one of " + ", ".join(values)
            problems.append(_problem(name, f"invalid {key} {value!r}", expected, near[0] if near else None))
        elif key == "skip" and not value.isdecimal():
            problems.append(_problem(name, f"invalid skip {value!r}", "a whole number"))
        else:
            options[key] = int(value) if key == "skip" or value == "0" else value
    return options, problems


def _problem(name: str, message: str, expected: str, suggestion: str | None = None) -> Problem:
    return Problem(f"--metric {name}: {message}", expected, suggestion=suggestion)


def _repeated(names: Sequence[str]) -> Iterator[Problem]:
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield _problem(name, "given twice", "another name")


def unit_of(name: str) -> str:
    """Return the unit in a metric's name: ``images/s`` of ``images_per_second``; ``1`` if it has none."""
    above, per, below = name.rpartition("_per_")
    if per:
        return f"{_TIMES.get(above.removesuffix('s'), above.replace('_', ' '))}/{_TIMES.get(below, below)}"
    last = name.rpartition("_")[2]
    return _TIMES.get(last.removesuffix("s"), last if is_time(last) else "1")

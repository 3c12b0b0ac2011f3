"""Patterns that read metrics from what a program prints: their schema, and what makes one valid.

Patterns are regular expressions of RE2: matching takes time linear in the text, whatever the pattern. Back-references
and look-around, which cannot be matched so, are errors.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from hidl_cli.errors import MissingPrecondition
from hidl_cli.inputs.fields import Identifier, NonNegative, Regex, Strict
from hidl_cli.plan.units import convert

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Take = Literal["mean", "last", "first", "min", "max", "sum"]
Ranks = Literal["all", "each", 0]
Reduction = Literal["mean", "sum", "min", "max"]

#: The group that holds the unit of the only number; that of the number NAME is NAME_unit.
UNIT = "unit"

_MEMORY = 32 << 20  # bytes for each pattern's automata, filled as needed
_METRIC = re.compile(r"[a-z][a-z0-9_]*")
#: What RE2 says of operators that it has not, in the words of those who write them.
_UNSUPPORTED = (
    (re.compile(r"\(\?<?[=!]"), "look-ahead and look-behind are"),
    (re.compile(r"\\[1-9]|\(\?P=|\\[gk][<{]"), "a back-reference is"),
    (re.compile(r"\(\?>|[*+?}]\+"), "a possessive or atomic group is"),
)
_TEXT_ANCHOR = re.compile(r"(?<!\\)(?:\\\\)*\\([AzZ])")


class Pattern(Strict):
    """A regular expression that finds metrics in the program's output, line by line."""

    pattern: Regex = Field(
        description="a regular expression (RE2's syntax: no back-references, no look-around). One group holds the "
        "number, or named groups (?P<name>...) each the number of the metric of that name; a group named `unit` (or "
        "name_unit) holds the unit as printed"
    )
    metric: Identifier | None = Field(None, description="the metric that a single unnamed group holds")
    printed: str | None = Field(
        None, description="the unit of the printed number, if not that of the metric; the number is converted"
    )
    take: Take = Field("mean", description="the metric's value if there are several numbers; all are its samples")
    skip: NonNegative = Field(0, description="how many of the first numbers to leave out, such as those of warm-up")
    ranks: Ranks = Field(
        "all",
        description="whose output is searched: all: that of the launch as a whole; 0: that of rank 0 alone; each: that "
        "of every rank, each must have a match, and the samples are one for each rank",
    )
    reduce: Reduction = Field("mean", description="with `ranks: each`: the metric's value from those of the ranks")
    per: Literal["rank"] | None = Field(
        None, description="rank: the number is what each rank does; it is multiplied by the number of ranks"
    )


@dataclass(frozen=True)
class Capture:
    """A metric and the numbers of its groups: the number's and the unit's (None: not printed)."""

    metric: str
    group: int
    unit: int | None = None


@dataclass(eq=False)
class Mistake(Exception):
    """What is wrong with a pattern, and what was expected; ``key``: the key of ``Pattern`` that is wrong."""

    message: str
    expected: str
    key: str = "pattern"


@lru_cache(maxsize=64)
def compile_pattern(text: str) -> Any:
    """Return the compiled RE2 expression, which matches within lines.

    Raises ``Mistake``, or ``MissingPrecondition`` if RE2 is not installed.
    """
    try:
        import re2  # 5 ms, which files without patterns need not spend
    except ImportError as error:
        raise MissingPrecondition(
            f"metrics by patterns require the Python package google-re2: {error}",
            hint=f"{sys.executable} -m pip install google-re2; or let the program write $HIDL_METRICS",
        ) from error
    anchor = _TEXT_ANCHOR.search(text)
    if anchor:
        raise Mistake(f"`\\{anchor[1]}` is unsupported: lines are matched one by one", "^ or $")
    options = re2.Options()
    options.max_mem, options.never_nl, options.log_errors = _MEMORY, True, False
    try:
        return re2.compile(f"(?m){text}", options)
    except re2.error as error:
        raise _invalid(text, error.args[0]) from None


def _invalid(text: str, said: bytes | str) -> Mistake:
    message = (said.decode(errors="replace") if isinstance(said, bytes) else said).replace("(?m)", "", 1)
    for operator, what in _UNSUPPORTED:
        if operator.search(text):
            return Mistake(
                f"{what} unsupported: patterns are matched in linear time ({message})",
                "RE2's syntax: https://github.com/google/re2/wiki/Syntax",
            )
    return Mistake(f"invalid regular expression: {message}", "RE2's syntax: https://github.com/google/re2/wiki/Syntax")


def captures_of(pattern: str, metric: str | None) -> tuple[Capture, ...]:
    """Return the metrics that a pattern finds; raises ``Mistake``. ``metric``: the name of its only number."""
    expression = compile_pattern(pattern)
    named: dict[str, int] = dict(expression.groupindex)
    units = {name for name in named if name == UNIT or (name.endswith(f"_{UNIT}") and name[: -len(UNIT) - 1] in named)}
    numbers = {name: group for name, group in named.items() if name not in units}
    unnamed = sorted(set(range(1, expression.groups + 1)) - set(named.values()))
    for name in numbers:
        if not _METRIC.fullmatch(name):
            raise Mistake(f"group `{name}` is an invalid metric name", "lower-case letters, digits and _")
    if numbers:
        if metric is not None and set(numbers) != {metric}:
            raise Mistake(
                f"metric {metric}, but the groups are named {', '.join(numbers)}", "one unnamed group", "metric"
            )
        if UNIT in units and len(numbers) > 1:
            raise Mistake("group `unit` with several metrics", f"`{next(iter(numbers))}_unit`")
        of_unit = {name: named.get(f"{name}_{UNIT}", named.get(UNIT)) for name in numbers}
        return tuple(Capture(name, group, of_unit[name]) for name, group in numbers.items())
    if len(unnamed) != 1:
        count = f"{len(unnamed)} groups" if unnamed else "no group"
        raise Mistake(
            f"{count}: which part is the number?",
            "one group, such as `: ([0-9.]+)`; (?:...) groups without capturing",
        )
    if metric is None:
        raise Mistake("no metric for the group", "`metric: NAME`, or a named group (?P<name>...)")
    return (Capture(metric, unnamed[0], named.get(UNIT)),)


def ranks_kept(patterns: Iterable[Pattern]) -> Literal["each", "0"] | None:
    """Return the ranks whose output must be kept by itself: every one's, that of rank 0, or (None) none's."""
    asked = {pattern.ranks for pattern in patterns}
    return "each" if "each" in asked else "0" if 0 in asked else None


def names_of(patterns: Iterable[Pattern]) -> set[str]:
    """Return the metrics that valid patterns find."""
    return {capture.metric for pattern in patterns for capture in captures_of(pattern.pattern, pattern.metric)}


def mistakes(pattern: Pattern, units: Mapping[str, str]) -> list[Mistake]:
    """Return everything that is wrong with a pattern; ``units``: those of the known metrics."""
    found: list[Mistake] = []
    try:
        captures = captures_of(pattern.pattern, pattern.metric)
    except Mistake as mistake:
        return [mistake]
    if pattern.printed is not None:
        if len(captures) > 1:
            found.append(Mistake("one `printed` for several metrics", "a pattern for each metric", "printed"))
        elif captures[0].unit is not None:
            found.append(Mistake("`printed` and a group for the unit", "one of them", "printed"))
        elif captures[0].metric in units:
            found.extend(_inconvertible(pattern.printed, units[captures[0].metric]))
    if pattern.reduce != "mean" and pattern.ranks != "each":
        found.append(Mistake("`reduce` without `ranks: each`", "`ranks: each`", "reduce"))
    if pattern.per == "rank" and pattern.ranks == "each":
        found.append(Mistake("`per: rank` and `ranks: each`", "`reduce: sum` adds the numbers of all ranks", "per"))
    return found


def _inconvertible(printed: str, unit: str) -> list[Mistake]:
    try:
        convert(1.0, printed, unit)
    except ValueError as error:
        return [Mistake(str(error), f"a unit that can be converted to {unit!r}", "printed")]
    return []

"""Read metrics from a program's output by the patterns of its workload, in bounded time and memory."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path
from typing import Any

from hidl_cli.errors import MetricMissing
from hidl_cli.plan.patterns import Capture, Mistake, Pattern, captures_of, compile_pattern
from hidl_cli.plan.units import better_of, convert, is_reciprocal
from hidl_cli.plan.workload import Metric
from hidl_cli.runs.parsers.numbers import read_number
from hidl_cli.runs.parsers.output import Piece, last_lines, pieces

#: The most samples that a metric keeps: of more, every 2nd, 4th, ... is kept. Its value is that of all.
MOST_SAMPLES = 10_000
#: Seconds of CPU time after which a pattern is given up: many matches in a very long line take quadratic time.
LIMIT = 300.0

_CHECK_TIME = 4096  # matches between two looks at the clock


@dataclass
class _Numbers:
    """The numbers of one metric in one rank's output, as far as they are read."""

    skip: int
    is_rate: bool
    count: int = 0
    inverted: int = 0  # how many were printed as the reciprocal of the metric's unit
    matched: int = 0  # with those skipped
    streams: int = 0  # how many of stdout and stderr have matches
    first: float = 0.0
    last: float = 0.0
    low: float = 0.0
    high: float = 0.0
    total: float = 0.0
    reciprocals: float = 0.0
    samples: list[float] = field(default_factory=list)
    every: int = 1

    def add(self, number: float, *, inverted: bool) -> None:
        """Add a number, unless it is one of those to skip.

        ``inverted`` is True if the program printed its reciprocal (seconds per step for steps per second).
        """
        self.matched += 1
        if self.skip:
            self.skip -= 1
            return
        if not self.count:
            self.first = self.low = self.high = number
        if self.count % self.every == 0:
            self.samples.append(number)
            if len(self.samples) > MOST_SAMPLES:
                del self.samples[1::2]
                self.every *= 2
        self.count += 1
        self.last = number
        self.total += number
        self.inverted += inverted
        self.reciprocals += 1 / number if number else math.inf
        if number < self.low:
            self.low = number
        elif number > self.high:
            self.high = number

    def value(self, take: str) -> float:
        """Return the number that stands for all."""
        # A mean of reciprocals is not the reciprocal of the mean: 4 steps in 13 s are 0.308 step/s, whatever the steps'
        # own rates. A progress bar prints both (s/it below 1 it/s), and its times add up.
        by_reciprocals = self.inverted == self.count or (self.inverted > 0 and self.is_rate)
        mean = self.count / self.reciprocals if by_reciprocals else self.total / self.count
        return {
            "mean": min(max(mean, self.low), self.high),
            "last": self.last,
            "first": self.first,
            "min": self.low,
            "max": self.high,
            "sum": self.total,
        }[take]


class _Search:
    """One pattern over one output."""

    def __init__(self, pattern: Pattern, units: Mapping[str, str], ranks: int) -> None:
        self._expression = compile_pattern(pattern.pattern)
        self._captures = captures_of(pattern.pattern, pattern.metric)
        self._pattern = pattern
        self._units = units
        self._factor = ranks if pattern.per == "rank" else 1
        self._carried = 0  # bytes of the next piece that the last match of this one took
        self._began = time.process_time()
        self.found = {
            capture.metric: _Numbers(pattern.skip, better_of(units[capture.metric]) == "higher")
            for capture in self._captures
        }

    def search(self, piece: Piece) -> None:
        """Add the numbers of a piece of the output."""
        begin, self._carried = piece.start + self._carried, 0
        self._look_at_the_clock()
        for count, match in enumerate(self._expression.finditer(piece.text, begin), start=1):
            first, end = match.span()
            if first >= piece.stop:
                break
            for capture in self._captures:
                self._add(capture, match)
            self._carried = max(0, end - piece.stop)
            if count % _CHECK_TIME == 0:
                self._look_at_the_clock()
        if piece.stop > len(piece.text):
            self._carried = 0

    def _add(self, capture: Capture, match: Any) -> None:
        text = match[capture.group]
        if text is None:  # the group took no part in the match
            return
        unit = self._units[capture.metric]
        group = match[capture.unit] if capture.unit else None
        printed = group.decode(errors="replace") if group else self._pattern.printed or unit
        inverted = False
        try:
            number = read_number(text, printed)
            if printed != unit:
                inverted = is_reciprocal(printed, unit)
                number = convert(number, printed, unit)
        except (ValueError, ZeroDivisionError, OverflowError) as error:
            raise MetricMissing(
                f"pattern `{self._pattern.pattern}` (metric {capture.metric}) found "
                f"{text[:60].decode(errors='replace')!r}: {error}",
                hint="its group must hold the number alone, such as ([0-9.]+)",
            ) from None
        self.found[capture.metric].add(number * self._factor, inverted=inverted)

    def _look_at_the_clock(self) -> None:
        if time.process_time() - self._began > LIMIT:
            raise MetricMissing(
                f"pattern `{self._pattern.pattern}` took more than {LIMIT:.0f} s",
                hint="begin it with ^ and avoid .* in it, or let the program print less",
            )


def read_patterns(
    patterns: Sequence[Pattern], promised: Mapping[str, Metric], step: Path, *, ranks: int
) -> dict[str, dict[str, Any]]:
    """Return the metrics that the patterns find in the output of a step (in its directory), as ``read_metrics`` does.

    Raises ``MetricMissing``, with every pattern that matches nothing (unless no metric of it is required), if an output
    is missing, if a group holds no number, or if ``take`` or ``skip`` depends on the order of stdout and stderr.
    """
    units = {name: metric.unit for name, metric in promised.items()}
    metrics: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    unordered: list[str] = []
    for whose in dict.fromkeys(pattern.ranks for pattern in patterns):
        of_these = [pattern for pattern in patterns if pattern.ranks == whose]
        each = [_search_all(of_these, units, files, ranks) for files in outputs(step, whose, ranks)]
        for index, pattern in enumerate(of_these):
            searches = [searches[index] for searches in each]
            for metric in searches[0].found:
                numbers = [search.found[metric] for search in searches]
                without = [rank for rank, found in enumerate(numbers) if not found.count]
                if any(found.streams > 1 for found in numbers) and _depends_on_order(pattern):
                    unordered += [_describe_order(pattern, metric)] if promised[metric].required else []
                elif not without:
                    metrics[metric] = _metric(pattern, units[metric], numbers)
                elif promised[metric].required:
                    missing.append(_describe(pattern, metric, without, ranks))
    if missing:
        raise _not_found(missing, step, ranks)
    if unordered:
        raise MetricMissing(
            "\n".join(unordered), hint="make the pattern match one of them only, or redirect the other in the program"
        )
    return metrics


def outputs(step: Path, whose: object, ranks: int) -> list[tuple[Path, ...]]:
    """Return the files to search, stdout and stderr: those of the launch, of rank 0, or of each rank in turn."""
    if whose == "all":
        return [(step / "output.txt", step / "errors.txt")]
    of_ranks = range(ranks) if whose == "each" else [0]
    return [(step / "ranks" / f"{rank}.out", step / "ranks" / f"{rank}.err") for rank in of_ranks]


def _search_all(
    patterns: Sequence[Pattern], units: Mapping[str, str], files: Sequence[Path], ranks: int
) -> list[_Search]:
    try:
        searches = [_Search(pattern, units, ranks) for pattern in patterns]
    except Mistake as mistake:
        raise MetricMissing(f"a pattern of the plan cannot be used: {mistake.message}") from None
    try:
        for file in files:
            before = [(found, found.matched) for search in searches for found in search.found.values()]
            for piece in pieces(file):
                for search in searches:
                    search.search(piece)
            for found, matched in before:
                found.streams += found.matched > matched
    except OSError as error:
        raise MetricMissing(f"cannot read what the program printed: {error}") from error
    return searches


def _metric(pattern: Pattern, unit: str, numbers: Sequence[_Numbers]) -> dict[str, Any]:
    if pattern.ranks != "each":
        return {"value": numbers[0].value(pattern.take), "unit": unit, "samples": numbers[0].samples}
    samples = [found.value(pattern.take) for found in numbers]
    mean = fsum(samples) / len(samples)
    value = {"mean": mean, "sum": fsum(samples), "min": min(samples), "max": max(samples)}[pattern.reduce]
    return {"value": value, "unit": unit, "samples": samples, "ranks": list(range(len(samples)))}


def _depends_on_order(pattern: Pattern) -> bool:
    return pattern.skip > 0 or pattern.take in ("first", "last")


def _describe_order(pattern: Pattern, metric: str) -> str:
    option = f"skip={pattern.skip}" if pattern.skip else f"take={pattern.take}"
    return (
        f"metric {metric}: pattern `{pattern.pattern}` matches stdout and stderr, "
        f"and {option} requires the order of their lines, which is not recorded"
    )


def _describe(pattern: Pattern, metric: str, without: Sequence[int], ranks: int) -> str:
    skipped = f" after the first {pattern.skip}" if pattern.skip else ""
    what = f"metric {metric}: pattern `{pattern.pattern}` matches nothing{skipped}"
    if pattern.ranks != "each":
        return what + (" in the output of rank 0" if pattern.ranks == 0 else "")
    few = ", ".join(str(rank) for rank in without[:4]) + (", ..." if len(without) > 4 else "")
    return f"{what} in the output of {len(without)} of {ranks} ranks ({few})"


def _not_found(missing: Sequence[str], step: Path, ranks: int) -> MetricMissing:
    lines = []
    for file in outputs(step, "all", ranks)[0]:
        shown = last_lines(file)
        lines += [f"last lines of {file}:", *(f"  {line}" for line in shown)] if shown else []
    if not lines:
        lines = [f"the program printed nothing ({step / 'output.txt'} is empty)"]
    return MetricMissing(
        "\n".join([*missing, *lines]), hint="correct the pattern; hidl logs shows all that the program printed"
    )

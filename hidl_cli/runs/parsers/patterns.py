"""Find metrics in a program's output with the patterns of its workload, in bounded time and memory."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite
from pathlib import Path
from typing import Any

from hidl_cli.errors import MetricMissing
from hidl_cli.plan.units import better_of, convert, is_reciprocal, is_time
from hidl_cli.plan.workload import Capture, Metric, Mistake, Pattern, captures_of, compile_pattern
from hidl_cli.redaction import read_end, shown_output

_GROUPED = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?([eE][-+]?\d+)?")
_FORTRAN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[dD][-+]?\d+")
_SUFFIXED = re.compile(r"(.*[\d.])\s?(Ki|Mi|Gi|Ti|[kKMGT])")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d)(?::([0-5]?\d(?:\.\d+)?))?")
_SUFFIXES = {
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
}
_LONGEST = 100


def read_number(text: bytes, unit: str) -> float:
    """Parse a number; raises ``ValueError`` if it is invalid or not finite.

    A duration ``[[days-]hours:]minutes:seconds`` is converted to ``unit``.
    """
    if len(text) > _LONGEST:
        raise ValueError("not a number")
    try:
        number = float(text)
    except ValueError:
        number = _read(text.decode(errors="replace").strip(), unit)
    if not isfinite(number):
        raise ValueError("not a finite number")
    return number


def _read(text: str, unit: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    if _GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    if _FORTRAN.fullmatch(text):
        return float(text.lower().replace("d", "e"))
    if text.endswith("%"):
        return _read(text[:-1].rstrip(), unit)
    suffixed = _SUFFIXED.fullmatch(text)
    if suffixed:
        return _read(suffixed[1], unit) * _SUFFIXES[suffixed[2]]
    clock = _CLOCK.fullmatch(text)
    if clock and is_time(unit):
        return convert(_seconds(clock), "s", unit)
    raise ValueError("not a number")


def _seconds(clock: re.Match[str]) -> float:
    days, first, second, third = clock.groups()
    if third is None:
        return int(first) * 60 + int(second)
    return (int(days or 0) * 24 + int(first)) * 3600 + int(second) * 60 + float(third)


# Read arbitrary output, including progress bars, colors and binary data, in pieces of bounded size.


#: Number of bytes to read at once, and length in bytes of the longest line that is searched as a whole.
BLOCK = 1 << 18
#: Number of bytes at the end of each piece of a longer line that are searched again with the next piece.
OVERLAP = 1 << 12

_TAIL = 1 << 16  # bytes at the end of a file to search for the last lines
_LONG_LINE = b"(the last line has more than 64 KiB)"

# Progress bars overwrite lines after a carriage return or backspace. Some file systems fill holes with NUL bytes.
_LINE_ENDS = bytes.maketrans(b"\r\b\f\v", b"\n\n\n\n")
# Colors and other control sequences (ECMA-48), and window titles. A sequence must end on its line; otherwise one that
# is never terminated (binary data, a killed program) would swallow the following lines.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")


@dataclass(frozen=True, slots=True)
class Piece:
    """Complete lines or part of a very long one; a match only counts if it begins between ``start`` and ``stop``."""

    text: bytes
    start: int
    stop: int


def pieces(path: Path) -> Iterator[Piece]:
    """Yield the contents of a file without control sequences. Propagates ``OSError``."""
    # `held` has not been searched yet; `lead` is the byte before it, unless it begins a line.
    held = lead = b""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            body, line_end, rest = (held + _in_lines(block)).rpartition(b"\n")
            if line_end:
                text = lead + without_escapes(body)
                yield Piece(text, len(lead), len(text) + 1)
                lead = b""
            held = rest
            if len(held) > BLOCK:
                text = lead + without_escapes(held)
                stop = max(len(lead), len(text) - OVERLAP)
                yield Piece(text, len(lead), stop)
                lead, held = text[max(0, stop - 1) : stop], text[stop:]
    if held:
        text = lead + without_escapes(held)
        yield Piece(text, len(lead), len(text) + 1)


def without_escapes(text: bytes) -> bytes:
    """Remove terminal control sequences."""
    return _ESCAPES.sub(b"", text) if b"\x1b" in text else text


def last_lines(path: Path, count: int = 5, width: int = 160) -> list[str]:
    """Return a file's last non-blank lines, cleaned and shortened, or an empty list if the file cannot be read.

    Secrets are hidden before lines are shortened: nothing recognizes a part of one.
    """
    try:
        data = read_end(path, _TAIL) or (_LONG_LINE if path.stat().st_size else b"")
    except OSError:
        return []
    text = shown_output(without_escapes(_in_lines(data)).decode(errors="replace"))
    lines = ["".join(c if c.isprintable() else "?" for c in line.rstrip()[: width + 1]) for line in text.split("\n")]
    return [line if len(line) <= width else f"{line[:width]}..." for line in lines if line.strip()][-count:]


def _in_lines(block: bytes) -> bytes:
    return block.translate(_LINE_ENDS, b"\0")


#: Maximum number of samples that are stored per metric. If there are more, only every 2nd, 4th, ... is stored, but the
#: metric's value is still computed from all of them.
MOST_SAMPLES = 10_000
#: CPU time in seconds after which a search is aborted, because many matches in a very long line take quadratic time.
LIMIT = 300.0

_CHECK_TIME = 4096  # number of matches between two checks of the CPU time


@dataclass
class _Numbers:
    """Running statistics of a metric's numbers in the output of a rank."""

    skip: int
    is_rate: bool
    count: int = 0
    inverted: int = 0  # number of matches whose unit is the reciprocal of the metric's unit
    matched: int = 0  # number of matches, including skipped ones
    streams: int = 0  # number of streams (stdout and stderr) that contain matches
    first: float = 0.0
    last: float = 0.0
    low: float = 0.0
    high: float = 0.0
    total: float = 0.0
    reciprocals: float = 0.0
    samples: list[float] = field(default_factory=list)
    every: int = 1

    def add(self, number: float, *, inverted: bool) -> None:
        """Add a number unless it must be skipped; ``inverted`` means that its reciprocal was printed (s/step)."""
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
        """Return the value of the metric as selected by ``take``."""
        # The mean of reciprocals is not the reciprocal of the mean: 4 steps in 13 s are 0.308 step/s, whatever the
        # rates of the single steps. A progress bar prints both units (s/it below 1 it/s), and its times add up.
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
    """The search for a pattern in a rank's output."""

    def __init__(self, pattern: Pattern, units: Mapping[str, str], ranks: int) -> None:
        self._expression = compile_pattern(pattern.pattern)
        self._captures = captures_of(pattern.pattern, pattern.metric)
        self._pattern = pattern
        self._units = units
        self._factor = ranks if pattern.per == "rank" else 1
        self._carried = 0  # bytes of the next piece that are part of the last match
        self._began = time.process_time()
        self.found = {
            capture.metric: _Numbers(pattern.skip, better_of(units[capture.metric]) == "higher")
            for capture in self._captures
        }

    def search(self, piece: Piece) -> None:
        """Add the numbers in a piece of the output."""
        begin, self._carried = piece.start + self._carried, 0
        self._check_time()
        for count, match in enumerate(self._expression.finditer(piece.text, begin), start=1):
            first, end = match.span()
            if first >= piece.stop:
                break
            for capture in self._captures:
                self._add(capture, match)
            self._carried = max(0, end - piece.stop)
            if count % _CHECK_TIME == 0:
                self._check_time()
        if piece.stop > len(piece.text):
            self._carried = 0

    def _add(self, capture: Capture, match: Any) -> None:
        text = match[capture.group]
        if text is None:  # the group did not participate in the match
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
                f"pattern `{self._pattern.pattern}` (metric {capture.metric}) matched "
                f"{text[:60].decode(errors='replace')!r}: {error}",
                hint="the group must match only the number, such as ([0-9.]+)",
            ) from None
        self.found[capture.metric].add(number * self._factor, inverted=inverted)

    def _check_time(self) -> None:
        if time.process_time() - self._began > LIMIT:
            raise MetricMissing(
                f"pattern `{self._pattern.pattern}` took more than {LIMIT:.0f} s",
                hint="start it with ^ and avoid .* in it, or make the program print less",
            )


def read_patterns(
    patterns: Sequence[Pattern], promised: Mapping[str, Metric], step: Path, *, ranks: int
) -> dict[str, dict[str, Any]]:
    """Find metrics in the output of a step, and return them in the same form as ``read_metrics``.

    Args:
        patterns: The patterns to search for.
        promised: The metrics that the workload declares.
        step: The step's directory.
        ranks: Number of ranks.

    Raises:
        MetricMissing: A required metric or an output file is missing, a group does not match a number, or ``take`` or
            ``skip`` depends on the order of stdout and stderr.
    """
    units = {name: metric.unit for name, metric in promised.items()}
    metrics: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    unordered: list[str] = []
    for whose in dict.fromkeys(pattern.ranks for pattern in patterns):
        selected = [pattern for pattern in patterns if pattern.ranks == whose]
        each = [_search_all(selected, units, files, ranks) for files in outputs(step, whose, ranks)]
        for index, pattern in enumerate(selected):
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
            "\n".join(unordered), hint="make the pattern match only one of them, or redirect the other in the program"
        )
    return metrics


def outputs(step: Path, whose: object, ranks: int) -> list[tuple[Path, ...]]:
    """Return the stdout and stderr files of the whole launch, of rank 0 or of each rank."""
    if whose == "all":
        return [(step / "output.txt", step / "errors.txt")]
    selected = range(ranks) if whose == "each" else [0]
    return [(step / "ranks" / f"{rank}.out", step / "ranks" / f"{rank}.err") for rank in selected]


def _search_all(
    patterns: Sequence[Pattern], units: Mapping[str, str], files: Sequence[Path], ranks: int
) -> list[_Search]:
    try:
        searches = [_Search(pattern, units, ranks) for pattern in patterns]
    except Mistake as mistake:
        raise MetricMissing(f"a pattern in the plan cannot be used: {mistake.message}") from None
    try:
        for file in files:
            before = [(found, found.matched) for search in searches for found in search.found.values()]
            for piece in pieces(file):
                for search in searches:
                    search.search(piece)
            for found, matched in before:
                found.streams += found.matched > matched
    except OSError as error:
        raise MetricMissing(f"cannot read the output of the program: {error}") from error
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
        "\n".join([*missing, *lines]), hint="correct the pattern; hidl logs shows the whole output of the program"
    )

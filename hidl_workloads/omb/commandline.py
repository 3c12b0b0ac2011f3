"""The command line: OMB's options, short and long, and ``--name=value`` for each, as ``hidl run --set`` gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hidl_workloads.omb.options import (
    BUFFERS,
    MAX_THREADS,
    MAX_VALIDATION_WARMUP,
    MIB,
    SYNCHRONIZATIONS,
    TYPES,
    WINDOWS,
    Options,
    UsageError,
)

Reader = Callable[[str], dict[str, Any]]


@dataclass(frozen=True)
class Option:
    """One option: its letter (or none), its long names, what its argument looks like and means."""

    letter: str
    names: tuple[str, ...]
    argument: str
    """As help shows it; empty: a switch; in brackets: may be left out."""
    help: str
    read: Reader
    """From the argument's text to fields of ``Options``; ``ValueError`` says what is expected."""

    @property
    def takes(self) -> Literal["nothing", "maybe", "argument"]:
        """Kind of argument that follows."""
        if not self.argument:
            return "nothing"
        return "maybe" if self.argument.startswith("[") and self.argument.endswith("]") else "argument"


def parse(words: Sequence[str], accepted: str, defaults: Options, *, others: str = "") -> Options:
    """Read ``words`` as OMB reads its command line; ``defaults`` holds where they say nothing.

    ``accepted`` are the letters that hold, ``others`` those that are known and passed over. Raises ``UsageError`` with
    every fault of every word.
    """
    return _Parser(accepted, others).parse(words, defaults)


def describe(accepted: str, defaults: Options) -> str:
    """The options that hold, one a line."""
    lines = []
    for option in _known(accepted):
        short = f"-{option.letter}, " if option.letter else "    "
        head = f"  {short}--{option.names[0]}{' ' if option.argument else ''}{option.argument}"
        lines.append(f"{head:<44} {option.help}")
    lines.append(f"Sizes are {defaults.min_size} to {defaults.max_size} bytes unless -m is set.")
    return "\n".join(lines)


class _Parser:
    def __init__(self, accepted: str, others: str) -> None:
        self.accepted = {option.names[0] for option in _known(accepted)}
        passed = {option.names[0] for option in _known(others)} if others else set()
        self.known = self.accepted | passed
        self.by_letter = {option.letter: option for option in OPTIONS if option.letter}
        self.by_name = {name: option for option in OPTIONS for name in option.names}
        self.faults: list[str] = []
        self.values: dict[str, Any] = {}

    def parse(self, words: Sequence[str], defaults: Options) -> Options:
        left = list(words)
        places: list[str] = []
        while left:
            word = left.pop(0)
            if word.startswith("--"):
                self._long(word, left)
            elif word.startswith("-") and len(word) > 1:
                self._short(word, left)
            else:
                places.append(word)
        self._places(places)
        options = replace(defaults, **self.values)
        if "buffer" not in self.values and (options.accelerator or "D" in options.places):
            options = replace(options, buffer="cupy")
        if options.min_size > options.max_size:
            self.faults.append(f"the smallest size, {options.min_size}, is above the largest, {options.max_size}")
        if self.faults:
            raise UsageError(*self.faults)
        return options

    def _long(self, word: str, left: list[str]) -> None:
        name, equals, text = word[2:].partition("=")
        option = self.by_name.get(name.replace("_", "-"))
        if option is None:
            self.faults.append(f"unknown option --{name}")
        elif equals:
            self._take(option, f"--{name}", text)
        elif option.takes == "argument":
            self._take_next(option, f"--{name}", left)
        else:
            self._take(option, f"--{name}", None)

    def _short(self, word: str, left: list[str]) -> None:
        letter, rest = word[1], word[2:]
        option = self.by_letter.get(letter)
        if option is None:
            self.faults.append(f"unknown option -{letter}")
        elif option.takes == "nothing":
            self._take(option, f"-{letter}", None)
            if rest:
                self._short(f"-{rest}", left)
        elif rest:
            self._take(option, f"-{letter}", rest)
        elif option.takes == "maybe":
            self._take(option, f"-{letter}", None)
        else:
            self._take_next(option, f"-{letter}", left)

    def _take_next(self, option: Option, name: str, left: list[str]) -> None:
        if left:
            self._take(option, name, left.pop(0))
        else:
            self.faults.append(f"{name} requires an argument: {option.argument}")

    def _take(self, option: Option, name: str, text: str | None) -> None:
        if option.names[0] not in self.known:
            self.faults.append(f"this benchmark does not support {name}")
            return
        try:
            values = option.read("" if text is None and option.takes != "nothing" else text or "true")
        except ValueError as error:
            self.faults.append(f"{name}: {text!r} is not {error}")
            return
        if option.names[0] in self.accepted:
            self.values |= values

    def _places(self, words: list[str]) -> None:
        if not words:
            return
        if len(words) == 2 and all(word in ("H", "D") for word in words):
            self.values["places"] = tuple(words)
        else:
            self.faults.append(f"{' '.join(words)!r}: only two of H (host) and D (device) may follow the options")


def _known(letters: str) -> list[Option]:
    """The options with these letters, and those of ours that have no letter."""
    return [option for option in OPTIONS if not option.letter or option.letter in letters]


def _whole(name: str, smallest: int, largest: int | None = None) -> Reader:
    expected = f"a whole number of at least {smallest}" + (f" and at most {largest}" if largest is not None else "")
    return lambda text: {name: _integer(text, smallest, largest, expected)}


def _integer(text: str, smallest: int, largest: int | None, expected: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(expected) from None
    if value < smallest or (largest is not None and value > largest):
        raise ValueError(expected)
    return value


def _default_or(name: str, smallest: int, standing_for_default: int) -> Reader:
    """A number, or the one by which a workload's parameters say: what OMB does."""
    expected = f"a whole number of at least {smallest} ({standing_for_default}: OMB's default)"

    def read(text: str) -> dict[str, Any]:
        if text == str(standing_for_default):
            return {name: None}
        return {name: _integer(text, smallest, None, expected)}

    return read


def _switch(name: str) -> Reader:
    words = {"true": True, "1": True, "false": False, "0": False}

    def read(text: str) -> dict[str, Any]:
        if text not in words:
            raise ValueError("true or false")
        return {name: words[text]}

    return read


def _word(name: str, choices: Sequence[str]) -> Reader:
    def read(text: str) -> dict[str, Any]:
        if text.lower() not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return {name: text.lower()}

    return read


def _message_size(text: str) -> dict[str, Any]:
    expected = "[MIN:]MAX in bytes, such as 4096, 8:4096 or 8:"
    smallest, colon, largest = text.partition(":")
    if not colon:
        smallest, largest = "", smallest
    if not smallest and not largest:
        raise ValueError(expected)
    values = {}
    if smallest:
        values["min_size"] = _integer(smallest, 1, None, expected)
    if largest:
        values["max_size"] = _integer(largest, 1, None, expected)
    return values


def _types(text: str) -> dict[str, Any]:
    words = text.lower().split(",")
    if words == ["all"]:
        return {"types": TYPES}
    if len(set(words)) != len(words) or not set(words) <= set(TYPES):
        raise ValueError(f"all, or some of {', '.join(TYPES)}")
    return {"types": tuple(words)}


def _percentiles(text: str) -> dict[str, Any]:
    if text == "none":
        return {"tail_lat": ()}
    expected = "up to 5 whole numbers from 1 to 100, such as 99,90,50 (or none)"
    numbers = tuple(_integer(word, 1, 100, expected) for word in (text or "50,90,99").split(","))
    if len(numbers) > 5 or len(set(numbers)) != len(numbers):
        raise ValueError(expected)
    return {"tail_lat": numbers}


def _validation(text: str) -> dict[str, Any]:
    if text.startswith("log"):
        raise ValueError("supported: the validation writes no log; errors are printed to stderr")
    return _switch("validation")(text or "true")


def _threads_or_tests(text: str) -> dict[str, Any]:
    expected = f"a number of MPI_Test calls, or threads as [SENDERS:]RECEIVERS of at most {MAX_THREADS}"
    senders, colon, receivers = text.partition(":")
    if not colon:
        number = _integer(text, 0, None, expected)
        return {"num_test_calls": number, "threads": (1, min(max(number, 1), MAX_THREADS))}
    return {"threads": tuple(_integer(word, 1, MAX_THREADS, expected) for word in (senders, receivers))}


def _root(text: str) -> dict[str, Any]:
    if text == "rotate":
        return {"root_rank": None}
    word = text.removeprefix("fixed:")
    return {"root_rank": _integer(word, 0, None, "fixed:RANK, or rotate")}


def _topology(text: str) -> dict[str, Any]:
    kind, _, numbers = text.partition(":")
    dimensions, _, radius = numbers.partition(":")
    if kind == "cart" and all(number.isdecimal() and int(number) > 0 for number in (dimensions, radius)):
        return {"nhbr": text}
    if kind == "graph":
        return {"nhbr": text}
    raise ValueError("cart:DIMENSIONS:RADIUS or graph[:FILE]")


def _accelerator(text: str) -> dict[str, Any]:
    if text.lower() not in ("cuda", "none"):
        raise ValueError("cuda: other accelerators are unsupported")
    return {"accelerator": text.lower() == "cuda"}


def _places(text: str) -> dict[str, Any]:
    words = tuple(text.split("-"))
    if text == "by-buffer":
        return {}
    if len(words) != 2 or not set(words) <= {"H", "D"}:
        raise ValueError("D-D, D-H, H-D, H-H or by-buffer")
    return {"places": words}


def _text(name: str) -> Reader:
    return lambda text: {name: text}


OPTIONS = (
    Option("m", ("message-size",), "[MIN:]MAX", "message sizes in bytes: powers of two times MIN", _message_size),
    Option("", ("min-size",), "BYTES", "smallest message size", _whole("min_size", 1)),
    Option("", ("max-size",), "BYTES", "largest message size", _whole("max_size", 1)),
    Option("i", ("iterations",), "N", "timed iterations per size (0: OMB's default)", _default_or("iterations", 1, 0)),
    Option("x", ("warmup",), "N", "untimed iterations before them (-1: OMB's default)", _default_or("warmup", 0, -1)),
    Option("f", ("full",), "", "also print minimum, maximum and iterations", _switch("full")),
    Option("c", ("validation",), "[true|false]", "validate the received data", _validation),
    Option(
        "u",
        ("validation-warmup",),
        "N",
        "with -c: untimed exchanges in each iteration",
        _whole("validation_warmup", 0, MAX_VALIDATION_WARMUP),
    ),
    Option("z", ("tail-lat",), "[P,P,...]", "percentiles of the iterations (50,90,99)", _percentiles),
    Option("T", ("type",), "TYPE,...", f"datatypes: all, or some of {', '.join(TYPES)}", _types),
    Option(
        "b",
        ("buffer-num",),
        "single|multiple",
        "one or several buffers per window",
        _word("buffer_num", ("single", "multiple")),
    ),
    Option("W", ("window-size",), "N", "messages before a reply", _whole("window_size", 1)),
    Option("V", ("vary-window",), "", "window sizes 1 to 128", _switch("vary_window")),
    Option("R", ("print-rate",), "0|1", "also print the message rate", _switch("print_rate")),
    Option("p", ("num-pairs",), "N", "pairs of ranks (0: half the ranks)", _default_or("num_pairs", 1, 0)),
    Option("t", ("num-test-calls", "threads"), "N|S:R", "number of MPI_Test calls, or of threads", _threads_or_tests),
    Option("M", ("mem-limit",), "BYTES", "maximum memory of a rank", _whole("mem_limit", MIB)),
    Option("k", ("root-rank",), "fixed:RANK|rotate", "the root", _root),
    Option("l", ("in-place",), "", "use MPI_IN_PLACE", _switch("in_place")),
    Option("N", ("nhbr",), "cart:D:R|graph[:FILE]", "the neighbourhood", _topology),
    Option("a", ("array-size",), "N", "size of the overlapping computation", _whole("array_size", 1)),
    Option("w", ("win-options",), "KIND", f"window: {', '.join(WINDOWS)}", _word("win_options", WINDOWS)),
    Option(
        "s",
        ("sync-option",),
        "KIND",
        f"synchronization: {', '.join(SYNCHRONIZATIONS)}",
        _word("sync_option", SYNCHRONIZATIONS),
    ),
    Option(
        "d",
        ("accelerator",),
        "cuda",
        "device buffers; for point-to-point and one-sided, H D after the options",
        _accelerator,
    ),
    Option(
        "",
        ("buffer",),
        "KIND",
        f"type of the buffers: {', '.join(BUFFERS)} (default: numpy, or cupy on a device)",
        _word("buffer", BUFFERS),
    ),
    Option("", ("places",), "D-H", "the same as H D after the options (by-buffer: set by --buffer)", _places),
    Option("", ("json",), "FILE", "also write the table as JSON", _text("json")),
)

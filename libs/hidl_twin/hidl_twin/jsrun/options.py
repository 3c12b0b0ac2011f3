"""The command line of ``jsrun``."""

from __future__ import annotations

import getopt
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

_VALUED = {
    "n": "nrs",
    "r": "rs_per_host",
    "a": "tasks_per_rs",
    "c": "cpu_per_rs",
    "g": "gpu_per_rs",
    "p": "np",
    "d": "launch_distribution",
    "b": "bind",
    "l": "latency_priority",
    "m": "memory_per_rs",
    "E": "env",
    "D": "env_no_propagate",
    "F": "env_eval",
    "M": "smpiargs",
    "o": "stdio_stdout",
    "k": "stdio_stderr",
    "t": "stdio_input",
    "e": "stdio_mode",
    "h": "chdir",
    "x": "exclude_hosts",
    "X": "exit_on_error",
    "P": "pre_post_exec",
    "Z": "progress",
}
_ALONE = {"i": "immediate", "?": "help", "V": "version"}
#: Those of the true one that this one does not have.
_MISSING = {
    "f": "appfile",
    "A": "allocate_only",
    "H": "launch_node_task",
    "J": "use_reservation",
    "K": "rs_per_socket",
    "L": "use_spindle",
    "S": "save_resources",
    "U": "use_resources",
}
_MISSING_LONG = ("erf_input", "erf_output", "erf_output_pidx")
_SHORT = "".join(f"{letter}:" for letter in (*_VALUED, *_MISSING)) + "".join(_ALONE)
_LONG = [f"{name}=" for name in (*_VALUED.values(), *_MISSING.values(), *_MISSING_LONG, "print_placement")]
_NAMES = {f"-{letter}": name for letter, name in {**_VALUED, **_ALONE, **_MISSING}.items()}

ALL = "ALL"


@dataclass(frozen=True)
class Options:
    """Options of a command line; None: not given. ``ALL`` as a number: ALL_HOSTS, ALL_CPUS, ALL_GPUS.

    ``bind``: none, rs, packed or proportional-packed, with ``bind_cores`` for the last two. ``distribution``: packed,
    cyclic or plane, with ``plane`` ranks at a time. ``set``, ``kept_back``, ``evaluated``: of -E, -D and -F.
    """

    program: tuple[str, ...]
    nrs: int | str | None = None
    rs_per_host: int | None = None
    tasks_per_rs: int | None = None
    cpu_per_rs: int | str = 1
    gpu_per_rs: int | str = 0
    np: int | None = None
    bind: str = "packed"
    bind_cores: int = 1
    distribution: str = "packed"
    plane: int = 1
    set: tuple[str, ...] = ()
    kept_back: tuple[str, ...] = ()
    evaluated: tuple[str, ...] = ()
    smpiargs: str = ""
    stdout: str | None = None
    stderr: str | None = None
    stdin: str | None = None
    stdio_mode: str = "collected"
    chdir: str | None = None
    excluded: tuple[str, ...] = ()
    immediate: bool = False
    print_placement: bool = False


def fail(words: str) -> NoReturn:
    """Exit with jsrun's form of an error."""
    print(f"Error: {words}", file=sys.stderr)
    sys.exit(1)


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line; exit where the real jsrun does, and on options that this one lacks."""
    try:
        given, program = getopt.getopt(list(arguments), _SHORT, [*_LONG, *_ALONE.values()])
    except getopt.GetoptError as error:
        fail(f"jsrun: {error}")
    named = [(_NAMES.get(option, option.removeprefix("--")), value) for option, value in given]
    for name, _ in named:
        if name in (*_MISSING.values(), *_MISSING_LONG):
            fail(f"jsrun: --{name} is not supported by this stand-in")
        if name in ("help", "version"):
            known = " ".join(f"--{one}" for one in (*_VALUED.values(), *_ALONE.values()))
            print(f"usage: jsrun [options] program [arguments]\noptions: {known}")
            sys.exit(0)
    if not program:
        fail("jsrun: no command was given")
    last = dict(named)
    bind, bind_cores = _bind(last.get("bind", "packed:1"))
    distribution, plane = _distribution(last.get("launch_distribution", "packed"))

    def all_of(name: str) -> tuple[str, ...]:
        return tuple(value for one, value in named if one == name)

    return Options(
        tuple(program),
        nrs=_number("nrs", last.get("nrs"), or_all=True),
        rs_per_host=_whole("rs_per_host", last.get("rs_per_host")),
        tasks_per_rs=_whole("tasks_per_rs", last.get("tasks_per_rs")),
        cpu_per_rs=_number("cpu_per_rs", last.get("cpu_per_rs"), or_all=True) or 1,
        gpu_per_rs=_number("gpu_per_rs", last.get("gpu_per_rs"), least=0, or_all=True) or 0,
        np=_whole("np", last.get("np")),
        bind=bind,
        bind_cores=bind_cores,
        distribution=distribution,
        plane=plane,
        set=all_of("env"),
        kept_back=all_of("env_no_propagate"),
        evaluated=all_of("env_eval"),
        smpiargs=last.get("smpiargs", ""),
        stdout=last.get("stdio_stdout"),
        stderr=last.get("stdio_stderr"),
        stdin=last.get("stdio_input"),
        stdio_mode=_mode(last.get("stdio_mode", "collected")),
        chdir=last.get("chdir"),
        excluded=tuple(host for value in all_of("exclude_hosts") for host in value.split(",")),
        immediate="immediate" in last,
        print_placement=last.get("print_placement", "0") != "0",
    )


def _whole(name: str, text: str | None) -> int | None:
    number = _number(name, text)
    assert not isinstance(number, str)
    return number


def _number(name: str, text: str | None, *, least: int = 1, or_all: bool = False) -> int | str | None:
    if text is None:
        return None
    if or_all and re.fullmatch("ALL_(HOSTS|CPUS|GPUS)", text):
        return ALL
    if not text.isdecimal() or int(text) < least:
        fail(f"jsrun: invalid argument of --{name}: {text!r}")
    return int(text)


def _bind(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(none|rs)|(packed|proportional-packed)(?::(?:smt:)?([1-9]\d*))?", text)
    if found is None:
        fail(f"jsrun: invalid argument of --bind: {text!r}")
    return (found[1] or found[2], int(found[3] or 1))


def _distribution(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"packed|cyclic|plane:([1-9]\d*)", text)
    if found is None:
        fail(f"jsrun: invalid argument of --launch_distribution: {text!r}")
    return text.partition(":")[0], int(found[1] or 1)


def _mode(text: str) -> str:
    if text not in ("collected", "individual"):
        fail(f"jsrun: --stdio_mode {text} is not supported by this stand-in: collected or individual")
    return text

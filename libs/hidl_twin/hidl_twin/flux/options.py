"""The command lines of ``flux batch``, ``submit`` and ``run``, ``#flux:`` lines, and durations."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import NoReturn

from hidl_twin.batch.store import refuse

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Parser(argparse.ArgumentParser):
    """Says what is wrong as Flux does."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        name = self.prog.partition(" ")[2]
        shape = "[SCRIPT] [ARGS...]" if name == "batch" else "COMMAND [ARGS...]"
        refuse(f"usage: flux {name} [OPTIONS...] {shape}\nflux {name}: error: {message}", 2)


def parser(name: str) -> argparse.ArgumentParser:
    """The options of ``flux NAME``. What runs is ``command``."""
    found = Parser(prog=f"flux {name}", add_help=False, allow_abbrev=False)
    for flags in (
        ("-B", "--bank"),
        ("-q", "--queue"),
        ("-t", "--time-limit"),
        ("--urgency",),
        ("--job-name",),
        ("--output",),
        ("--error",),
        ("--input",),
        ("--cwd",),
        ("--begin-time",),
        ("--flags",),
        ("--conf",),
        ("--broker-opts",),
        ("--signal",),
    ):
        found.add_argument(*flags)
    for flags in (
        ("-o", "--setopt"),
        ("-S", "--setattr"),
        ("--dependency",),
        ("--requires",),
        ("--env",),
        ("--env-remove",),
        ("--env-file",),
        ("--rlimit",),
        ("--add-file",),
    ):
        found.add_argument(*flags, action="append", default=[])
    for flags in (("-x", "--exclusive"), ("-u", "--unbuffered"), ("-l", "--label-io"), ("--quiet",), ("--wrap",)):
        found.add_argument(*flags, action="store_true")
    found.add_argument("-v", "--verbose", action="count", default=0)
    found.add_argument("-N", "--nodes", type=int)
    slot = "slot" if name == "batch" else "task"
    found.add_argument("-n", f"--n{slot}s", dest="ntasks", type=int)
    found.add_argument("-c", f"--cores-per-{slot}", dest="cores", type=int)
    found.add_argument("-g", f"--gpus-per-{slot}", dest="gpus", type=int)
    if name != "batch":
        found.add_argument("--tasks-per-node", type=int)
        found.add_argument("--cores-per-node", type=int)
        found.add_argument("--gpus-per-node", type=int)
    found.add_argument("command", nargs=argparse.REMAINDER)
    return found


def parse(name: str, words: Sequence[str], script: str = "") -> argparse.Namespace:
    """The options of ``words``; those of ``script`` count less. Ends the program for a wrong one."""
    known = parser(name)
    given = known.parse_args(list(words))
    command = given.command
    if directives := in_script(script):
        before = known.parse_args(directives)
        for key, value in vars(known.parse_args([])).items():
            if getattr(given, key) == value:
                setattr(given, key, getattr(before, key))
    given.command = command
    if command[:1] and command[0].startswith("-"):
        known.error(f"unrecognized arguments: {command[0]}")
    return given


def in_script(text: str) -> list[str]:
    """The words of the ``#flux:`` lines (RFC 36: a tag of any comment characters, then ``flux:``)."""
    words: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"[^\w\s]+\s*flux:\s*(.*)", line):
            words += shlex.split(found[1], comments=True)
    return words


def seconds(text: str) -> float:
    """A Flux standard duration: a number and s, m, h, d or ms; without a unit it is minutes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", text)
    if not found:
        refuse("flux-batch: ERROR: invalid Flux standard duration", 1)
    return float(found[1]) * _UNITS[found[2] or "m"]


def duration(seconds: float) -> str:
    """As Flux prints a duration: 1h, 20m, 1.5h."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= _UNITS[unit]:
            return f"{seconds / _UNITS[unit]:.4g}{unit}"
    return f"{seconds:g}s"

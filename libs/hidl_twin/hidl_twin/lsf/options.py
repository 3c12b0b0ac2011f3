"""The command line of ``bsub``, and the ``#BSUB`` lines of a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hidl_twin.batch.store import refuse

#: Options that take a value, the longer ones first: ``-W10`` is ``-W 10``, but ``-Jd x`` is not ``-J d``.
# fmt: off
VALUED = (
    "-alloc_flags", "-nnodes", "-core_isolation", "-step_cgroup", "-cn_cu", "-cn_mem", "-ln_slots", "-ln_mem",
    "-stage", "-csm", "-data", "-cwd", "-env", "-app", "-jsm", "-Jd", "-ul", "-sp", "-sla", "-oo", "-eo", "-is",
    "-We", "-wt", "-wa", "-W", "-P", "-G", "-q", "-J", "-o", "-e", "-i", "-U", "-R", "-n", "-M", "-L", "-u", "-w",
    "-b", "-t", "-m", "-E", "-Ep", "-c", "-S", "-D",
)
# fmt: on
#: Options that stand alone.
FLAGS = ("-Is", "-Ip", "-I", "-K", "-x", "-rn", "-r", "-N", "-B", "-H", "-XF", "-smt")


def parse(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options by name, and the command after them; ends the program for one that bsub does not have."""
    given: dict[str, str] = {}
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        if word in FLAGS:
            given[word] = ""
            continue
        option = next((name for name in VALUED if word == name), None)
        option = option or next((name for name in VALUED if len(name) == 2 and word.startswith(name)), None)
        if option is None:
            refuse(f"bsub: illegal option -- {word.lstrip('-')}\nJob not submitted.")
        if word == option and not left:
            refuse(f"bsub: option requires an argument -- {word.lstrip('-')}\nJob not submitted.")
        given[option] = word[len(option) :] or left.pop(0)
    return given, left


def in_script(text: str) -> dict[str, str]:
    """The options of the ``#BSUB`` lines, wherever they stand."""
    words: list[str] = []
    for line in text.splitlines():
        found = re.match(r"\s*#BSUB\s+(-.*)", line)
        if found:
            words += shlex.split(found[1], comments=True)
    return parse(words)[0]


def minutes(text: str) -> float:
    """Read ``[hours:]minutes``; a host's name after a slash is left out."""
    hours, _, rest = text.partition("/")[0].rpartition(":")
    if not rest.isdecimal() or not (hours or "0").isdecimal():
        refuse(f"{text}: Illegal run limit. Job not submitted.")
    return int(hours or 0) * 60.0 + int(rest)


def clock(minutes: float) -> str:
    """As bjobs shows a run limit: 90.0 min."""
    return f"{minutes:.1f} min"

"""The command line of ``qsub``, ``#PBS`` lines, and resources."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hidl_twin.batch.store import refuse

_VALUED = "aAcCeJkloMmNpPqrRSuvW"
_FLAGS = "fhIVXz"
USAGE = """\
usage: qsub [-a date_time] [-A account_string] [-c interval]
	[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
	[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
	[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
	[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
	[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version"""
#: Resources that a job may ask for as a whole, or in chunks.
_OF_JOB = ("walltime", "filesystems", "select", "place", "nodes", "job_priority", "gpu_type", "daos")
_OF_CHUNK = ("ncpus", "mpiprocs", "ompthreads", "ngpus", "mem", "system", "host", "vnode", "cpu_type", "gpu_type")
_NAME = re.compile(r"[^\s/]{1,230}")
_CHUNKS = re.compile(r"\d+(:[\w.-]+=[^:+\s]+)*(\+\d+(:[\w.-]+=[^:+\s]+)*)*|(:?[\w.-]+=[^:+\s]+)(:[\w.-]+=[^:+\s]+)*")
_PLACE = re.compile(r"(free|pack|scatter|vscatter)?:?(excl|exclhost|shared)?(:?group=\w+)?")


def parse(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options by letter, and what follows them. ``-l`` and ``-v`` collect; ends the program for a wrong one."""
    given: dict[str, str] = {}
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            return given, ["--", *left]
        letter = word[1]
        if letter in _FLAGS:
            given[letter] = ""
            if word[2:]:
                left.insert(0, f"-{word[2:]}")
        elif letter in _VALUED + "j":
            value = word[2:] or (left.pop(0) if left else usage(f"option requires an argument -- '{letter}'"))
            given[letter] = f"{given[letter]},{value}" if letter in given and letter in "lvW" else value
        else:
            usage(f"invalid option -- '{letter}'")
    if not _NAME.fullmatch(given.get("N", "job")):
        usage("illegal -N value")
    return given, left


def usage(what: str) -> NoReturn:
    """End as qsub does for a wrong command line."""
    refuse(f"qsub: {what}\n{USAGE}", 2)


def in_script(text: str) -> dict[str, str]:
    """The options of the ``#PBS`` lines, which end at the first command."""
    words: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"#PBS\s+(-.*)", line):
            words += shlex.split(found[1], comments=True)
        elif line.strip() and not line.lstrip().startswith(("#", ":")):
            break
    return parse(words)[0]


def resources(given: Mapping[str, str]) -> dict[str, str]:
    """What ``-l`` asks for, by resource; ends the program for what PBS does not know."""
    found: dict[str, str] = {}
    for part in re.split(r",(?=\w+=)", given.get("l", "")) if given.get("l") else []:
        name, _, value = part.partition("=")
        if name not in (*_OF_JOB, *_OF_CHUNK):
            refuse(f"qsub: Unknown resource Resource_List.{name}", 187)
        found[name] = value
    if "select" in found:
        if not _CHUNKS.fullmatch(found["select"]):
            refuse("qsub: Illegal attribute or resource value Resource_List.select", 166)
        for name in re.findall(r"([\w.-]+)=", found["select"]):
            if name not in _OF_CHUNK:
                refuse(f"qsub: Unknown resource: {name}", 187)
    if "place" in found and not _PLACE.fullmatch(found["place"]):
        refuse("qsub: Illegal attribute or resource value Resource_List.place", 166)
    if "walltime" in found:
        seconds(found["walltime"])
    return found


def chunks(select: str) -> list[tuple[int, dict[str, int]]]:
    """How many chunks of which resources (those with a number): "2:ncpus=4+1" -> [(2, {"ncpus": 4}), (1, {})]."""
    found = []
    for part in filter(None, select.split("+")):
        count, _, rest = part.partition(":") if part[:1].isdigit() else ("1", "", part)
        pairs = (one.partition("=") for one in rest.split(":") if one)
        found.append((int(count), {name: int(value) for name, _, value in pairs if value.isdecimal()}))
    return found


def seconds(text: str) -> int:
    """Read ``[[hours:]minutes:]seconds``; ends the program for anything else."""
    if not re.fullmatch(r"\d+(:\d{1,2}){0,2}(\.\d+)?", text):
        refuse("qsub: Illegal attribute or resource value Resource_List.walltime", 166)
    total = 0
    for part in text.partition(".")[0].split(":"):
        total = 60 * total + int(part)
    return total


def clock(seconds: float) -> str:
    """As PBS prints a time: 01:30:00."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"

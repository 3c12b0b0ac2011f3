"""What sbatch refuses, with the value that the site has, and the next step."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Mapping

from hidl_cli.schedulers.programs import NoAnswer
from hidl_cli.schedulers.slurm import commands
from hidl_cli.schedulers.slurm.reasons import limits

_Asked = Mapping[str, str]


def explain(words: str, asked: _Asked) -> tuple[str | None, str]:
    """The site's value that ``words`` are about, if it can be had, and what to do; ``asked``: the script's options."""
    for pattern, fact, hint in _CASES:
        if re.search(pattern, words, re.IGNORECASE):
            return fact(asked) or None, hint
    return None, "the words are sbatch's; the script is job.sh in the run's directory (sbatch --test-only job.sh)"


def _partitions(_: _Asked) -> str:
    return _listed("the partitions here", "sinfo", "--noheader", "--all", "--format=%R")


def _limits(asked: _Asked) -> str:
    name = asked.get("partition") or _default_partition()
    return limits(name, commands.partition(name)) if name else ""


def _accounts(_: _Asked) -> str:
    user = pwd.getpwuid(os.getuid()).pw_name
    return _listed(
        "your accounts here", "sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={user}", "format=account"
    )


def _qualities(_: _Asked) -> str:
    return _listed(
        "the qualities of service here", "sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name"
    )


def _features(_: _Asked) -> str:
    return _listed("the features of nodes here", "sinfo", "--noheader", "--all", "--format=%f")


def _gres(_: _Asked) -> str:
    return _listed("generic resources of nodes here", "sinfo", "--noheader", "--all", "--format=%G")


def _reservations(_: _Asked) -> str:
    try:
        completed = commands.call("scontrol", "show", "reservation", "--oneliner", timeout=commands.PING_SECONDS)
    except NoAnswer:
        return ""
    names = re.findall(r"ReservationName=(\S+)", completed.stdout)
    return f"the reservations here: {', '.join(names) or 'none'}"


_CASES: tuple[tuple[str, Callable[[_Asked], str], str], ...] = (
    (r"partition name|invalid partition", _partitions, "--partition NAME, or correct `queue` in the site's file"),
    (r"node count|too many nodes", _limits, "request fewer nodes (--nodes), or another partition (--partition)"),
    (r"time limit", _limits, "request less time (--time), or another partition (--partition)"),
    (r"account", _accounts, "--account NAME"),
    (r"qos", _qualities, "--qos NAME"),
    (r"feature", _features, "--constraint NAME"),
    (r"reservation", _reservations, "--reservation NAME"),
    (r"generic resource|gres", _gres, "`policies.gpus` in the site's file says how GPUs are asked for here"),
    (r"memory", _limits, "`policies.memory` in the site's file says how memory is asked for here"),
    (
        r"processors requested|node configuration",
        _limits,
        "fewer nodes (--nodes) or ranks on each (--ranks-per-node), or another partition (--partition)",
    ),
)


def _default_partition() -> str | None:
    """The partition that takes jobs which name none; sinfo marks it with a star."""
    names = re.findall(r"^(\S+)\*$", _answer("sinfo", "--noheader", "--format=%P"), re.MULTILINE)
    return names[0] if names else None


def _listed(title: str, *command: str) -> str:
    names = sorted({line.strip() for line in _answer(*command).splitlines()} - {"", "(null)"})
    return f"{title}: {', '.join(names)}" if names else ""


def _answer(*command: str) -> str:
    """What a program prints, where it answers in time: the refusal stands without it."""
    try:
        completed = commands.call(*command, timeout=commands.ACCOUNTING_SECONDS)
    except NoAnswer:
        return ""
    return completed.stdout if completed.status == 0 else ""

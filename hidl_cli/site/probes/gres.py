"""Generic resources of Slurm (`gres.conf(5)`): the GPUs that ``Gres=`` names."""

from __future__ import annotations

import re

_PLACES = re.compile(r"\([^()]*\)")  # gpu:a100:4(S:0-1): the sockets that they are at
_UNITS = {"": 1, "K": 2**10, "M": 2**20}


def gpus_of(gres: str) -> tuple[int | None, str | None]:
    """(GPUs, their models) of ``gpu:a100:4(S:0-1),fpga:1``; 0 GPUs where it names none, None where it is unreadable."""
    total, models = 0, []
    for item in _PLACES.sub("", gres).split(","):
        kind, *rest = item.strip().split(":")
        if kind != "gpu":
            continue
        words = [word for word in rest if word != "no_consume"]
        number = re.fullmatch(r"([0-9]{1,6})([KM]?)", words.pop()) if words else None
        if rest and number is None:
            return None, None
        total += int(number[1]) * _UNITS[number[2]] if number else 1
        models += words[:1]
    return total, ", ".join(sorted(set(models))) or None

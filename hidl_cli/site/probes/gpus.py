"""GPUs: of this host, as its driver's tool reports, and what compilers call a model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from hidl_cli.site.probes.host import Host

T = TypeVar("T")
_NVIDIA = ("nvidia-smi", "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
_AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")

#: The architecture of data-centre GPUs by a word of their name: NVIDIA's table of compute capabilities, AMD's table of
#: supported GPUs (ROCm documentation, "System requirements").
_ARCHITECTURES = (
    (r"gb200|b200|b100|gb300|b300", None),  # 10.0 or 10.3: the name alone does not tell
    (r"gh200|h200|h100|h20|h800", "sm_90"),
    (r"l40s?|l4|rtx[ _-]?6000[ _-]?ada", "sm_89"),
    (r"a40|a10g?|a16|a2|a6000", "sm_86"),
    (r"a100|a30|a800", "sm_80"),
    (r"t4|rtx[ _-]?[568]000", "sm_75"),
    (r"v100s?", "sm_70"),
    (r"p100", "sm_60"),
    (r"p40|p4", "sm_61"),
    (r"k80", "sm_37"),
    (r"mi300[axv]?", "gfx942"),
    (r"mi250x?|mi210", "gfx90a"),
    (r"mi100", "gfx908"),
    (r"mi60|mi50", "gfx906"),
)


@dataclass(frozen=True)
class Cards:
    """The GPUs of this host: how many, what model, architecture and memory (GiB) they share; None where unknown."""

    count: int
    model: str | None
    arch: str | None
    memory_gib: float | None
    source: str


def probe(host: Host) -> Cards | None:
    """The GPUs that ``nvidia-smi`` or ``rocm-smi`` lists; None where neither is there or answers."""
    if (text := host.ask(*_NVIDIA)) is not None:
        rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
        rows = [row for row in rows if len(row) == 3]
        arch = _common([f"sm_{row[1].replace('.', '')}" for row in rows if re.fullmatch(r"\d+\.\d", row[1])])
        memory = _common([round(int(row[2]) / 1024, 1) for row in rows if row[2].isdecimal()])
        return Cards(len(rows), _models([row[0] for row in rows]), arch, memory, "nvidia-smi") if rows else None
    if (text := host.ask(*_AMD)) is not None:
        return _amd(text)
    return None


def architecture(model: str | None) -> str | None:
    """What compilers call a GPU of that name (``a100`` of Slurm, ``NVIDIA A100-SXM4-40GB`` of the driver)."""
    for pattern, arch in _ARCHITECTURES:
        if model and re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9a-z])", model.lower().replace("_", " ")):
            return arch
    return None


def _amd(text: str) -> Cards | None:
    """``rocm-smi``'s JSON: ``{"card0": {"Card Series": ..., "GFX Version": ..., "VRAM Total Memory (B)": ...}}``."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    cards = [card for name, card in document.items() if re.fullmatch(r"card\d+", name) and isinstance(card, dict)]
    if not cards:
        return None
    sizes = [str(card.get("VRAM Total Memory (B)", "")) for card in cards]
    return Cards(
        len(cards),
        _models([str(card.get("Card Series") or card.get("Card series") or "") for card in cards]),
        _common([str(card["GFX Version"]) for card in cards if "GFX Version" in card]),
        _common([round(int(size) / 2**30, 1) for size in sizes if size.isdecimal()]),
        "rocm-smi",
    )


def _models(names: Sequence[str]) -> str | None:
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


def _common(values: Sequence[T]) -> T | None:
    """The value that all share."""
    return values[0] if values and len(set(values)) == 1 else None

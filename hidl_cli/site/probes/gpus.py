"""GPUs: of this host, as its driver's tool reports, and what compilers call a model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hidl_cli.site.probes.host import Host

T = TypeVar("T")
NVIDIA = ("nvidia-smi", "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
_MAKER = re.compile(r"^(nvidia|tesla|amd)(?=[a-z]+\d)")  # LSF leaves out the spaces of a model's name
_NVIDIA_OLD = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")  # drivers before 495
AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
AMD_NEW = ("amd-smi", "static", "--asic", "--vram", "--json")
INTEL = ("xpu-smi", "discovery", "-j")

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
    """The GPUs that a vendor's tool lists; None where none is there or answers."""
    if (text := host.ask(*NVIDIA)) is not None:
        return of_nvidia(text)
    if (text := host.ask(*_NVIDIA_OLD)) is not None:
        return of_nvidia("\n".join(line.replace(",", ", ,", 1) for line in text.splitlines()))
    if (text := host.ask(*AMD)) is not None:
        return of_amd_json(text)
    if (text := host.ask(*AMD_NEW)) is not None:
        return of_amd_smi(text)
    if (text := host.ask(*INTEL)) is not None:
        return of_intel(text)
    return None


def of_nvidia(text: str) -> Cards | None:
    """Read ``nvidia-smi``'s rows of name, compute capability and memory in MiB."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == 3]
    arch = _common([f"sm_{row[1].replace('.', '')}" for row in rows if re.fullmatch(r"\d+\.\d", row[1])])
    memory = _gib([int(row[2]) / 1024 for row in rows if _is_size(row[2])])
    return Cards(len(rows), _models([row[0] for row in rows]), arch, memory, "nvidia-smi") if rows else None


def architecture(model: str | None) -> str | None:
    """What compilers call a GPU of that name (``a100`` of Slurm, ``NVIDIA A100-SXM4-40GB`` of the driver)."""
    words = _MAKER.sub(r"\1 ", (model or "").lower().replace("_", " "))
    for pattern, arch in _ARCHITECTURES:
        if re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9a-z])", words):
            return arch
    return None


def of_amd_json(text: str) -> Cards | None:
    """``rocm-smi``'s JSON: ``{"card0": {"Card Series": ..., "GFX Version": ..., "VRAM Total Memory (B)": ...}}``."""
    document = _json(text)
    if not isinstance(document, dict):
        return None
    cards = [card for name, card in document.items() if re.fullmatch(r"card\d+", name) and isinstance(card, dict)]
    return of_amd(cards) if cards else None


def of_amd(cards: Sequence[Mapping[str, Any]]) -> Cards:
    """The GPUs of ``rocm-smi`` by the values of each, which its releases name in upper and lower case."""
    sizes = [str(card.get("VRAM Total Memory (B)", "")) for card in cards]
    return Cards(
        len(cards),
        _models([str(card.get("Card Series") or card.get("Card series") or "") for card in cards]),
        _common([_gfx(str(card["GFX Version"])) for card in cards if "GFX Version" in card]),
        _gib([int(size) / 2**30 for size in sizes if _is_size(size)]),
        "rocm-smi",
    )


def of_amd_smi(text: str) -> Cards | None:
    """``amd-smi``'s JSON: ``[{"asic": {"market_name": ..., "target_graphics_version": ...}, "vram": ...}]``."""
    document = _json(text)
    listed = document.get("gpu_data") if isinstance(document, dict) else document
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    asics = [asic for card in cards if isinstance(asic := card.get("asic"), dict)]
    sizes = [size for card in cards if isinstance(vram := card.get("vram"), dict) and (size := _mebibytes(vram))]
    if not cards:
        return None
    return Cards(
        len(cards),
        _models([str(asic.get("market_name", "")) for asic in asics]),
        _common([_gfx(str(version)) for asic in asics if (version := asic.get("target_graphics_version"))]),
        _gib([size / 1024 for size in sizes]),
        "amd-smi",
    )


def _mebibytes(vram: Mapping[str, Any]) -> int | None:
    """``{"size": {"value": 196592, "unit": "MB"}}``, or ``{"size": "196592 MB"}`` of early releases; MB are MiB."""
    size = vram.get("size")
    words = [str(size.get("value", "")), str(size.get("unit", ""))] if isinstance(size, dict) else str(size).split()
    return int(words[0]) if words and _is_size(words[0]) and words[1:] == ["MB"] else None


def of_intel(text: str) -> Cards | None:
    """``xpu-smi``'s JSON: ``{"device_list": [{"device_type": "GPU", "device_name": ...}]}``."""
    document = _json(text)
    listed = document.get("device_list") if isinstance(document, dict) else None
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    cards = [card for card in cards if card.get("device_type", "GPU") == "GPU"]
    names = [str(card.get("device_name", "")) for card in cards]
    return Cards(len(cards), _models(names), None, None, "xpu-smi") if cards else None


def _gib(sizes: Sequence[float]) -> float | None:
    """The size that all cards have, in tenths of a GiB; None where that is nothing."""
    return _common([round(size, 1) for size in sizes]) or None


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) < 20


def _gfx(version: str) -> str:
    """Return the compilers' name: ROCm 6 prints the stepping in decimal, ``gfx9010`` for gfx90a."""
    found = re.fullmatch(r"gfx9(\d)(1[0-5])", version)
    return f"gfx9{found[1]}{int(found[2]):x}" if found else version


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _models(names: Sequence[str]) -> str | None:
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


def _common(values: Sequence[T]) -> T | None:
    """The value that all share."""
    return values[0] if values and len(set(values)) == 1 else None

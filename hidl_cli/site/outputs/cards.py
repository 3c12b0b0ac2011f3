"""GPUs of one host, in the forms that their tools print for people."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable

from hidl_cli.site.outputs.told import Misread, Told, count, quoted
from hidl_cli.site.probes import gpus
from hidl_cli.site.probes.gpus import Cards

_LISTED = re.compile(r"^GPU (\d+): (\S.*?) \(UUID:", re.MULTILINE)
_SLICE = re.compile(r"^[ \t]+MIG (\S{1,40})[ \t]+Device[ \t]+\d+:", re.MULTILINE)
_BUS = re.compile(r"\b(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\b")
_OF_MEMORY = re.compile(r"/\s*(\d{1,8})MiB")
_QUERIED = re.compile(r"^GPU [0-9A-Fa-f:.]{7,20}[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"^[ \t]+Product Name[ \t]*: (\S.{0,200})$", re.MULTILINE)
_TOTAL = re.compile(r"^[ \t]+FB Memory Usage[ \t]*\n[ \t]+Total[ \t]*: (\d{1,8}) MiB", re.MULTILINE)
_MIG_ON = re.compile(r"^[ \t]+MIG Mode[ \t]*\n[ \t]+Current[ \t]*: Enabled", re.MULTILINE)
_DRIVER = re.compile(r"(?:Driver Version|Driver version)[ \t]{0,40}:[ \t]{0,40}(\d[\w.]*)")
_ROW_OF_ROCM = re.compile(r"^[ \t]*(\d{1,3})[ \t]+\S.*%[ \t]*$", re.MULTILINE)
_FIELD_OF_ROCM = re.compile(r"^GPU\[(\d{1,4})\][ \t]*:[ \t]*([^:\n]{1,60}):[ \t]*(\S.{0,300})$", re.MULTILINE)
_DEVICE = re.compile(r"^\|[ \t]*(\d{1,3})[ \t]*\|", re.MULTILINE)
_DEVICE_NAME = re.compile(r"Device Name:[ \t]{0,40}(\S[^|\n]{0,200})", re.MULTILINE)
_MEMORY_OF_INTEL = re.compile(r"Memory Physical Size:[ \t]{0,40}(\d{1,8})(?:\.\d+)? MiB")


def nvidia_list(text: str) -> Told:
    """``nvidia-smi -L``: slices (MIG) are named beside the GPUs, and are none."""
    found = list(_LISTED.finditer(text))
    names = [each[2] for each in found]
    remarks = []
    for each, after in zip(found, [*found[1:], None], strict=True):
        slices = Counter(_SLICE.findall(text, each.end(), after.start() if after else len(text)))
        if slices:
            kinds = ", ".join(f"{number} x {name}" for name, number in slices.items())
            remarks.append(f"GPU {each[1]} is cut into slices (MIG): {kinds}")
    return _told(_cards(names, [], "nvidia-smi"), remarks)


def nvidia_table(text: str) -> Told:
    """``nvidia-smi`` without options. Long names are cut off there."""
    names, sizes, remarks = [], [], []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        cells = line.split("|")
        words = cells[1].split() if len(cells) > 3 else []
        if len(words) < 2 or not words[0].isdecimal() or not _BUS.search(cells[2]):
            continue
        name = " ".join(words[1:-1] if words[-1] in ("On", "Off", "N/A") else words[1:])
        if name.endswith("..."):
            remarks.append(f"`{name}` is cut off: `nvidia-smi -L` tells the whole name")
        names.append(name.removesuffix("...").strip())
        size = _OF_MEMORY.search(lines[number + 1]) if number + 1 < len(lines) else None
        sizes += [int(size[1]) / 1024] if size else []
    if not names:
        raise Misread(0, "a row for each GPU", "none")
    if "MIG devices" in text and "No MIG devices" not in text:
        remarks.append("some of them are cut into slices (MIG)")
    if "rocesses:" not in text:
        remarks.append("it ends before its list of processes: there may be more GPUs")
    return _told(_cards(names, sizes, "nvidia-smi"), [*dict.fromkeys(remarks), *_driver(text)])


def nvidia_query(text: str) -> Told:
    """``nvidia-smi -q``."""
    blocks = _QUERIED.split(text)[1:]
    names = [found[1].strip() for block in blocks if (found := _NAME.search(block))]
    if len(names) < len(blocks):
        raise Misread(
            text.count("\n") + 1, "a `Product Name` for each GPU", f"the end after {count(len(names), 'name')}"
        )
    sizes = [int(found[1]) / 1024 for block in blocks if (found := _TOTAL.search(block))]
    remarks = ["some of them are cut into slices (MIG)"] if _MIG_ON.search(text) else []
    return _told(_cards(names, sizes, "nvidia-smi"), [*remarks, *_driver(text)])


def answered(read: Callable[[str], Cards | None]) -> Callable[[str], Told]:
    """The form that the probes ask for."""

    def told(text: str) -> Told:
        cards = read(text)
        if cards is None:
            raise Misread(0, "one entry for each GPU", quoted(text))
        return _told(cards, [])

    return told


def rocm_table(text: str) -> Told:
    """``rocm-smi`` without options, which does not name the model."""
    found = _ROW_OF_ROCM.findall(text)
    if not found:
        raise Misread(0, "a row for each GPU", "none")
    return _told(Cards(len(found), None, None, None, "rocm-smi"), [])


def rocm_product(text: str) -> Told:
    """``rocm-smi --showproductname`` and the like, a line for each value."""
    cards: dict[str, dict[str, str]] = {}
    for found in _FIELD_OF_ROCM.finditer(text):
        cards.setdefault(found[1], {})[found[2].strip()] = found[3].strip()
    return _told(gpus.of_amd(list(cards.values())), [])


def rocm_csv(text: str) -> Told:
    """``rocm-smi --csv``: a line for each card."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("device,"))
    head, *rest = csv.reader(io.StringIO("\n".join(lines[start:])))
    cards = []
    for number, cells in enumerate(rest, start=start + 2):
        if not cells or not re.fullmatch(r"card\d+", cells[0]):
            continue
        if len(cells) != len(head):
            raise Misread(number, f"{len(head)} values, as in the first line", str(len(cells)))
        cards.append(dict(zip(head, cells, strict=True)))
    if not cards:
        raise Misread(0, "a line for each card", "none")
    return _told(gpus.of_amd(cards), [])


def intel_table(text: str) -> Told:
    """``xpu-smi discovery``: a row of several lines for each GPU."""
    names = [found[1].strip() for found in _DEVICE_NAME.finditer(text)]
    rows = len(_DEVICE.findall(text))
    if rows != len(names):
        raise Misread(text.count("\n") + 1, f"a `Device Name` for each of {rows} devices", f"{len(names)}")
    sizes = [int(found[1]) / 1024 for found in _MEMORY_OF_INTEL.finditer(text)]
    return _told(_cards(names, sizes, "xpu-smi"), [])


def _cards(names: list[str], sizes: list[float], source: str) -> Cards:
    models = list(dict.fromkeys(names))
    arch = gpus.architecture(models[0]) if len(models) == 1 else None
    memory = round(sizes[0], 1) if len(sizes) == len(names) and len(set(sizes)) == 1 else None
    return Cards(len(names), ", ".join(models) or None, arch, memory, source)


def _told(cards: Cards, remarks: list[str]) -> Told:
    return Told(f"{count(cards.count, 'GPU')}: {cards.model or 'model unknown'}", cards=cards, remarks=tuple(remarks))


def _driver(text: str) -> list[str]:
    found = _DRIVER.search(text)
    return [f"driver {found[1]}"] if found else []

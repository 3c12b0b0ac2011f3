"""The host that probes examine: its programs, the programs' output, and its files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hidl_cli import process
from hidl_cli.batch_systems import systems
from hidl_cli.errors import ProcessFailed
from hidl_cli.site import hidl_cluster
from hidl_cli.site.machine import read
from hidl_cli.site.probes.facts import Fact

JSON = ("lscpu", "--json")
MODEL = "Model name"
_LINE = re.compile(r"^[ \t]*([A-Za-z][^:\n]{0,60}):[ \t]*(\S.*)$", re.MULTILINE)


def fields(text: str) -> Mapping[str, str]:
    """Return the fields of ``lscpu`` output, except empty ones and ``-``. If a field is repeated, the first is used."""
    pairs = _json(text) if text.lstrip().startswith("{") else ((each[1], each[2]) for each in _LINE.finditer(text))
    found: dict[str, str] = {}
    for key, value in pairs:
        if value.strip() not in ("", "-"):
            found.setdefault(key.strip(), value.strip())
    return found


def _json(text: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of JSON output, which newer versions of ``lscpu`` nest."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    waiting: list[Any] = [document.get("lscpu")] if isinstance(document, dict) else []
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += reversed(part)
        elif isinstance(part, dict):
            if isinstance(part.get("field"), str) and isinstance(part.get("data"), str):
                yield part["field"].rstrip(":"), part["data"]
            waiting.append(part.get("children"))


# This host's GPUs, as listed by the vendor's tool, and the names that compilers use for their architectures.


T = TypeVar("T")
NVIDIA = ("nvidia-smi", "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
_MAKER = re.compile(r"^(nvidia|tesla|amd)(?=[a-z]+\d)")  # LSF removes the spaces from model names
_NVIDIA_OLD = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")  # drivers before 495
AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
AMD_NEW = ("amd-smi", "static", "--asic", "--vram", "--json")
INTEL = ("xpu-smi", "discovery", "-j")

#: Data-centre GPU architectures by a word in the GPU's name, from NVIDIA's table of compute capabilities and AMD's
#: table of supported GPUs (ROCm documentation, "System requirements").
_ARCHITECTURES = (
    (r"gb200|b200|b100|gb300|b300", None),  # 10.0 or 10.3; the name alone does not distinguish them
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
    """A host's GPUs. Their model, architecture and memory (GiB) are None if unknown or not the same for all of them."""

    count: int
    model: str | None
    arch: str | None
    memory_gib: float | None
    source: str


def probe_gpus(host: Host) -> Cards | None:
    """List the GPUs with a vendor's tool. Returns None if there is no such tool or it fails."""
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
    """Parse ``nvidia-smi`` output, in which each row contains a name, a compute capability and a memory size in MiB."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == 3]
    arch = _common([f"sm_{row[1].replace('.', '')}" for row in rows if re.fullmatch(r"\d+\.\d", row[1])])
    memory = _gib([int(row[2]) / 1024 for row in rows if _is_size(row[2])])
    return Cards(len(rows), _models([row[0] for row in rows]), arch, memory, "nvidia-smi") if rows else None


def architecture(model: str | None) -> str | None:
    """Return a GPU's architecture, given its name (``a100`` in Slurm, ``NVIDIA A100-SXM4-40GB`` in the driver)."""
    words = _MAKER.sub(r"\1 ", (model or "").lower().replace("_", " "))
    for pattern, arch in _ARCHITECTURES:
        if re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9a-z])", words):
            return arch
    return None


def of_amd_json(text: str) -> Cards | None:
    """Parse ``rocm-smi`` JSON: ``{"card0": {"Card Series": ..., "GFX Version": ..., ...}}``."""
    document = _json_of_gpus(text)
    if not isinstance(document, dict):
        return None
    cards = [card for name, card in document.items() if re.fullmatch(r"card\d+", name) and isinstance(card, dict)]
    return of_amd(cards) if cards else None


def of_amd(cards: Sequence[Mapping[str, Any]]) -> Cards:
    """Convert the values that ``rocm-smi`` prints for each GPU.

    The capitalization of their names differs between releases.
    """
    sizes = [str(card.get("VRAM Total Memory (B)", "")) for card in cards]
    return Cards(
        len(cards),
        _models([str(card.get("Card Series") or card.get("Card series") or "") for card in cards]),
        _common([_gfx(str(card["GFX Version"])) for card in cards if "GFX Version" in card]),
        _gib([int(size) / 2**30 for size in sizes if _is_size(size)]),
        "rocm-smi",
    )


def of_amd_smi(text: str) -> Cards | None:
    """Parse ``amd-smi`` JSON: ``[{"asic": {"market_name": ..., "target_graphics_version": ...}, "vram": ...}]``."""
    document = _json_of_gpus(text)
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
    """Read ``{"size": {"value": 196592, "unit": "MB"}}``, or ``"196592 MB"`` in early releases; MB means MiB here."""
    size = vram.get("size")
    words = [str(size.get("value", "")), str(size.get("unit", ""))] if isinstance(size, dict) else str(size).split()
    return int(words[0]) if words and _is_size(words[0]) and words[1:] == ["MB"] else None


def of_intel(text: str) -> Cards | None:
    """Parse ``xpu-smi`` JSON: ``{"device_list": [{"device_type": "GPU", "device_name": ...}]}``."""
    document = _json_of_gpus(text)
    listed = document.get("device_list") if isinstance(document, dict) else None
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    cards = [card for card in cards if card.get("device_type", "GPU") == "GPU"]
    names = [str(card.get("device_name", "")) for card in cards]
    return Cards(len(cards), _models(names), None, None, "xpu-smi") if cards else None


def _gib(sizes: Sequence[float]) -> float | None:
    """Return the GPUs' common memory size, rounded to a tenth of a GiB, or None if the sizes differ or are zero."""
    return _common([round(size, 1) for size in sizes]) or None


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) < 20


def _gfx(version: str) -> str:
    """Return the name used by compilers. ROCm 6 prints the stepping in decimal: ``gfx9010`` for gfx90a."""
    found = re.fullmatch(r"gfx9(\d)(1[0-5])", version)
    return f"gfx9{found[1]}{int(found[2]):x}" if found else version


def _json_of_gpus(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _models(names: Sequence[str]) -> str | None:
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


def _common(values: Sequence[T]) -> T | None:
    """Return the common value if all ``values`` are equal, or else None."""
    return values[0] if values and len(set(values)) == 1 else None


# The network between nodes, determined from the kernel's adapter files on this host, from ``ibstat``, or from
# ``ibv_devinfo``.


_CLASS = "/sys/class/infiniband"
_SLINGSHOT = "/sys/class/cxi"
_CA = re.compile(r"^CA '([^']+)'", re.MULTILINE)
_HCA = re.compile(r"^hca_id:\s*(\S+)", re.MULTILINE)
_LANES = {"1": 1, "2": 4, "4": 8, "8": 12, "16": 2}  # active_width values in ibv_devinfo


@dataclass(frozen=True)
class Port:
    """An adapter's active port. ``speed`` is the kernel's name for its speed (HDR, NDR, ...)."""

    adapter: str
    link_layer: str
    gigabits: float | None
    speed: str | None


def probe_fabric(host: Host) -> Fact | None:
    """Detect this host's fabric type and speed. Returns None if there is no active adapter."""
    for source, ports in (
        (_CLASS, list(_kernel(host))),
        ("ibstat", list(_ibstat(host.ask("ibstat") or ""))),
        ("ibv_devinfo", list(_devinfo(host.ask("ibv_devinfo", "-v") or ""))),
    ):
        if ports:
            return Fact(_described(ports), f"{source} on {host.hostname}")
    if host.list(_SLINGSHOT):
        return Fact("HPE Slingshot", f"{_SLINGSHOT} on {host.hostname}")
    return None


def described(program: str, text: str) -> str | None:
    """Describe the active ports in the output of ``ibstat`` or ``ibv_devinfo``. Returns None if there are none."""
    ports = list(_ibstat(text) if program == "ibstat" else _devinfo(text))
    return _described(ports) if ports else None


def _described(ports: list[Port]) -> str:
    """Describe the fastest ports, as in ``2 x InfiniBand, 200 Gb/s (4X HDR)``.

    Ethernet is only described if there are no other ports.
    """
    fabric = [port for port in ports if port.link_layer == "InfiniBand"] or ports
    best = max(fabric, key=lambda port: port.gigabits or 0)
    alike = [port for port in fabric if (port.gigabits, port.speed) == (best.gigabits, best.speed)]
    kind = "RoCE (RDMA over Ethernet)" if best.link_layer == "Ethernet" else best.link_layer
    if best.adapter.startswith("hfi1"):
        kind = "Omni-Path"
    words = f"{len(alike)} x {kind}" if len(alike) > 1 else kind
    if best.gigabits:
        words += f", {best.gigabits:g} Gb/s"
    return words + (f" ({best.speed})" if best.speed and kind != "Omni-Path" else "")


def _kernel(host: Host) -> Iterator[Port]:
    for adapter in host.list(_CLASS):
        for number in host.list(f"{_CLASS}/{adapter}/ports"):
            port = f"{_CLASS}/{adapter}/ports/{number}"
            if "ACTIVE" not in host.read(f"{port}/state"):  # "4: ACTIVE"
                continue
            # For example: 200 Gb/sec (4X HDR)
            rate = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) Gb/sec \((.+)\)", host.read(f"{port}/rate"))
            layer = host.read(f"{port}/link_layer") or "InfiniBand"
            yield Port(adapter, layer, float(rate[1]) if rate else None, rate[2] if rate else None)


def _ibstat(text: str) -> Iterator[Port]:
    for adapter, block in split_blocks(_CA, text):
        for port in re.split(r"^\s*Port \d+:\s*$", block, flags=re.MULTILINE)[1:]:
            fields = dict(re.findall(r"^\s*([A-Z][\w ]*): (.*\S)\s*$", port, re.MULTILINE))
            if fields.get("State") == "Active":
                rate = fields.get("Rate", "")
                gigabits = float(rate) if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", rate) else None
                yield Port(adapter, fields.get("Link layer", "InfiniBand"), gigabits, None)


def _devinfo(text: str) -> Iterator[Port]:
    for adapter, block in split_blocks(_HCA, text):
        for port in re.split(r"^\s*port:\s*\d+\s*$", block, flags=re.MULTILINE)[1:]:
            fields = dict(re.findall(r"^\s*(\w+):\s+(.*\S)\s*$", port, re.MULTILINE))
            if "ACTIVE" not in fields.get("state", ""):
                continue
            speed = re.match(r"(\d{1,6}(?:\.\d{1,6})?) Gbps", fields.get("active_speed", ""))
            lanes = re.search(r"\((\d+)\)", fields.get("active_width", ""))
            width = _LANES.get(lanes[1]) if lanes else None
            gigabits = round(float(speed[1]) * width) if speed and width else None
            yield Port(adapter, fields.get("link_layer", "InfiniBand"), gigabits, None)


_SECONDS = 10.0


class Host(Protocol):
    """The interface through which probes access a host."""

    @property
    def hostname(self) -> str:
        """The host's name according to its kernel."""

    @property
    def environment(self) -> Mapping[str, str]:
        """This process's environment."""

    @property
    def failures(self) -> Sequence[str]:
        """Commands that exist but failed, with the reasons."""

    def which(self, program: str) -> str | None:
        """Return the path of a program on PATH, or None."""

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        """Run a command and return its output, including standard error if ``stderr`` is set.

        Returns None if the command is missing, fails or times out.
        """

    def read(self, path: str) -> str:
        """Return the text of a small file, such as a kernel file. The text is empty if the file does not exist."""

    def list(self, directory: str) -> tuple[str, ...]:
        """Return the sorted names in a directory (empty if it does not exist)."""


@dataclass(frozen=True)
class HostBehind:
    """A host that forwards all calls to ``host``."""

    host: Host

    @property
    def hostname(self) -> str:
        return self.host.hostname

    @property
    def environment(self) -> Mapping[str, str]:
        return self.host.environment

    @property
    def failures(self) -> Sequence[str]:
        return self.host.failures

    def which(self, program: str) -> str | None:
        return self.host.which(program)

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        return self.host.ask(*command, seconds=seconds, stderr=stderr)

    def read(self, path: str) -> str:
        return self.host.read(path)

    def list(self, directory: str) -> tuple[str, ...]:
        return self.host.list(directory)


@dataclass
class ThisHost:
    """The machine that runs hidl."""

    environment: Mapping[str, str] = field(default_factory=hidl_cluster.environment)
    root: Path = Path("/")
    hostname: str = field(default_factory=lambda: os.uname().nodename)
    failures: list[str] = field(default_factory=list)

    def which(self, program: str) -> str | None:
        return shutil.which(program, path=self.environment.get("PATH", ""))

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        if self.which(command[0]) is None:
            return None
        try:
            completed = process.run(command, env={**self.environment, "LC_ALL": "C"}, timeout=seconds)
        except ProcessFailed as error:
            why = " ".join(error.output.split()) or error.message
            self.failures.append(f"`{' '.join(command)}` failed: {why[:300]}")
            return None
        return completed.stdout + completed.stderr if stderr else completed.stdout

    def read(self, path: str) -> str:
        return read(self.root / path.lstrip("/"))

    def list(self, directory: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(entry.name for entry in (self.root / directory.lstrip("/")).iterdir()))
        except OSError:
            return ()


def split_blocks(start: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    """Split text where ``start`` matches. For each match, yield its first group and the text up to the next match."""
    found = list(start.finditer(text))
    for number, one in enumerate(found, start=1):
        yield one[1], text[one.end() : found[number].start() if number < len(found) else None]


# The scheduler's name for the cluster to which this host belongs.


SECONDS = 3.0  # scontrol would wait three times as long if slurmctld is down
#: Programs specific to schedulers that hidl does not support.
_OTHERS = {"Grid Engine": "qhost"}


@dataclass(frozen=True)
class Cluster:
    """The cluster's name and the source of the name. If the name is None, ``source`` is the reason."""

    name: str | None
    source: str


def schedulers(host: Host) -> dict[str, str]:
    """Return the display names of the schedulers whose programs are on PATH, with those programs."""
    known = {system.title: system.shows for system in systems() if system.shows} | _OTHERS
    return {title: program for title, program in known.items() if host.which(program)}


def cluster(host: Host) -> Cluster:
    """Find the cluster's name, using a variable that the scheduler sets in jobs, or else one of its commands."""
    for system in systems():
        if system.cluster_variable and (name := host.environment.get(system.cluster_variable)):
            return Cluster(name, f"${system.cluster_variable}")
    unanswered, recognizable = [], [system for system in systems() if system.shows]
    for system in recognizable:
        if host.which(system.shows) is None:
            continue
        command = " ".join(system.cluster_command)
        answer = host.ask(*system.cluster_command, seconds=SECONDS) or ""
        if found := re.search(system.cluster_name, answer, re.MULTILINE):
            return Cluster(found[1], command)
        unanswered.append(f"`{command}` did not respond within {SECONDS:g} s")
    programs = ", ".join(system.shows for system in recognizable)
    return Cluster(None, "; ".join(unanswered) or f"no scheduler's program ({programs}) on PATH")

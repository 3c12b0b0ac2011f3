"""The network between nodes, as this host's adapters show it: the kernel's files, or ``ibstat`` or ``ibv_devinfo``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hidl_cli.site.probes.facts import Fact
from hidl_cli.site.probes.host import Host, split_blocks

_CLASS = "/sys/class/infiniband"
_SLINGSHOT = "/sys/class/cxi"
_CA = re.compile(r"^CA '([^']+)'", re.MULTILINE)
_HCA = re.compile(r"^hca_id:\s*(\S+)", re.MULTILINE)
_LANES = {"1": 1, "2": 4, "4": 8, "8": 12, "16": 2}  # active_width of ibv_devinfo, the verbs' enumeration


@dataclass(frozen=True)
class Port:
    """One port of an adapter that is up: Gb/s, and the kernel's name of its speed (HDR, NDR, ...)."""

    adapter: str
    link_layer: str
    gigabits: float | None
    speed: str | None


def probe(host: Host) -> Fact | None:
    """The kind and speed of this host's fabric; None where it has no such adapter, or none that is up."""
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
    """The kind and speed of the ports that are up, by ``ibstat`` or ``ibv_devinfo``; None: there is none."""
    ports = list(_ibstat(text) if program == "ibstat" else _devinfo(text))
    return _described(ports) if ports else None


def _described(ports: list[Port]) -> str:
    """``2 x InfiniBand, 200 Gb/s (4X HDR)``: the fastest ports; Ethernet only where there is nothing else."""
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
            if "ACTIVE" not in host.read(f"{port}/state"):  # 4: ACTIVE
                continue
            rate = re.fullmatch(
                r"(\d{1,6}(?:\.\d{1,6})?) Gb/sec \((.+)\)", host.read(f"{port}/rate")
            )  # 200 Gb/sec (4X HDR)
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

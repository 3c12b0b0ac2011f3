"""A free subnet for a cluster's network. Its number also determines the cluster's names and ports."""

from __future__ import annotations

import ipaddress
import socket

from hidl_cli.errors import MissingPrecondition
from hidl_cli.site.hidl_cluster import host_link
from hidl_twin import marks
from hidl_twin.layout import Layout
from hidl_twin.network import ip_json
from hidl_twin.settings import Settings

_NARROW = 8  # bits of prefix: routes wider than that are overruled by the cluster's own


def choose(layout: Layout, remembered: int | None) -> int:
    """Choose K of 10.77.K.0/24 with free ports, the previous one if possible.

    ``MissingPrecondition`` where none is left.
    """
    taken = {link["ifname"] for link in ip_json("link", "show") if link.get("ifalias") != str(layout.directory)}
    networks = _networks_of_others(layout)
    candidates: list[int] = [*([] if remembered is None else [remembered]), *range(256)]
    for subnet in candidates:
        settings = Settings(subnet=subnet)
        network = ipaddress.ip_network(f"{settings.prefix}0/24")
        if host_link(subnet) in taken or any(network.overlaps(other) for other in networks):
            continue
        mine = marks.find(layout.directory) if subnet == remembered else {}
        ports = {"slurmctld": settings.slurmctld_port, "slurmdbd": settings.slurmdbd_port}
        if all(role in mine or _is_free(port) for role, port in ports.items()):
            return subnet
    raise MissingPrecondition(
        "no free network: 10.77.0.0/24 to 10.77.255.0/24, or their ports, are in use",
        hint="take a cluster down: hidl cluster down --directory DIR",
    )


def _networks_of_others(layout: Layout) -> list[ipaddress.IPv4Network]:
    """Networks of this machine's addresses and routes, except this cluster's.

    Routes that the kernel made for addresses are left out: those of a link that goes away just now can outlive it by a
    moment, and nothing would tell whose they were.
    """
    mine = {link["ifname"] for link in ip_json("link", "show") if link.get("ifalias") == str(layout.directory)}
    texts = [
        f"{address['local']}/{address['prefixlen']}"
        for link in ip_json("addr", "show")
        if link["ifname"] not in mine
        for address in link.get("addr_info", [])
    ]
    texts += [r["dst"] for r in ip_json("route", "show") if r["dst"] != "default" and r.get("protocol") != "kernel"]
    networks = [ipaddress.IPv4Network(text, strict=False) for text in texts]
    return [network for network in networks if network.prefixlen > _NARROW]


def _is_free(port: int) -> bool:
    """Whether a daemon can listen on the port on all addresses."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True

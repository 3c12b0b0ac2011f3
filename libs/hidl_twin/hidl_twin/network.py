"""The network of a cluster: a switch with a cable to each node and one to this machine.

The switch is a bridge in a network namespace of its own, held by a process. There, no packet filter of this machine
(Docker sets one that drops what crosses bridges) comes between the nodes; and when its holder ends, the kernel takes
the switch and all cables away.

All namespaces of a machine share one table of neighbours. By default it has 1024 entries; 32 nodes that all talk to
each other fill it ("neighbour: arp_cache: neighbor table overflow!"), and connections fail with "No route to host". So
hardware addresses follow from IP addresses, and each node is told all of them: such entries do not count.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hidl_cli import process
from hidl_cli.errors import HidlError
from hidl_cli.site.hidl_cluster import host_link
from hidl_twin import entry, marks
from hidl_twin.layout import Layout
from hidl_twin.marks import Recorded
from hidl_twin.settings import Settings

ROLE = "switch"
NEIGHBOURS = "etc/neighbours"  # beneath the cluster's directory: commands for ip
_SECONDS = 120.0
_REACHED_SECONDS = 10.0
_NOBODYS_PORT = 9


def hardware_address(address: str) -> str:
    """Hardware address (locally administered) of the device with this IP address."""
    return ":".join(["02", "00", *(f"{int(number):02x}" for number in address.split("."))])


def neighbours(addresses: Iterable[str]) -> str:
    """The commands for ``ip`` that tell a node the hardware addresses of all.

    As if learned by other means than ARP: the table's limit does not count them, and unlike permanent ones they expire
    where a node is down.
    """
    return "".join(
        f"neigh replace {address} lladdr {hardware_address(address)} dev eth0 nud stale extern_learn\n"
        for address in sorted(addresses)
    )


def ensure_switch(layout: Layout, settings: Settings) -> bool:
    """Create the switch and the cable to this machine if missing; return whether anything was created."""
    subnet = settings.subnet
    assert subnet is not None
    link = host_link(subnet)
    holder = _holder(layout)
    made = holder is None or not _link_exists(link)
    if made:
        remove_switch(layout, settings)
        holder = _start_holder(layout)
        _ip("link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", str(holder.pid))
    assert holder is not None
    _ip("link", "set", link, "alias", str(layout.directory))
    _ip("link", "set", link, "address", hardware_address(settings.controller_address))
    _ip("addr", "replace", f"{settings.controller_address}/24", "dev", link)
    _ip("link", "set", link, "up")
    if "bridge" not in _devices(holder.pid):
        _ip("link", "add", "bridge", "type", "bridge", inside=holder)
    _ip("link", "set", "bridge", "up", inside=holder)
    _ip("link", "set", "uplink", "master", "bridge", "up", inside=holder)
    return made


def connect(layout: Layout, node: str, address: str) -> None:
    """Connect the node to the switch, with its address, if needed.

    The cable's end at the switch is called by the address: names of network devices are short.
    """
    holder, init = _holder(layout), marks.recorded(layout.directory, node)
    if holder is None:
        raise HidlError("the cluster's switch is gone", hint="hidl cluster up restarts it")
    if init is None:
        raise HidlError(f"{node} is down", hint="hidl cluster up restarts it")
    port = f"port{address.rpartition('.')[2]}"
    at_node, at_switch = "eth0" in _devices(init.pid), port in _devices(holder.pid)
    if not (at_node and at_switch):
        if at_switch:  # its other end lies in a namespace that is about to go
            _ip("link", "del", port, inside=holder, check=False)
        if at_node:  # of a switch that has ended, whose cables the kernel has not taken away yet
            _ip("link", "del", "eth0", inside=init, check=False)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(init.pid), inside=holder)
    _ip("link", "set", port, "master", "bridge", "up", inside=holder)
    _ip("link", "set", "eth0", "address", hardware_address(address), inside=init)
    _ip("addr", "replace", f"{address}/24", "dev", "eth0", inside=init)
    _ip("link", "set", "eth0", "up", inside=init)
    _ip("-batch", str(layout[NEIGHBOURS]), inside=init)


def wait_until_reached(addresses: Iterable[str]) -> None:
    """Wait until this machine reaches every node, for some seconds at most.

    The kernel may be a second late to see a new cable, and remembers for some more that nobody answered without it.
    """
    deadline = time.monotonic() + _REACHED_SECONDS
    for address in addresses:
        while not _is_reached(address) and time.monotonic() < deadline:
            time.sleep(0.02)


def _is_reached(address: str) -> bool:
    """Whether a node answers, if only that nobody listens."""
    try:
        socket.create_connection((address, _NOBODYS_PORT), timeout=0.3).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def remove_switch(layout: Layout, settings: Settings | None) -> None:
    """Stop the switch and remove this machine's cables to it."""
    marks.end(marks.find(layout.directory).get(ROLE, []), signal.SIGKILL, 5)
    deadline = time.monotonic() + _SECONDS
    while left := host_links(layout, settings):
        for link in left:
            _ip("link", "del", link, check=False)
        if time.monotonic() > deadline:
            raise HidlError(f"cannot remove network device {left[0]}", hint=f"ip link del {left[0]}")
        time.sleep(0.02)


def host_links(layout: Layout, settings: Settings | None) -> list[str]:
    """This machine's ends of cables to the cluster's switch, even if their creation was interrupted."""
    mine = host_link(settings.subnet) if settings and settings.subnet is not None else None
    return [
        link["ifname"]
        for link in ip_json("link", "show")
        if link.get("ifalias") == str(layout.directory) or (link["ifname"] == mine and not link.get("ifalias"))
    ]


def ip_json(*words: str) -> list[dict[str, Any]]:
    """Output of ``ip -json`` for links, addresses or routes (IPv4 only)."""
    completed = process.run(["ip", "-4", "-j", *words], env=marks.plain_environment(), timeout=_SECONDS)
    entries = json.loads(completed.stdout or "[]")
    return [entry for entry in entries if entry]  # some versions of ip print {} for what they leave out


def entering(identity: str, kinds: Iterable[str], directory: Path = Path("/")) -> list[str | Path]:
    """The first words of a command line that runs the words after them in a recorded process's namespaces."""
    return [sys.executable, "-IS", entry.__file__, identity, ",".join(kinds), directory]


def _holder(layout: Layout) -> Recorded | None:
    return marks.recorded(layout.directory, ROLE)


def _start_holder(layout: Layout) -> Recorded:
    log = layout.log(ROLE)
    command = ["unshare", "--net", "sleep", "infinity"]
    environment = marks.environment(layout.directory, ROLE)
    child = process.start_detached(command, cwd=Path("/"), env=environment, stdout=log, stderr=log)
    here = Path("/proc/self/ns/net").readlink()
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        if Path(f"/proc/{child.pid}/ns/net").readlink() != here:
            return marks.record(layout.directory, ROLE, child.pid)
        time.sleep(0.005)
    raise HidlError("cannot create the namespace of the cluster's switch", hint=f"see {log}")


def _devices(pid: int) -> list[str]:
    """Network devices in the namespace of a process; empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    return [line.partition(":")[0].strip() for line in lines if ":" in line]


def _link_exists(name: str) -> bool:
    return Path(f"/sys/class/net/{name}").exists()


def _ip(*words: str, inside: Recorded | None = None, check: bool = True) -> None:
    """Run ``ip`` here, or in the network namespace of the process ``inside``."""
    there = [] if inside is None else entering(inside.identity, ["net"])
    process.run([*there, "ip", *words], env=marks.plain_environment(), timeout=_SECONDS, check=check)

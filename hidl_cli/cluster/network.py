"""The network of a cluster: a switch with a cable to each node and one to this machine.

The switch is a bridge in a network namespace of its own, held by a process. There, no packet filter of this machine
(Docker sets one that drops what crosses bridges) comes between the nodes; and when its holder ends, the kernel takes
the switch and all cables away.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from hidl_cli import process
from hidl_cli.cluster import marks
from hidl_cli.cluster.layout import Layout
from hidl_cli.cluster.settings import Settings
from hidl_cli.errors import HidlError

ROLE = "switch"
_SECONDS = 20.0


def host_link(subnet: int) -> str:
    """The name of this machine's end of the cable to the switch."""
    return f"hidl{subnet}"


def ensure_switch(layout: Layout, settings: Settings) -> bool:
    """Make what is missing of the switch and of the cable to this machine; returns whether it had to be made."""
    subnet = settings.subnet
    assert subnet is not None
    link = host_link(subnet)
    holder = _holder(layout)
    made = holder is None or not _link_exists(link)
    if made:
        remove_switch(layout, settings)
        holder = _start_holder(layout)
        _ip("link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", str(holder))
    assert holder is not None
    _ip("link", "set", link, "alias", str(layout.directory))
    _ip("addr", "replace", f"{settings.controller_address}/24", "dev", link)
    _ip("link", "set", link, "up")
    if "bridge" not in _devices(holder):
        _ip("link", "add", "bridge", "type", "bridge", inside=holder)
    _ip("link", "set", "bridge", "up", inside=holder)
    _ip("link", "set", "uplink", "master", "bridge", "up", inside=holder)
    return made


def connect(layout: Layout, settings: Settings, node: str, init: int) -> None:
    """See that the node whose pid 1 is ``init`` has its cable to the switch, and its address."""
    holder = _holder(layout)
    if holder is None:
        raise HidlError("the cluster's switch has vanished", hint="bring the cluster up again: hidl cluster up")
    if "eth0" not in _devices(init):
        if node in _devices(holder):  # its other end lies in a namespace that is about to go
            _ip("link", "del", node, inside=holder, check=False)
        _ip("link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", str(init), inside=holder)
    _ip("link", "set", node, "master", "bridge", "up", inside=holder)
    _ip("addr", "replace", f"{settings.address(node)}/24", "dev", "eth0", inside=init)
    _ip("link", "set", "eth0", "up", inside=init)


def remove_switch(layout: Layout, settings: Settings | None) -> None:
    """End the switch; this machine's cables of this cluster go with it, or are removed."""
    marks.end(marks.find(layout.directory).get(ROLE, []), signal.SIGKILL, 5)
    deadline = time.monotonic() + _SECONDS
    while left := host_links(layout, settings):
        for link in left:
            _ip("link", "del", link, check=False)
        if time.monotonic() > deadline:
            raise HidlError(f"the network device {left[0]} cannot be removed", hint=f"ip link del {left[0]}")
        time.sleep(0.02)


def host_links(layout: Layout, settings: Settings | None) -> list[str]:
    """This machine's ends of cables to the switch of this cluster, also where their making was interrupted."""
    mine = host_link(settings.subnet) if settings and settings.subnet is not None else None
    return [
        link["ifname"]
        for link in ip_json("link", "show")
        if link.get("ifalias") == str(layout.directory) or (link["ifname"] == mine and not link.get("ifalias"))
    ]


def ip_json(*words: str) -> list[dict[str, Any]]:
    """What ``ip -json`` says of links, addresses or routes, of IPv4 alone."""
    completed = process.run(["ip", "-4", "-j", *words], env=marks.plain_environment(), timeout=_SECONDS)
    entries = json.loads(completed.stdout or "[]")
    return [entry for entry in entries if entry]  # some versions of ip print {} for what they leave out


def _holder(layout: Layout) -> int | None:
    return next(iter(marks.find(layout.directory).get(ROLE, [])), None)


def _start_holder(layout: Layout) -> int:
    log = layout.log(ROLE)
    command = ["unshare", "--net", "sleep", "infinity"]
    environment = marks.environment(layout.directory, ROLE)
    child = process.start_detached(command, cwd=Path("/"), env=environment, stdout=log, stderr=log)
    here = Path("/proc/self/ns/net").readlink()
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        if Path(f"/proc/{child.pid}/ns/net").readlink() != here:
            return child.pid
        time.sleep(0.005)
    raise HidlError("the namespace of the cluster's switch could not be made", hint=f"see {log}")


def _devices(pid: int) -> list[str]:
    """The network devices in the namespace of a process; none where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    return [line.partition(":")[0].strip() for line in lines if ":" in line]


def _link_exists(name: str) -> bool:
    return Path(f"/sys/class/net/{name}").exists()


def _ip(*words: str, inside: int | None = None, check: bool = True) -> None:
    """Run ``ip`` here, or in the network namespace of the process ``inside``."""
    entering = [] if inside is None else ["nsenter", "--net", "--target", str(inside)]
    process.run([*entering, "ip", *words], env=marks.plain_environment(), timeout=_SECONDS, check=check)

"""The configuration files and keys of a cluster."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from hidl_cli import process
from hidl_cli.cluster.layout import Layout
from hidl_cli.cluster.settings import MEMORY_MIB, Settings
from hidl_cli.documents import write_text
from hidl_cli.site.machine import machine
from hidl_cli.templates import render_configuration, render_script

PRIVATE_PLACES = {"/tmp": "1777", "/dev/shm": "1777", "/run": "755"}


def write(layout: Layout, settings: Settings) -> frozenset[str]:
    """Write what is missing or has changed; returns the names of the files that have changed."""
    _make_keys(layout)
    changed = set()
    for name, (text, mode) in _rendered(layout, settings).items():
        if _text(layout[name]) != text:
            write_text(layout[name], text, mode=mode)
            changed.add(name)
    return frozenset(changed)


def _rendered(layout: Layout, settings: Settings) -> dict[str, tuple[str, int]]:
    values: dict[str, Any] = {
        "directory": layout.directory,
        "conf": layout.conf,
        "munge_socket": layout.munge_socket,
        "host": os.uname().nodename.split(".")[0],
        "address": settings.controller_address,
        "prefix": settings.prefix,
        "slurmctld_port": settings.slurmctld_port,
        "slurmdbd_port": settings.slurmdbd_port,
        "nodes": [{"name": name, "address": settings.address(name)} for name in settings.node_names],
        "small": min(2, settings.nodes),
        "cpus": settings.cpus_per_node,
        "binds": settings.cpus_per_node <= machine().cores,  # a core that is only claimed cannot be bound to
        "memory": MEMORY_MIB,
        "accounting": settings.accounting,
        "enforce_limits": settings.enforce_limits,
        "pam": _root_is_locked(),
        "places": _places(layout, settings),
    }
    files = {
        "etc/slurm.conf": (render_configuration("cluster/slurm.conf.j2", values), 0o644),
        "etc/hosts": (render_configuration("cluster/hosts.j2", values), 0o644),
        "etc/sshd_config": (render_configuration("cluster/sshd_config.j2", values), 0o644),
        "ssh/config": (render_configuration("cluster/ssh_config.j2", values), 0o644),
        "ssh/known_hosts": (_known_hosts(layout, settings), 0o644),
        "etc/node.sh": (render_script("cluster/node.sh.j2", values), 0o755),
    }
    if settings.accounting:  # slurmdbd starts with no other mode than 600
        files["etc/slurmdbd.conf"] = (render_configuration("cluster/slurmdbd.conf.j2", values), 0o600)
    return files


def _places(layout: Layout, settings: Settings) -> list[dict[str, Any]]:
    """The places that each node has for itself, with the shared directories that lie in them, the outer ones only."""
    shared = sorted({str(layout.directory), *settings.shares})
    outer = [path for path in shared if not any(Path(other) in Path(path).parents for other in shared)]
    return [
        {"path": place, "mode": mode, "shared": [path for path in outer if Path(place) in Path(path).parents]}
        for place, mode in PRIVATE_PLACES.items()
    ]


def is_private(path: Path) -> bool:
    """Whether the path lies in a place that each node has for itself."""
    return any(Path(place) in path.absolute().parents for place in PRIVATE_PLACES)


def _make_keys(layout: Layout) -> None:
    if not layout["etc/munge.key"].exists():
        write_text(layout["etc/munge.key"], secrets.token_hex(64), mode=0o600)
    for name in ("host_key", "id"):
        key, public = layout[f"ssh/{name}"], layout[f"ssh/{name}.pub"]
        if not (key.exists() and public.exists()):
            new = layout[f"ssh/{name}.new"]
            new.unlink(missing_ok=True)
            process.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hidl cluster", "-f", new], timeout=30)
            new.with_name(f"{new.name}.pub").replace(public)
            new.replace(key)


def _known_hosts(layout: Layout, settings: Settings) -> str:
    kind, key, *_ = layout["ssh/host_key.pub"].read_text(encoding="ascii").split()
    return f"{','.join(settings.node_names)},{settings.prefix}* {kind} {key}\n"


def _root_is_locked() -> bool:
    """Whether root has a password that is locked, as on Ubuntu."""
    lines = (_text(Path("/etc/shadow")) or "").splitlines()
    return any(line.startswith("root:!") for line in lines)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None

"""The configuration files and keys of a cluster."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.templates import render_configuration, render_script
from hidl_twin import TEMPLATES, network, rules
from hidl_twin.dress import Dress
from hidl_twin.layout import Layout
from hidl_twin.settings import Settings
from hidl_twin.twin import surroundings

PRIVATE_PLACES = {"/tmp": "1777", "/dev/shm": "1777", "/run": "755"}


def write(layout: Layout, settings: Settings, dress: Dress) -> frozenset[str]:
    """Write missing and changed files; return the names of the changed ones."""
    _make_keys(layout)
    changed = set()
    for name, (text, mode) in _rendered(layout, settings, dress).items():
        if _text(layout[name]) != text:
            write_text(layout[name], text, mode=mode)
            changed.add(name)
    return frozenset(changed)


def _rendered(layout: Layout, settings: Settings, dress: Dress) -> dict[str, tuple[str, int]]:
    addresses = settings.addresses(dress)
    values: dict[str, Any] = {
        "directory": layout.directory,
        "conf": layout.conf,
        "munge_socket": layout.munge_socket,
        "host": os.uname().nodename.split(".")[0],
        "full_host": os.uname().nodename,
        "address": settings.controller_address,
        "prefix": settings.prefix,
        "slurmctld_port": settings.slurmctld_port,
        "slurmdbd_port": settings.slurmdbd_port,
        "cluster": dress.cluster,
        "hosts": [{"address": addresses[host.name], "it": host} for host in dress.hosts],
        "queues": dress.queues,
        "machines": [
            {"name": name, "full_name": full, "address": addresses[name]} for name, full in dress.machines.items()
        ],
        "is_twin": dress.site is not None,
        "srun_mpi": dress.srun_mpi,
        "accounting": settings.accounting,
        "enforce_limits": settings.enforce_limits,
        "pam": _root_is_locked(),
        "places": _places(layout, settings),
        "grafts": surroundings.grafts(layout),
        "modulefiles": layout["site/modulefiles"] if dress.site else None,
    }
    files = {
        "etc/hosts": (render_configuration("hosts.j2", values, TEMPLATES), 0o644),
        network.NEIGHBOURS: (network.neighbours({settings.controller_address, *addresses.values()}), 0o644),
        "etc/sshd_config": (render_configuration("sshd_config.j2", values, TEMPLATES), 0o644),
        "ssh/config": (render_configuration("ssh_config.j2", values, TEMPLATES), 0o644),
        "ssh/known_hosts": (_known_hosts(layout, settings, dress), 0o644),
        **({"etc/modulespath": (f"{layout['site/modulefiles']}\n", 0o644)} if dress.site else {}),
        "etc/node.sh": (render_script("node.sh.j2", values, TEMPLATES), 0o755),
    }
    if dress.scheduler == "slurm":
        files |= _of_slurm(settings, dress, values)
    return files


def _of_slurm(settings: Settings, dress: Dress, values: dict[str, Any]) -> dict[str, tuple[str, int]]:
    files = {"etc/slurm.conf": (render_configuration("slurm.conf.j2", values, TEMPLATES), 0o644)}
    if any(host.gpus for host in dress.hosts):
        files["etc/gres.conf"] = (render_configuration("gres.conf.j2", values, TEMPLATES), 0o644)
    if dress.site is not None:
        files["etc/job_submit.lua"] = (rules.job_submit(dress, enforce_limits=settings.enforce_limits), 0o644)
    if settings.accounting:  # slurmdbd starts with no other mode than 600
        files["etc/slurmdbd.conf"] = (render_configuration("slurmdbd.conf.j2", values, TEMPLATES), 0o600)
    return files


def _places(layout: Layout, settings: Settings) -> list[dict[str, Any]]:
    """Private places of each node, with the outermost shared directories in them."""
    shared = sorted({str(layout.directory), *settings.shares})
    outer = [path for path in shared if not any(Path(other) in Path(path).parents for other in shared)]
    return [
        {"path": place, "mode": mode, "shared": [path for path in outer if Path(place) in Path(path).parents]}
        for place, mode in PRIVATE_PLACES.items()
    ]


def is_private(path: Path) -> bool:
    """Whether the path lies in a private place of each node."""
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


def _known_hosts(layout: Layout, settings: Settings, dress: Dress) -> str:
    kind, key, *_ = layout["ssh/host_key.pub"].read_text(encoding="ascii").split()
    names = dict.fromkeys([*dress.machines, *dress.machines.values()])
    return f"{','.join(names)},{settings.prefix}* {kind} {key}\n"


def _root_is_locked() -> bool:
    """Whether root's password is locked, as on Ubuntu."""
    lines = (_text(Path("/etc/shadow")) or "").splitlines()
    return any(line.startswith("root:!") for line in lines)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None

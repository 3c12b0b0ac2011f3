"""The Slurm cluster that ``hidl cluster up`` starts on this machine: its size, and how Slurm commands find it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import paths
from hidl_cli.documents import read_json
from hidl_cli.quoting import sh

SETTINGS, DRESS, CONFIGURATION = "cluster.json", "dress.json", "etc/slurm.conf"
"""Files in a cluster's directory: its settings, its description, and Slurm's configuration."""

_VARIABLE = "SLURM_CONF"
_ELSEWHERE = (_VARIABLE, "SLURM_CONF_SERVER")
_DEVICES = Path("/sys/class/net")


@dataclass(frozen=True)
class QueueLimits:
    """A partition's limits: nodes per job, and run time in minutes (None if unlimited)."""

    max_nodes: int
    max_minutes: int | None


@dataclass(frozen=True)
class ClusterSize:
    """The limits of each partition, and the ``count``, ``cores`` and ``memory_gib`` of each kind of node."""

    of_nodes: Mapping[str, Mapping[str, float]]
    queues: Mapping[str, QueueLimits]


def default_directory() -> Path:
    """Return ``$XDG_STATE_HOME/hidl/cluster``."""
    return paths.user_state() / "cluster"


def host_link(subnet: int) -> str:
    """Return the name of this machine's network device for the cluster. Its alias is set to the cluster's directory."""
    return f"hidl{subnet}"


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``variables``, with ``SLURM_CONF`` added if it is unset and hidl's default cluster is running."""
    if any(variables.get(name) for name in _ELSEWHERE):
        return dict(variables)
    directory = default_directory().resolve()
    return dict(variables) | ({_VARIABLE: str(directory / CONFIGURATION)} if _runs(directory) else {})


def size(variables: Mapping[str, str] = os.environ) -> ClusterSize | None:
    """Return the size of the cluster that Slurm commands use, or else of the default cluster.

    Returns None if the size is unknown.
    """
    try:
        document = read_json((_directory(variables) or default_directory()) / DRESS)
        hosts = document["hosts"]
        of_kind = {host["kind"]: host for host in hosts}
        return ClusterSize(
            of_nodes={
                "count": {kind: sum(host["kind"] == kind for host in hosts) for kind in of_kind},
                "cores": {kind: host["sockets"] * host["cores_per_socket"] for kind, host in of_kind.items()},
                "memory_gib": {kind: host["memory_mib"] / 1024 for kind, host in of_kind.items()},
            },
            queues={
                queue["name"]: QueueLimits(
                    min(len(queue["hosts"]), queue["max_nodes"] or len(queue["hosts"])), queue["max_minutes"]
                )
                for queue in document["queues"]
            },
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def line_that_helps(variables: Mapping[str, str] = os.environ) -> str | None:
    """Suggest a command to run if no controller responds.

    Returns None if Slurm commands use a cluster that hidl did not create.
    """
    if not any(variables.get(name) for name in _ELSEWHERE):
        return 'hidl cluster up; if it is up in another directory, run: eval "$(hidl cluster env --directory DIR)"'
    if (directory := _directory(variables)) is None:
        return None
    default = directory == default_directory().resolve()
    return "hidl cluster up" + ("" if default else f" --directory {sh(str(directory))}")


def _directory(variables: Mapping[str, str]) -> Path | None:
    """Return the directory of the cluster in ``SLURM_CONF``, or None if hidl did not create it."""
    conf = Path(variables.get(_VARIABLE, ""))
    directory = conf.parent.parent
    return directory if conf == directory / CONFIGURATION and (directory / SETTINGS).is_file() else None


def _runs(directory: Path) -> bool:
    """Return whether the cluster in this directory runs on this machine. Other machines may share the directory."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        alias = _DEVICES / host_link(read_json(directory / SETTINGS)["subnet"]) / "ifalias"
        return alias.read_text(encoding="utf-8").strip() == str(directory)
    return False

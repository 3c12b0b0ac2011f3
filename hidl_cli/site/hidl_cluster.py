"""The Slurm that ``hidl cluster up`` brings up on this machine: how Slurm's commands find it, and how large it is."""

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
"""Files in a cluster's directory: what was asked for, what it looks like, and Slurm's own."""

_VARIABLE = "SLURM_CONF"
_ELSEWHERE = (_VARIABLE, "SLURM_CONF_SERVER")
_DEVICES = Path("/sys/class/net")


@dataclass(frozen=True)
class Queue:
    """A partition: most nodes of a job, and the longest run time in minutes; None: no limit."""

    max_nodes: int
    max_minutes: int | None


@dataclass(frozen=True)
class Size:
    """Its partitions by name; of its nodes, by kind, ``count``, and ``cores`` and ``memory_gib`` of one."""

    of_nodes: Mapping[str, Mapping[str, float]]
    queues: Mapping[str, Queue]


def default_directory() -> Path:
    """``$XDG_STATE_HOME/hidl/cluster``."""
    return paths.user_state() / "cluster"


def host_link(subnet: int) -> str:
    """The network device of this machine at the cluster's switch; its alias is the cluster's directory."""
    return f"hidl{subnet}"


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``variables``, with ``SLURM_CONF`` of the cluster in the default directory where it runs and none is set."""
    if any(variables.get(name) for name in _ELSEWHERE):
        return dict(variables)
    directory = default_directory().resolve()
    return dict(variables) | ({_VARIABLE: str(directory / CONFIGURATION)} if _runs(directory) else {})


def size(variables: Mapping[str, str] = os.environ) -> Size | None:
    """The size of the cluster that Slurm's commands use, else of the one in the default directory; None: unknown."""
    try:
        document = read_json((_directory(variables) or default_directory()) / DRESS)
        hosts = document["hosts"]
        of_kind = {host["kind"]: host for host in hosts}
        return Size(
            of_nodes={
                "count": {kind: sum(host["kind"] == kind for host in hosts) for kind in of_kind},
                "cores": {kind: host["sockets"] * host["cores_per_socket"] for kind, host in of_kind.items()},
                "memory_gib": {kind: host["memory_mib"] / 1024 for kind, host in of_kind.items()},
            },
            queues={
                queue["name"]: Queue(
                    min(len(queue["hosts"]), queue["max_nodes"] or len(queue["hosts"])), queue["max_minutes"]
                )
                for queue in document["queues"]
            },
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def line_that_helps(variables: Mapping[str, str] = os.environ) -> str | None:
    """What to type where no controller answers; None: Slurm's commands use a cluster that is not hidl's."""
    if not any(variables.get(name) for name in _ELSEWHERE):
        return 'hidl cluster up; if it is up in another place: eval "$(hidl cluster env --directory DIR)"'
    if (directory := _directory(variables)) is None:
        return None
    default = directory == default_directory().resolve()
    return "hidl cluster up" + ("" if default else f" --directory {sh(str(directory))}")


def _directory(variables: Mapping[str, str]) -> Path | None:
    """The directory of the cluster that ``SLURM_CONF`` names; None where it is none of hidl's."""
    conf = Path(variables.get(_VARIABLE, ""))
    directory = conf.parent.parent
    return directory if conf == directory / CONFIGURATION and (directory / SETTINGS).is_file() else None


def _runs(directory: Path) -> bool:
    """Whether the cluster in a directory runs on this very machine: others may share the directory."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        alias = _DEVICES / host_link(read_json(directory / SETTINGS)["subnet"]) / "ifalias"
        return alias.read_text(encoding="utf-8").strip() == str(directory)
    return False

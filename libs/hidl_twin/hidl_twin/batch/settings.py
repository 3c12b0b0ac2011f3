"""What the cluster of a stand-in scheduler is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hidl_cli.documents import read_json, write_json


@dataclass(frozen=True)
class Host:
    """A compute host. ``slots``: its cores; ``memory_gib``: None where it is not known."""

    slots: int = 42
    threads_per_core: int = 4
    gpus: int = 0
    memory_gib: float | None = None
    model: str = "POWER9"


@dataclass(frozen=True)
class Queue:
    """``hosts``: names; empty: all. ``run_limits``: pairs (most nodes, or None for any size; minutes).

    ``max_nodes`` is the site's limit, which may be beyond the hosts that there are; None: none is known.
    """

    hosts: tuple[str, ...] = ()
    min_nodes: int = 1
    max_nodes: int | None = None
    run_limits: tuple[tuple[int | None, float], ...] = ()

    def run_limit(self, nodes: int) -> float | None:
        """The longest run time of a job of so many nodes, in minutes; None: no limit."""
        return next((minutes for most, minutes in self.run_limits if most is None or nodes <= most), None)


@dataclass(frozen=True)
class Settings:
    """``hosts`` by name; empty: every job gets node01, node02, ... which need not exist (``remote`` is empty then).

    ``launch_host`` stands beside the compute hosts, and runs the scripts; None: the first compute host does.
    ``remote``: the command before a host's name that runs a command there; empty: all runs on this machine.
    ``required``: options without which the site refuses a job. ``site_nodes``: how many nodes the site itself
    has. ``mpi``: prefix of the MPI beneath the site's launcher if none is on PATH.
    ``login``: the variables that a login shell sets on every host; a job may have others from its submission.

    The rest is for trials: times, and faults.
    """

    cluster: str = "fake"
    version: str = "10.1.0.9"
    login_host: str = "login1"
    launch_host: str | None = "launch1"
    hosts: Mapping[str, Host] = field(default_factory=dict)
    queues: Mapping[str, Queue] = field(default_factory=lambda: {"batch": Queue(), "debug": Queue()})
    default_queue: str | None = "batch"
    required: tuple[str, ...] = ()
    remote: tuple[str, ...] = ()
    site_nodes: int | None = None
    mpi: str | None = None
    login: Mapping[str, str] = field(default_factory=dict)

    default_minutes: float | None = None  # the run limit of a job that gives none; None: the queue's
    parse_script: bool = True  # LSB_BSUB_PARSE_SCRIPT: "bsub FILE" reads FILE's #BSUB lines
    minute: float = 60.0  # how long a minute of a run limit takes, in seconds
    interval: float = 10.0  # between two signals to a job that is to end, the last of which is SIGKILL
    clean_period: float = 3600.0  # how long an ended job is shown
    lag: float = 0.0  # how long an ended job is still shown as running
    pending: str = ""  # a reason: no job starts while it is there
    down: bool | str = False  # the daemon does not answer (or not to the command named here)
    mute: bool = False  # submission takes the job, and then hangs
    noise: str = ""  # what a filter of the site prints with every submission
    killer: str = "TERM_OWNER"  # why a cancelled job has ended, by the words of store.REASONS
    hide: bool = False  # every job is forgotten for the moment

    def slots(self, host: str) -> int:
        """The slots (cores) of a compute host."""
        return (self.hosts[host] if host in self.hosts else Host()).slots


def load(file: Path) -> Settings:
    """Read the settings; what the file does not give has its default."""
    document = read_json(file) if file.is_file() else {}
    known = {each.name for each in fields(Settings)}
    values: dict[str, Any] = {name: value for name, value in document.items() if name in known}
    if "hosts" in values:
        values["hosts"] = {name: Host(**host) for name, host in values["hosts"].items()}
    if "queues" in values:
        values["queues"] = {name: _queue(queue) for name, queue in values["queues"].items()}
    for name in ("required", "remote"):
        values[name] = tuple(values.get(name, ()))
    return Settings(**values)


def save(file: Path, settings: Settings) -> None:
    """Write the settings."""
    write_json(file, {"schema": "hidl.twin-scheduler/1", **asdict(settings)})


def _queue(document: Mapping[str, Any]) -> Queue:
    limits = tuple((most, minutes) for most, minutes in document.get("run_limits", ()))
    return Queue(**{**document, "hosts": tuple(document.get("hosts", ())), "run_limits": limits})

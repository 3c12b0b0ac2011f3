"""``mpiexec`` of PALS, HPE Cray's launcher beside PBS: ranks on the hosts of ``$PBS_NODEFILE``."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hidl_twin.batch import ranks
from hidl_twin.batch.ranks import Task
from hidl_twin.batch.store import Store

_NUMBERS = {"-n": "n", "-np": "n", "--np": "n", "-ppn": "ppn", "--ppn": "ppn", "-d": "depth", "--depth": "depth"}
_VALUES = {
    "--cpu-bind": "cpu_bind",
    "-cpu-bind": "cpu_bind",
    "--hosts": "hosts",
    "-hosts": "hosts",
    "-host": "hosts",
    "--hostfile": "hostfile",
    "-f": "hostfile",
    "--wdir": "wdir",
    "-wdir": "wdir",
}
_IGNORED_VALUES = ("--mem-bind", "--gpu-bind", "--pmi", "--rlimits", "--envlist", "--genvlist")
_IGNORED = ("--line-buffer", "--no-vni", "--genvall", "-genvall", "--envall", "--abort-on-failure", "-v", "--verbose")
_ENV = ("--env", "-env", "--genv", "-genv")


def mpiexec(store: Store, arguments: Sequence[str]) -> None:
    """Start the ranks, wait for them, and end with the status of the one that failed first."""
    print("mpiexec: a stand-in for PALS of HPE Cray, made by hidl.", file=sys.stderr)
    asked, environment, program = _parse(arguments)
    if not program:
        _fail("no executable was specified")
    slots = _slots(asked)
    tasks = _place(store, asked, slots)
    launcher = ranks.find(
        "mpiexec", "hydra_pmi_proxy", first=store.settings.mpi, path=os.environ.get("PATH", os.defpath)
    )
    if launcher is None:
        _fail("no MPICH here to start ranks with")
    step: dict[str, Any] = {
        "launcher": "mpiexec",
        "program": program,
        "cwd": asked.get("wdir", str(Path.cwd())),
        "environment": {**os.environ, **environment},
        "threads": 1 if asked.get("cpu_bind") == "core" else _threads(store, tasks),
        "openmp": False,
    }
    with tempfile.TemporaryDirectory(prefix="pals-", dir=_shared(store)) as directory:
        child = ranks.run(store["pbs.py"], Path(directory), tasks, step, launcher)
        status = ranks.status(Path(directory), ranks.wait(child))
    sys.exit(status)


def _parse(arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    asked: dict[str, Any] = {}
    environment: dict[str, str] = {}
    words = list(arguments)
    while words and words[0].startswith("-"):
        word, sign, value = words.pop(0).partition("=")
        if word == "--":
            break
        if word in _IGNORED or (word in ("-l", "--label") and not sign):
            continue
        if word not in (*_NUMBERS, *_VALUES, *_IGNORED_VALUES, *_ENV):
            _fail(f"unrecognized option '{word}'")
        if not sign:
            if not words:
                _fail(f"option requires an argument -- '{word}'")
            value = words.pop(0)
        if word in _NUMBERS:
            if not value.isdecimal() or int(value) < 1:
                _fail(f"invalid argument for option {word}: {value}")
            asked[_NUMBERS[word]] = int(value)
        elif word in _VALUES:
            asked[_VALUES[word]] = value
        elif word in _ENV:
            name, given, text = value.partition("=")
            environment[name] = text if given else words.pop(0)
    return asked, environment, words


def _slots(asked: dict[str, Any]) -> list[str]:
    """A host for each slot, in order."""
    if "hosts" in asked:
        return str(asked["hosts"]).split(",")
    file = asked.get("hostfile") or os.environ.get("PBS_NODEFILE")
    try:
        lines = Path(file or "").read_text(encoding="utf-8").split("\n")
    except OSError as error:
        _fail(f"cannot read the hosts of the job: {error.strerror}: {file or 'PBS_NODEFILE is not set'}")
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


def _place(store: Store, asked: dict[str, Any], slots: list[str]) -> list[Task]:
    hosts = list(dict.fromkeys(slots))
    each = asked.get("ppn") or max(slots.count(host) for host in hosts)
    total = asked.get("n") or each * len(hosts)
    if total > each * len(hosts):
        _fail(f"{total} ranks of {each} per host do not fit on {len(hosts)} hosts")
    bind, depth = str(asked.get("cpu_bind", "none")), int(asked.get("depth", 1))
    tasks = []
    for rank in range(total):
        host, local = hosts[rank // each], rank % each
        size = min(each, total - rank // each * each)
        variables = {
            "PALS_RANKID": str(rank),
            "PALS_LOCAL_RANKID": str(local),
            "PALS_LOCAL_SIZE": str(size),
            "PALS_NODEID": str(rank // each),
            "PALS_DEPTH": str(depth),
            "PMI_LOCAL_RANK": str(local),
            "PMI_LOCAL_SIZE": str(size),
        }
        cores = _cores(bind, depth, local, store.settings.slots(host))
        tasks.append(Task(rank, host, local, size, cores, (), variables))
    return tasks


def _cores(bind: str, depth: int, local: int, slots: int) -> tuple[int, ...]:
    """The cores of a rank; empty: it is not bound."""
    kind, _, rest = bind.removeprefix("verbose,").partition(":")
    if kind == "list":
        parts = rest.split(":")
        found: list[int] = []
        for part in parts[local % len(parts)].split(","):
            low, _, high = part.partition("-")
            found += range(int(low), int(high or low) + 1)
        return tuple(found)
    if kind in ("depth", "core", "thread"):
        first = local * depth
        if first + depth > slots:
            _fail(f"--cpu-bind {bind}: rank {local} of a host needs cores {first} to {first + depth - 1} of {slots}")
        return tuple(range(first, first + depth))
    if kind not in ("none", "numa", "socket"):
        _fail(f"invalid argument for option --cpu-bind: {bind}")
    return ()


def _threads(store: Store, tasks: Sequence[Task]) -> int:
    hosts = store.settings.hosts
    return max((hosts[task.host].threads_per_core for task in tasks if task.host in hosts), default=1)


def _shared(store: Store) -> Path:
    """A directory that every host sees."""
    found = re.match(r"\d+", os.environ.get("PBS_JOBID", ""))
    directory = store.job_directory(found[0]) if found else store.directory
    return directory if directory.is_dir() else Path.cwd()


def _fail(words: str) -> NoReturn:
    print(f"mpiexec: {words}", file=sys.stderr)
    sys.exit(255)

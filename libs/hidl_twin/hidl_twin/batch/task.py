"""What starts one rank on its host: the environment of the launcher's caller, the binding, the status."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hidl_cli import process
from hidl_cli.documents import read_json, write_text
from hidl_twin.batch.store import Store

#: What the runtime beneath tells a rank.
_OF_THE_RUNTIME = re.compile(r"(PMIX|PRTE|PMI|OMPI|HYD[A-Z]*)_\w+|PMI_\w+|MPI_LOCAL\w+|OPAL_PREFIX")


def task(_: Store, arguments: Sequence[str]) -> None:
    """Be the rank whose number the runtime tells, of the step in that directory; and end as it ends."""
    directory = Path(arguments[0])
    step = read_json(directory / "step.json")
    rank = int(os.environ.get("PMIX_RANK") or os.environ["PMI_RANK"])
    mine: dict[str, Any] = step["tasks"][rank]
    places = _bind(mine["cores"], step["threads"], step["launcher"] if rank == 0 else None)
    environment = _environment(step, mine, places)
    if step.get("individual"):
        _redirect(step, rank)
    try:
        child = process.start_attached(step["program"], cwd=Path(step["cwd"]), env=environment)
    except OSError as error:
        print(f"Error: {step['launcher']}: {step['program'][0]}: {error.strerror}", file=sys.stderr)
        _conclude(directory, rank, 127)
        sys.exit(127)

    def pass_on(number: int, _: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    status = child.wait()
    _conclude(directory, rank, status if status >= 0 else 128 - status)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _environment(step: Mapping[str, Any], mine: Mapping[str, Any], places: str) -> dict[str, str]:
    environment: dict[str, str] = dict(step["environment"])
    environment |= {name: value for name, value in os.environ.items() if _OF_THE_RUNTIME.fullmatch(name)}
    environment |= mine["variables"]
    if mine["gpus"]:
        environment[step.get("gpu_variable", "CUDA_VISIBLE_DEVICES")] = ",".join(str(gpu) for gpu in mine["gpus"])
    if mine["cores"]:
        if step.get("openmp", True):
            environment.setdefault("OMP_NUM_THREADS", str(len(mine["cores"]) * step["threads"]))
        if places and step.get("openmp", True):
            environment.setdefault("OMP_PLACES", places)
    for assignment in step.get("evaluated", ()):
        name, _, value = assignment.partition("=")
        environment[name] = re.sub(r"\$\{?(\w+)\}?", lambda found: environment.get(found[1], ""), value)
    return environment


def _bind(cores: Sequence[int], threads: int, launcher: str | None) -> str:
    """Bind this process, and the rank that it starts, to the cores; returns them as OpenMP's places.

    Of each core the first ``threads`` hardware threads are taken. A host that has fewer cores than the site's gives
    them in turn.
    """
    if not cores:
        return ""
    here = _cores_here()
    if max(cores) >= len(here):
        if launcher:
            print(f"{launcher}: this host has {len(here)} core(s): ranks are bound to them in turn.", file=sys.stderr)
        cores = sorted({core % len(here) for core in cores})
    chosen = [here[core][:threads] for core in cores]
    try:
        os.sched_setaffinity(0, {cpu for cpus in chosen for cpu in cpus})
    except OSError as error:
        print(f"cannot bind a rank: {error.strerror}", file=sys.stderr)
        return ""
    return ",".join(_place(cpus) for cpus in chosen)


def _cores_here() -> list[list[int]]:
    """The CPUs of each core that this process may use, by the kernel's account of which share one."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text(encoding="ascii") if siblings.is_file() else str(cpu), []).append(cpu)
    return list(cores.values())


def _place(cpus: Sequence[int]) -> str:
    consecutive = cpus[-1] - cpus[0] == len(cpus) - 1
    return f"{{{cpus[0]}:{len(cpus)}}}" if consecutive else f"{{{','.join(str(cpu) for cpu in cpus)}}}"


def _redirect(step: Mapping[str, Any], rank: int) -> None:
    """-e individual: a file for each rank."""
    for stream, name in ((1, step["stdout"]), (2, step["stderr"] or step["stdout"])):
        if name:
            descriptor = os.open(Path(step["cwd"], f"{name}_0_{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(descriptor, stream)


def _conclude(directory: Path, rank: int, status: int) -> None:
    write_text(directory / f"ended.{rank}", json.dumps([time.time(), status]))

"""``flux run``: ranks on the nodes of the job."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hidl_twin.batch import ranks
from hidl_twin.batch.ranks import Task
from hidl_twin.batch.store import Store
from hidl_twin.flux import options, resource
from hidl_twin.flux.hosts import expand


def run(store: Store, arguments: Sequence[str]) -> None:
    """Start the ranks, wait for them, and end with the status of the one that failed first."""
    given = options.parse("run", arguments)
    if not given.command:
        _fail("job command and arguments are missing")
    job = resource.own_job(store)
    if job is None:
        _fail("this stand-in starts ranks within jobs alone: flux batch")
    hosts = _required(given.requires, job.hosts)
    nodes = given.nodes or (len(hosts) if given.tasks_per_node else None)
    each_task = given.cores or 1
    total = given.ntasks or (nodes or 1) * (given.tasks_per_node or 1)
    slots = min(store.settings.slots(host) for host in hosts)
    per_node = -(-total // nodes) if nodes else max(1, slots // each_task)
    used = nodes or -(-total // per_node)
    gpus = min(store.settings.hosts[host].gpus if host in store.settings.hosts else 0 for host in hosts)
    if used > len(hosts) or per_node * each_task > slots or per_node * (given.gpus or 0) > gpus:
        print('job.exception type=alloc severity=0 alloc denied due to type="unsatisfiable"', file=sys.stderr)
        sys.exit(1)
    own = dict(one.partition("=")[::2] for one in given.setopt)
    step_directory = store.job_directory(job.id) / f"step-{os.getpid()}"
    step_directory.mkdir(exist_ok=True)
    if given.exclusive:
        each_task, shared = max(1, slots // per_node), gpus
    else:
        shared = per_node * (given.gpus or 0)
    tasks = _place(hosts[:used], total, (each_task, given.gpus or 0), shared, own)
    launcher = ranks.find(
        "mpiexec", "hydra_pmi_proxy", first=store.settings.mpi, path=os.environ.get("PATH", os.defpath)
    )
    if launcher is None:
        _fail("no MPICH here to start ranks with")
    step: dict[str, Any] = {
        "launcher": "flux-run",
        "program": given.command,
        "cwd": given.cwd or str(Path.cwd()),
        "environment": _environment(given.env, given.env_remove, os.environ),
        "threads": max((host.threads_per_core for host in store.settings.hosts.values()), default=1),
        "openmp": False,
    }
    child = ranks.run(store["flux.py"], step_directory, tasks, step, launcher)
    late = threading.Event()
    if given.time_limit:

        def end() -> None:
            late.set()
            child.send_signal(signal.SIGTERM)

        timer = threading.Timer(options.seconds(given.time_limit), end)
        timer.daemon = True
        timer.start()
    status = ranks.status(step_directory, ranks.wait(child))
    if late.is_set():
        print("job.exception type=timeout severity=0 resource allocation expired", file=sys.stderr)
        status = 142
    elif status:
        told = f"exited with exit code {status}" if status < 128 else signal.strsignal(status - 128)
        print(f"flux-job: task(s) {told}", file=sys.stderr)
    sys.exit(status)


def _required(constraints: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """Those of the hosts that --requires=host:LIST (or hosts:, hostlist:) names."""
    found = list(hosts)
    for constraint in constraints:
        kind, _, names = constraint.partition(":")
        if kind not in ("host", "hosts", "hostlist"):
            _fail(f"--requires={constraint}: unsupported by this stand-in")
        wanted = expand(names)
        if unknown := [name for name in wanted if name not in hosts]:
            _fail(f"invalid jobspec: host constraint contains invalid hosts: host '{unknown[0]}' not found")
        found = [name for name in found if name in wanted]
    return found


def _place(hosts: Sequence[str], total: int, each: tuple[int, int], shared: int, own: Mapping[str, str]) -> list[Task]:
    """Blocks of ranks on the hosts, as even as can be; bound by -o cpu-affinity and gpu-affinity.

    ``each``: cores and GPUs of a rank; ``shared``: GPUs of a host that ranks see which have none of their own.
    """
    cores, gpus = each
    affinity = own.get("cpu-affinity", "on")
    least, more = divmod(total, len(hosts))
    tasks: list[Task] = []
    for index, host in enumerate(hosts):
        size = least + (index < more)
        for local in range(size):
            rank = len(tasks)
            if affinity == "off":
                bound: tuple[int, ...] = ()
            elif affinity == "per-task":
                bound = tuple(range(local * cores, (local + 1) * cores))
            else:
                bound = tuple(range(size * cores))
            apart = own.get("gpu-affinity") == "per-task"
            first, last = (local * gpus, (local + 1) * gpus) if apart else (0, shared)
            variables = {
                "FLUX_TASK_RANK": str(rank),
                "FLUX_TASK_LOCAL_ID": str(local),
                "FLUX_JOB_SIZE": str(total),
                "FLUX_JOB_NNODES": str(len(hosts)),
                "PMI_LOCAL_RANK": str(local),
                "PMI_LOCAL_SIZE": str(size),
            }
            given = tuple(range(first, last)) if own.get("gpu-affinity") != "off" else ()
            tasks.append(Task(rank, host, local, size, bound, given, variables))
    return tasks


def _environment(rules: Sequence[str], removed: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What ranks get: all of it, less --env-remove, with --env=NAME=VALUE."""
    found = dict(environ)
    for pattern in removed:
        shape = re.escape(pattern).replace(r"\*", ".*")
        found = {name: value for name, value in found.items() if not re.fullmatch(shape, name)}
    for rule in rules:
        name, sign, value = rule.partition("=")
        if sign:
            found[name] = value
        elif rule.startswith("-"):
            found.pop(rule[1:], None)
    return found


def _fail(words: str) -> NoReturn:
    print(f"flux-run: ERROR: {words}", file=sys.stderr)
    sys.exit(1)

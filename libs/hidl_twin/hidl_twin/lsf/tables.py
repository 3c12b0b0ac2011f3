"""``bqueues``, ``bhosts``, ``lshosts``, ``lsid`` and ``bparams``: what the cluster is."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import Job, Store, refuse


def lsid(store: Store, _: Sequence[str]) -> None:
    """Tell the version and the names of cluster and master."""
    settings = store.settings
    print(f"IBM Spectrum LSF Standard {settings.version}, Oct 16 2019\nA stand-in, which hidl made.\n")
    print(f"My cluster name is {settings.cluster}\nMy master name is {settings.launch_host or settings.login_host}")


def bparams(store: Store, _: Sequence[str]) -> None:
    """Tell parameters of the cluster."""
    if (default := store.settings.default_queue) is not None:
        print(f"Default Queues:  {default}")
    print("MBD_SLEEP_TIME used for calculations:  10 seconds\nJob Checking Interval:  7 seconds")
    print("Job Accepting Interval:  0 seconds")


def bqueues(store: Store, arguments: Sequence[str]) -> None:
    """Tell of queues: a line for each, or all about them (-l)."""
    settings, jobs = store.settings, store.jobs()
    named = [word for word in arguments if not word.startswith("-")]
    if unknown := [name for name in named if name not in settings.queues]:
        refuse(f"{unknown[0]}: No such queue")
    chosen = named or list(settings.queues)
    if "-l" in arguments:
        between = f"\n{'-' * 79}\n\n"
        print(between.join(_queue(settings, name, jobs) for name in chosen))
        return
    print("QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP")
    for name in chosen:
        pending, running = _counts(name, jobs)
        print(f"{name:<15} {30:>4} {'Open:Active':<15} {'-':>3} {'-':>4} {'-':>4} {'-':>4}", end="")
        print(f"{pending + running:>6}{pending:>6}{running:>6}{0:>6}")


def _counts(queue: str, jobs: Sequence[Job]) -> tuple[int, int]:
    """How many nodes jobs wait for, and use; LSF itself counts slots."""
    of_it = [job for job in jobs if job.queue == queue]
    return sum(job.nodes for job in of_it if job.stat == "PEND"), sum(
        len(job.hosts) for job in of_it if job.stat == "RUN"
    )


def _queue(settings: Settings, name: str, jobs: Sequence[Job]) -> str:
    queue = settings.queues[name]
    pending, running = _counts(name, jobs)
    default = "  -- This is the default queue." if name == settings.default_queue else ""
    lines = [f"\nQUEUE: {name}", f"  -- Of the twin of {settings.cluster}.{default}", "", "PARAMETERS/STATISTICS"]
    lines.append("PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS")
    numbers = "".join(f"{number:>6}" for number in (pending + running, pending, running, 0, 0))
    lines.append(f" 30    0  Open:Active      -    -    -    -{numbers}    0     0")
    lines += ["Interval for a host to accept two jobs is 0 seconds", ""]
    if limits := [minutes for _, minutes in queue.run_limits]:
        lines += ["MAXIMUM LIMITS:", " RUNLIMIT                ", f" {max(limits):.1f} min", ""]
    if queue.max_nodes is not None:
        lines += [f"MAXIMUM NODES: {queue.max_nodes}", ""]
    lines += ["SCHEDULING POLICIES:  EXCLUSIVE", "", "USERS: all"]
    lines += [f"HOSTS:  {' '.join(queue.hosts) or 'all'} "]
    return "\n".join(lines)


def states(settings: Settings, jobs: Sequence[Job]) -> dict[str, str]:
    """The state of each compute host: a job has the whole of it."""
    taken = {host for job in jobs if job.stat == "RUN" for host in job.hosts}
    return {name: "closed_Full" if name in taken else "ok" for name in settings.hosts}


def bhosts(store: Store, arguments: Sequence[str]) -> None:
    """Tell which hosts run jobs, and which are taken."""
    settings = store.settings
    status = states(settings, store.jobs())
    named = [word for word in arguments if not word.startswith("-")]
    print("HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV")
    if settings.launch_host and (not named or settings.launch_host in named):
        print(f"{settings.launch_host:<18} {'ok':<15} {'-':>4} {'-':>6}" + f"{0:>7}" * 5)
    for name, host in settings.hosts.items():
        if named and name not in named:
            continue
        used = host.slots if status[name] != "ok" else 0
        print(f"{name:<18} {status[name]:<15} {'-':>4} {host.slots:>6}{used:>7}{used:>7}" + f"{0:>7}" * 3)


def lshosts(store: Store, _: Sequence[str]) -> None:
    """Tell what the hosts are: CN are compute nodes, LN launch nodes."""
    settings = store.settings
    arch = f"LINUX{os.uname().machine.upper()}"
    print("HOST_NAME                       type       model  cpuf ncpus maxmem maxswp server RESOURCES")
    if settings.launch_host:
        print(f"{settings.launch_host:<31} {arch} {'-':>6}  {250.0:>5} {1:>5} {'-':>6} {'-':>6}    Yes (LN)")
    for name, host in settings.hosts.items():
        memory = f"{host.memory_gib:.1f}G" if host.memory_gib else "-"
        cpus = host.slots * host.threads_per_core
        print(f"{name:<31} {arch} {host.model}  {250.0:>5} {cpus:>5} {memory:>6} {'-':>6}    Yes (CN)")

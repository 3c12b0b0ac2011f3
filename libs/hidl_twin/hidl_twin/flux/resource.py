"""``flux resource``, ``queue``, ``hostlist``, ``getattr``, ``version``: what the instance is.

Outside of jobs that is the system; within a job, its own nodes, as in the job's subinstance.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from hidl_twin.batch.store import Job, Store, refuse
from hidl_twin.flux import ids, options
from hidl_twin.flux.hosts import fold


def own_job(store: Store) -> Job | None:
    """The job whose script or rank calls; None outside of jobs."""
    number = ids.parse(os.environ.get("FLUX_ENCLOSING_ID", ""))
    return None if number is None else store.job(str(number))


def states(store: Store) -> dict[str, str]:
    """The state of each host of the instance: a job has the whole of it."""
    job = own_job(store)
    if job is not None:
        return dict.fromkeys(job.hosts, "free")
    taken = {host for other in store.jobs() if other.stat == "RUN" for host in other.hosts}
    return {name: "allocated" if name in taken else "free" for name in store.settings.hosts}


def resource(store: Store, arguments: Sequence[str]) -> None:
    """``flux resource list`` (-s STATES, -n, -o FORMAT), ``info`` and ``status``."""
    verb, words = arguments[0] if arguments else "list", list(arguments[1:])
    found, shown, form, header = states(store), ["free", "allocated", "down"], "", True
    while words:
        option, sign, value = words.pop(0).partition("=")
        if option in ("-s", "--states", "-o", "--format", "-no", "-q", "--queue"):
            value = value if sign else words.pop(0)
            shown = value.split(",") if option in ("-s", "--states") else shown
            form = value if option in ("-o", "--format", "-no") else form
            header = header and option != "-no"
        elif option in ("-n", "--no-header"):
            header = False
    if verb == "info":
        print(_summary(store, list(found)))
        return
    if verb not in ("list", "status"):
        refuse(f"flux-resource: ERROR: {verb}: unsupported by this stand-in", 1)
    if header and not form:
        print("     STATE NNODES NCORES NGPUS NODELIST")
    for state in shown:
        names = [name for name, is_ in found.items() if state in (is_, "all") or (state == "up" and is_ != "down")]
        cores, gpus = _counts(store, names)
        values = {"state": state, "nnodes": len(names), "ncores": cores, "ngpus": gpus, "nodelist": fold(names)}
        if form:
            print(_filled(form, values))
        else:
            print(f"{state:>10} {len(names):>6} {cores:>6} {gpus:>5} {fold(names)}")


def _filled(form: str, values: Mapping[str, object]) -> str:
    """A format of Python's with the values' fields."""
    return re.sub(r"\{(\w+)[^}]*\}", lambda match: str(values.get(match[1], "")), form)


def _counts(store: Store, names: Sequence[str]) -> tuple[int, int]:
    held = [store.settings.hosts[name] for name in names if name in store.settings.hosts]
    return sum(host.slots for host in held), sum(host.gpus for host in held)


def _summary(store: Store, names: Sequence[str]) -> str:
    cores, gpus = _counts(store, names)
    plurals = ((len(names), "Node"), (cores, "Core"), (gpus, "GPU"))
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in plurals)


def hostlist(store: Store, arguments: Sequence[str]) -> None:
    """``flux hostlist [-e] [local|avail|JOBID|HOSTS ...]``."""
    names: list[str] = []
    for word in [word for word in arguments if not word.startswith("-")] or ["local"]:
        number = ids.parse(word)
        job = store.job(str(number)) if number is not None else None
        if word in ("local", "instance", "avail"):
            names += list(states(store))
        elif job is not None:
            names += job.hosts
        else:
            names.append(word)
    if "-c" in arguments or "--count" in arguments:
        print(len(names))
    else:
        print(" ".join(names) if {"-e", "--expand"} & set(arguments) else fold(names))


def getattr_(store: Store, arguments: Sequence[str]) -> None:
    """Attributes of the broker."""
    names = list(states(store))
    level = "1" if own_job(store) is not None else "0"
    values = {"hostlist": fold(names), "size": str(len(names)), "instance-level": level, "rank": "0"}
    if not arguments or arguments[0] not in values:
        refuse(f"flux-getattr: {arguments[0] if arguments else ''}: No such file or directory", 1)
    print(values[arguments[0]])


def queue(store: Store, arguments: Sequence[str]) -> None:
    """``flux queue list`` and ``status``."""
    settings, verb = store.settings, arguments[0] if arguments else "list"
    if verb == "status":
        for name in settings.queues:
            print(f"{name}: Job submission is enabled\n{name}: Scheduling is started")
        return
    if verb != "list":
        refuse(f"flux-queue: ERROR: {verb}: unsupported by this stand-in", 1)
    print("QUEUE    EN ST TDEFAULT   TLIMIT     NNODES     NCORES      NGPUS")
    for name, each in settings.queues.items():
        walls = [minutes for _, minutes in each.run_limits]
        limit = options.duration(max(walls) * 60) if walls else "inf"
        most = f"0-{'inf' if each.max_nodes is None else each.max_nodes}"
        told = f"{name}{'*' if name == settings.default_queue else ''}"
        default = options.duration(settings.default_minutes * 60) if settings.default_minutes else "inf"
        print(f"{told:<9}✔  ✔ {default:>8} {limit:>8} {most:>10} {'0-inf':>10} {'0-inf':>10}")


def version(store: Store, _: Sequence[str]) -> None:
    """As flux-core prints it."""
    number = store.settings.version
    print(f"commands:    \t\t{number}\nlibflux-core:\t\t{number}\nbuild-options:\t\t+a stand-in, made by hidl")
    sys.stdout.flush()

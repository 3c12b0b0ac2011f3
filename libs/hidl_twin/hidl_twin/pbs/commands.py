"""``qdel``, ``pbsnodes`` and ``qselect``."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hidl_twin.batch.store import FINAL, Store
from hidl_twin.pbs import qstat


def qdel(store: Store, arguments: Sequence[str]) -> None:
    """Delete jobs; a finished one only with -x, which removes it from the history."""
    settings, status, words = store.settings, 0, list(arguments)
    history = "-x" in words
    while "-W" in words:
        del words[words.index("-W") : words.index("-W") + 2]
    for word in (word for word in words if not word.startswith("-")):
        number = word.partition(".")[0]
        job = store.job(number) if number.isdecimal() else None
        if not number.isdecimal():
            print(f"qdel: illegally formed job identifier: {word}", file=sys.stderr)
            status = 1
        elif job is None or not store.visible(job):
            print(f"qdel: Unknown Job Id {qstat.full_id(settings, word)}", file=sys.stderr)
            status = qstat.UNKNOWN
        elif job.stat in FINAL and not history:
            print(f"qdel: Job has finished {qstat.full_id(settings, word)}", file=sys.stderr)
            status = 35
        elif job.stat not in FINAL:
            store.give_order(job.id, settings.killer)
    sys.exit(status)


def states(store: Store) -> dict[str, str]:
    """The state of each host: a job has the whole of it."""
    taken = {host for job in store.jobs() if job.stat == "RUN" for host in job.hosts}
    return {name: "job-exclusive" if name in taken else "free" for name in store.settings.hosts}


def pbsnodes(store: Store, arguments: Sequence[str]) -> None:
    """Show the hosts: all (-a) or those named, as text or as JSON."""
    settings, state = store.settings, states(store)
    named = [word for word in arguments if not word.startswith("-") and word != "json"]
    for name in (name for name in named if name not in settings.hosts):
        print(f"Node: {name},  Error: Unknown node ", file=sys.stderr)
    found: dict[str, Any] = {}
    for name in [name for name in named if name in settings.hosts] if named else list(settings.hosts):
        host = settings.hosts[name]
        has: dict[str, Any] = {"arch": "linux", "host": name}
        if host.memory_gib:
            has["mem"] = f"{int(host.memory_gib * 1024 * 1024)}kb"
        has |= {"ncpus": host.slots * host.threads_per_core, **({"ngpus": host.gpus} if host.gpus else {})}
        jobs = [f"{job.id}.{settings.login_host}/0" for job in store.jobs() if job.stat == "RUN" and name in job.hosts]
        found[name] = {
            "Mom": name,
            "Port": 15002,
            "pbs_version": settings.version,
            "ntype": "PBS",
            "state": state[name],
            "pcpus": host.slots * host.threads_per_core,
            **({"jobs": jobs} if jobs else {}),
            "resources_available": has | {"vnode": name},
            "resv_enable": "True",
            "sharing": "default_excl",
        }
    if "json" in arguments:
        head = {"timestamp": int(time.time()), "pbs_version": settings.version, "pbs_server": settings.login_host}
        print(json.dumps(head | {"nodes": found}, indent="\t", separators=(",", ":\t")))
    elif "-l" not in arguments:
        for name, values in found.items():
            print(name)
            for key, value in values.items():
                inner = value.items() if isinstance(value, dict) else ()
                told = ", ".join(value) if isinstance(value, list) else value
                print("\n".join([f"     {key}.{one} = {two}" for one, two in inner] or [f"     {key} = {told}"]))
            print()
    sys.exit(1 if named and len(found) < len(named) else 0)


def qselect(store: Store, arguments: Sequence[str]) -> None:
    """The jobs of a name (-N) or user (-u); -x with finished ones."""
    wanted = dict(pairwise(arguments))
    for job in store.jobs():
        if (
            store.visible(job)
            and (job.stat not in FINAL or "-x" in arguments)
            and wanted.get("-N", job.options["N"]) == job.options["N"]
            and wanted.get("-u", job.user) in (job.user, os.environ.get("USER"))
        ):
            print(qstat.full_id(store.settings, job.id))

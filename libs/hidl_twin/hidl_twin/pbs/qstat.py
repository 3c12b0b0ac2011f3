"""``qstat``: jobs and queues, as JSON or as a table."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import FINAL, Job, Store
from hidl_twin.pbs import options

UNKNOWN = 153
_FINISHED = 35
#: Why a job ended: ``Exit_status``, substate, and how the comment goes on (OpenPBS: job.h, svr_jobfunc.c).
_ENDINGS = {
    "TERM_RUNLIMIT": (-29, 93, "exceeded resource walltime"),
    "TERM_MEMLIMIT": (-27, 93, "exceeded resource mem"),
    "TERM_CSM_ALLOC": (-20, 93, None),
}


def qstat(store: Store, arguments: Sequence[str]) -> None:
    """Show jobs: all, or those named; -x with finished ones, -f all of each, -F json; -Q queues, -B the server."""
    settings = store.settings
    flags = [word for word in arguments if word.startswith("-")]
    words = [word for word in arguments if not word.startswith("-") and word not in ("json", "dsv")]
    if "--version" in flags:
        print(f"pbs_version = {settings.version}")
        return
    if "-Q" in flags or "-B" in flags:
        _other(store, as_json="json" in arguments, queues="-Q" in flags)
        return
    visible = [job for job in store.jobs() if store.visible(job) and not settings.hide]
    known = {job.id: job for job in visible}
    history, status, chosen = any("x" in flag for flag in flags if not flag.startswith("-F")), 0, []
    for word in words:
        job = known.get(word.partition(".")[0])
        if job is None:
            what = "Unknown Job Id" if word[:1].isdigit() else "Unknown queue destination"
            print(f"qstat: {what} {full_id(settings, word)}", file=sys.stderr)
            status = UNKNOWN if word[:1].isdigit() else 170
        elif job.stat in FINAL and not history:
            hint = "Job has finished, use -x or -H to obtain historical job information"
            print(f"qstat: {full_id(settings, job.id)} {hint}", file=sys.stderr)
            status = _FINISHED
        else:
            chosen.append(job)
    if not words:
        chosen = [job for job in visible if history or job.stat not in FINAL]
    if "json" in arguments:
        _print_json(settings, "Jobs", {full_id(settings, job.id): describe(store, job) for job in chosen})
    elif any("f" in flag for flag in flags):
        _full({full_id(settings, job.id): describe(store, job) for job in chosen})
    elif any("f" in flag for flag in flags):
        for job in chosen:
            _print_text(full_id(settings, job.id), describe(store, job))
    elif chosen:
        _table(settings, chosen)
    sys.exit(status)


def full_id(settings: Settings, word: str) -> str:
    """A job's number with the server's name behind it."""
    return word if "." in word or not word[:1].isdigit() else f"{word}.{settings.login_host}"


def letter(job: Job) -> str:
    """The letter of a job's state."""
    if job.stat == "PEND":
        return "H" if "h" in job.options or "depend" in job.options.get("W", "") else "Q"
    return {"RUN": "R"}.get(job.stat, "F")


def describe(store: Store, job: Job) -> dict[str, Any]:
    """A job's attributes, as ``qstat -f -F json`` shows them."""
    settings = store.settings
    given = job.options
    resources = options.resources(given)
    select = resources.get("select", "1:ncpus=1")
    cpus = sum(count * each.get("ncpus", 1) for count, each in options.chunks(select))
    home = f"{job.from_host}:{job.cwd}"
    number = job.id
    found: dict[str, Any] = {"Job_Name": given["N"], "Job_Owner": f"{job.user}@{job.from_host}"}
    if job.started is not None:
        used = (job.ended or time.time()) - job.started
        found["resources_used"] = {"cpupercent": 0, "cput": "00:00:00", "ncpus": cpus, "walltime": options.clock(used)}
    found |= {"job_state": letter(job), "queue": job.queue, "server": settings.login_host}
    if "A" in given:
        found["Account_Name"] = given["A"]
    found |= {"Checkpoint": "u", "ctime": _date(job.submitted)}
    found["Error_Path"] = f"{home}/{given['N']}.e{number}" if "e" not in given else f"{job.from_host}:{given['e']}"
    if job.hosts:
        found["exec_host"] = "+".join(f"{host}/0*{settings.slots(host)}" for host in job.hosts)
        found["exec_vnode"] = "+".join(f"({host}:ncpus={settings.slots(host)})" for host in job.hosts)
    holds = "u" if "h" in given else "s" if "depend" in given.get("W", "") and job.stat == "PEND" else "n"
    found |= {"Hold_Types": holds, "Join_Path": given.get("j", "n"), "Keep_Files": "n", "Mail_Points": "a"}
    found["mtime"] = _date(job.ended or job.started or job.submitted)
    found["Output_Path"] = f"{home}/{given['N']}.o{number}" if "o" not in given else f"{job.from_host}:{given['o']}"
    found |= {"Priority": 0, "qtime": _date(job.submitted), "Rerunable": "True"}
    asked: dict[str, Any] = {"ncpus": cpus, "nodect": job.nodes, "place": "pack", "select": select}
    if job.run_limit is not None:
        asked["walltime"] = options.clock(job.run_limit * 60)
    kept = {name: value for name, value in resources.items() if name not in ("walltime", "select")}
    found |= {"Resource_List": asked | kept, "schedselect": select}
    if job.started is not None:
        found["stime"] = _date(job.started)
    if job.ended is not None and job.started is not None:
        found["obittime"] = _date(job.ended)
    found["substate"] = _substate(job)
    found["Variable_List"] = {"PBS_O_WORKDIR": job.cwd, "PBS_O_QUEUE": job.queue, "PBS_O_HOST": job.from_host}
    found |= {"euser": job.user, "egroup": job.user, "queue_type": "E"}
    if comment := _comment(job, found.get("exec_vnode", "")):
        found["comment"] = comment
    if job.started is not None:
        found["run_count"] = 1
    if job.ended is not None and job.started is not None:
        found["Exit_status"] = exit_status(job)
    if job.ended is not None:
        found["history_timestamp"] = int(job.ended)
    return found | {"project": "_pbs_project_default", "Submit_Host": job.from_host}


def exit_status(job: Job) -> int:
    """PBS's ``Exit_status``: the script's, 256 + the signal of a deletion, or a negative number of PBS's own."""
    if job.exit_reason == "TERM_OWNER":
        return 256 + 15
    if job.exit_reason.startswith("TERM_CWD"):
        return -2
    return _ENDINGS[job.exit_reason][0] if job.exit_reason in _ENDINGS else int(job.exit_code or 0)


def _substate(job: Job) -> int:
    if job.stat == "PEND":
        return {"Q": 10, "H": 20}[letter(job)]
    if job.stat == "RUN":
        return 42
    if job.exit_reason == "TERM_OWNER":
        return 91
    return 92 if job.stat == "DONE" else 93


def _comment(job: Job, vnodes: str) -> str:
    if job.stat == "PEND":
        return f"Not Running: {job.pend_reason}" if letter(job) == "Q" else ""
    if job.started is None:
        return ""
    begun = time.strftime("Job run at %a %b %d at %H:%M", time.localtime(job.started)) + f" on {vnodes}"
    if job.stat == "RUN":
        return begun
    if job.exit_reason == "TERM_OWNER":
        return f"{begun} and terminated by {job.user}@{job.from_host}"
    if job.exit_reason in _ENDINGS:
        words = _ENDINGS[job.exit_reason][2]
        return f"{begun} and {words}" if words else begun
    return f"{begun} and {'failed' if job.stat == 'EXIT' else 'finished'}"


def _date(seconds: float) -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(seconds))


def _print_json(settings: Settings, key: str, found: dict[str, Any]) -> None:
    head = {"timestamp": int(time.time()), "pbs_version": settings.version, "pbs_server": settings.login_host}
    print(json.dumps(head | ({key: found} if found else {}), indent="\t", separators=(",", ":\t")))


def _full(found: dict[str, dict[str, Any]]) -> None:
    """All attributes of jobs as text, a line each."""
    for id, values in found.items():
        print(f"Job Id: {id}")
        for key, value in values.items():
            if key == "Variable_List":
                print(f"    {key} = {','.join(f'{name}={_escaped(text)}' for name, text in value.items())}")
                continue
            inner = value.items() if isinstance(value, dict) else ()
            for line in [f"{key}.{one} = {two}" for one, two in inner] or [f"{key} = {value}"]:
                print(f"    {line}")
        print()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(",", "\\,")


def _print_text(id: str, attributes: dict[str, Any]) -> None:
    """As ``qstat -f`` without JSON."""
    print(f"Job Id: {id}")
    for name, value in attributes.items():
        if name == "Variable_List":
            print(f"    {name} = {','.join(f'{key}={held}' for key, held in value.items())}")
        elif isinstance(value, dict):
            print("\n".join(f"    {name}.{key} = {held}" for key, held in value.items()))
        else:
            print(f"    {name} = {value}")
    print()


def _table(settings: Settings, jobs: Sequence[Job]) -> None:
    print("Job id            Name             User              Time Use S Queue")
    print("----------------  ---------------- ----------------  -------- - -----")
    for job in jobs:
        used = "00:00:00" if job.started is not None else "0"
        name, id = job.options["N"][:15], full_id(settings, job.id)
        print(f"{id:<17} {name:<16} {job.user:<16}  {used:>8} {letter(job)} {job.queue:<16}")


def _other(store: Store, *, as_json: bool, queues: bool) -> None:
    """Queues (-Q) with their limits, or the server (-B)."""
    settings, jobs = store.settings, store.jobs()
    found: dict[str, Any] = {}
    for name, queue in settings.queues.items():
        of_it = [job for job in jobs if job.queue == name]
        most: dict[str, Any] = {} if queue.max_nodes is None else {"nodect": queue.max_nodes}
        if walls := [minutes for _, minutes in queue.run_limits]:
            most["walltime"] = options.clock(max(walls) * 60)
        found[name] = {
            "queue_type": "Execution",
            "total_jobs": sum(job.stat not in FINAL for job in of_it),
            **({"resources_max": most} if most else {}),
            **({"resources_min": {"nodect": queue.min_nodes}} if queue.min_nodes > 1 else {}),
            "enabled": "True",
            "started": "True",
        }
    if not queues:
        default = {"default_queue": settings.default_queue} if settings.default_queue else {}
        server = {"server_state": "Active", "server_host": settings.login_host, **default}
        found = {settings.login_host: server | {"pbs_version": settings.version}}
    if as_json:
        _print_json(settings, "Queue" if queues else "Server", found)
        return
    for name, values in found.items():
        print(f"{'Queue' if queues else 'Server'}: {name}")
        for key, value in values.items():
            inner = value.items() if isinstance(value, dict) else ()
            lines = [f"{key}.{one} = {two}" for one, two in inner] or [f"{key} = {value}"]
            print("\n".join(f"    {line}" for line in lines))
        print()

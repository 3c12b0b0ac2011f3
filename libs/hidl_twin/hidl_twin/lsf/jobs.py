"""``bjobs``, ``bhist``, ``bpeek``, ``bkill`` and ``bmod``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from hidl_twin.batch.store import FINAL, Job, Store, refuse
from hidl_twin.lsf import options
from hidl_twin.lsf.admission import admit

_DEFAULT = "jobid user stat slots queue start_time finish_time job_name"
_WIDTHS = {"jobid": 7, "user": 10, "stat": 6, "slots": 8, "queue": 10, "start_time": 13, "finish_time": 13}
_SHOWN = {"-r": ("RUN",), "-p": ("PEND",), "-d": FINAL, "-a": ("PEND", "RUN", *FINAL)}


def bjobs(store: Store, arguments: Sequence[str]) -> None:
    """Tell of jobs: a table, chosen fields (-o), or all about each (-l)."""
    words, ids, form = list(arguments), [], ""
    stats: tuple[str, ...] = ("PEND", "RUN")
    while words:
        word = words.pop(0)
        if word in ("-o", "-u", "-P", "-q", "-J"):
            value = words.pop(0) if words else ""
            form = value if word == "-o" else form
        elif word in _SHOWN:
            stats = _SHOWN[word]
        elif word.isdecimal():
            ids.append(word)
    visible = [job for job in store.jobs() if store.visible(job) and not store.settings.hide]
    chosen = [job for job in visible if (job.id in ids if ids else job.stat in stats)]
    for id in (id for id in ids if id not in {job.id for job in chosen}):
        print(f"Job <{id}> is not found", file=sys.stderr)
    if not chosen:
        if not ids:
            print("No job found" if "-a" in arguments else "No unfinished job found", file=sys.stderr)
        sys.exit(255)
    if "-l" in arguments:
        print("\n".join(_long(store, job) for job in chosen))
    elif form:
        _chosen_fields(chosen, form, header="-noheader" not in arguments)
    else:
        _table(chosen, header="-noheader" not in arguments)


def _chosen_fields(jobs: Sequence[Job], form: str, *, header: bool) -> None:
    delimiter = re.search(r"delimiter='(.)'", form)
    names = [name.partition(":")[0] for name in form.partition(" delimiter=")[0].split()]
    between = delimiter[1] if delimiter else " "
    if header:
        print(between.join(name.upper() for name in names))
    for job in jobs:
        print(between.join(_field(job, name) for name in names))


def _table(jobs: Sequence[Job], *, header: bool) -> None:
    names = _DEFAULT.split()
    if header:
        print(" ".join(name.upper().ljust(_WIDTHS.get(name, 0)) for name in names))
    for job in jobs:
        print(" ".join(_field(job, name).ljust(_WIDTHS.get(name, 0)) for name in names))


def _field(job: Job, name: str) -> str:
    """A field of bjobs -o; ``-`` where it says nothing."""
    values: dict[str, str | None] = {
        "jobid": job.id,
        "user": job.user,
        "stat": job.stat,
        "queue": job.queue,
        "job_name": job.options.get("-J", "Not_Specified"),
        "job_description": job.options.get("-Jd"),
        "proj_name": job.options.get("-P", "default"),
        "exit_code": job.exit_code,
        "exit_reason": job.exit_words,
        "pend_reason": f"{job.pend_reason};" if job.stat == "PEND" else None,
        "from_host": job.from_host,
        "exec_host": ":".join([job.first_host, *(host for host in job.hosts if host != job.first_host)])
        if job.hosts
        else None,
        "nexec_host": str(len(job.hosts)) if job.hosts else None,
        "slots": str(job.slots) if job.slots else None,
        "submit_time": _clock(job.submitted),
        "start_time": _clock(job.started),
        "finish_time": _clock(job.ended),
        "runtimelimit": _run_limit(job),
        "sub_cwd": job.cwd,
    }
    return values.get(name.lower()) or "-"


def _run_limit(job: Job) -> str | None:
    return options.clock(options.minutes(job.options["-W"])) if "-W" in job.options else None


def _clock(seconds: float | None) -> str | None:
    return time.strftime("%b %d %H:%M", time.localtime(seconds)) if seconds else None


def _long(store: Store, job: Job) -> str:
    at = time.strftime("%a %b %d %H:%M:%S", time.localtime(job.submitted))
    lines = [
        f"Job <{job.id}>, Job Name <{job.options.get('-J', 'Not_Specified')}>, User <{job.user}>, "
        f"Project <{job.options.get('-P', 'default')}>, Status <{job.stat}>, Queue <{job.queue}>",
        f"{at}: Submitted from host <{job.from_host}>, CWD <{job.cwd}>, {job.nodes} node(s);",
    ]
    if limit := _run_limit(job):
        lines.append(f"RUNLIMIT\n {limit}")
    if job.stat == "PEND":
        lines.append(f"PENDING REASONS:\n{job.pend_reason};")
    if job.hosts:
        lines.append(f"Started on Host(s) {' '.join(f'<{host}>' for host in job.hosts)}, script on <{job.first_host}>;")
    if job.stat in FINAL:
        lines.append(_ending(job))
    return "\n".join(lines) + "\n"


def _ending(job: Job) -> str:
    if job.stat == "DONE":
        return "Done successfully. The CPU time used is 0.1 seconds"
    how = f"Exited with exit code {job.exit_code}" if job.exit_code else "Exited"
    return f"{how}. The CPU time used is 0.1 seconds"


def bhist(store: Store, arguments: Sequence[str]) -> None:
    """Tell of jobs that have ended, also of those that bjobs has forgotten, in lines that are wrapped anywhere."""
    wanted = [job for job in store.jobs() if job.id in arguments and job.stat in FINAL]
    for job in wanted:
        began, at = (time.strftime("%a %b %d %H:%M:%S", time.localtime(when)) for when in (job.submitted, job.ended))
        lines = [
            f"Job <{job.id}>, Job Name <{job.options.get('-J', '')}>, User <{job.user}>, Project "
            f"<{job.options.get('-P', 'default')}>",
            f"{began}: Submitted from host <{job.from_host}>, to Queue <{job.queue}>;",
            f"{at}: {_ending(job)}",
        ]
        if job.stat == "EXIT":
            lines.append(f"{at}: Completed <exit>{f'; {job.exit_words}' if job.exit_reason else ''}")
        print("\n\n".join("\n                     ".join(re.findall(r".{1,78}", line)) for line in lines) + ";")
    if not wanted:
        refuse("No matching job found")


def bpeek(store: Store, arguments: Sequence[str]) -> None:
    """Show what a job has printed so far."""
    running = [job for job in store.jobs() if job.stat == "RUN"]
    ids = [word for word in arguments if word.isdecimal()] or [job.id for job in running[-1:]]
    out = store.job_directory(ids[0]) / "out" if ids else None
    if out is None or not out.is_file():
        refuse("No matching job found")
    print("<< output from stdout >>")
    sys.stdout.write(out.read_text(encoding="utf-8", errors="replace"))


def bkill(store: Store, arguments: Sequence[str]) -> None:
    """Have jobs ended; 0 stands for all of the user's."""
    ids = [word for word in arguments if word.isdecimal()]
    if ids == ["0"]:
        ids = [job.id for job in store.jobs() if job.stat not in FINAL]
    failed = False
    for id in ids:
        job = store.job(id)
        if job is None or not store.visible(job):
            print(f"Job <{id}>: No matching job found", file=sys.stderr)
        elif job.stat in FINAL:
            print(f"Job <{id}>: Job has already finished", file=sys.stderr)
        else:
            store.give_order(id, store.settings.killer)
            print(f"Job <{id}> is being terminated")
            continue
        failed = True
    if failed or not ids:
        sys.exit(255)


def bmod(store: Store, arguments: Sequence[str]) -> None:
    """Change what a job asks for that has not begun."""
    given, rest = options.parse(arguments)
    job = store.job(rest[0]) if rest else None
    if job is None:
        refuse(f"Job <{rest[0] if rest else ''}>: No matching job found")
    if job.stat != "PEND":
        refuse(f"Job <{job.id}>: Cannot modify a job that has started or finished")
    store.write_request(admit(replace(job, options={**job.options, **given}), store.settings))
    print(f"Parameters of job <{job.id}> are being changed")

"""``flux jobs``, ``flux job`` and ``flux cancel``."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hidl_twin.batch.store import FINAL, Job, Store, refuse
from hidl_twin.flux import ids, options
from hidl_twin.flux.hosts import fold

_RESULTS = {"TERM_OWNER": "CANCELED", "TERM_RUNLIMIT": "TIMEOUT"}
_SHORT = {"DEPEND": "D", "SCHED": "S", "RUN": "R", "COMPLETED": "CD", "FAILED": "F", "CANCELED": "CA", "TIMEOUT": "TO"}
_COUNT = 1000  # the jobs that flux jobs shows unless --count says otherwise
_SIGNALS = {"TERM_OWNER": 15, "TERM_RUNLIMIT": 14}


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(prog="flux jobs", add_help=False)
    for flags in (("-a", "-A"), ("-n", "--no-header"), ("--json",)):
        parser.add_argument(*flags, action="store_true", dest=flags[-1].strip("-").replace("-", "_"))
    for one in (("-o", "--format"), ("--name",), ("-u", "--user"), ("-c", "--count"), ("-f", "--filter")):
        parser.add_argument(*one, default="")
    for one in (("-q", "--queue"), ("--color",), ("--sort",), ("--since",)):
        parser.add_argument(*one, default="")
    parser.add_argument("ids", nargs="*")
    return parser.parse_args(list(words))


def jobs(store: Store, arguments: Sequence[str]) -> None:
    """Show jobs: active ones, all (-a), or those named; --json, or a format (-o)."""
    asked = _arguments(arguments)
    wanted: list[str] = asked.ids
    numbers = [_number("flux-jobs", word) for word in wanted]
    known = [] if store.settings.hide else [job for job in store.jobs() if store.visible(job)]
    chosen = [job for job in known if (int(job.id) in numbers if numbers else asked.A or job.stat not in FINAL)]
    chosen = [job for job in chosen if asked.name in ("", job.options["name"])]
    missing = [word for word, number in zip(wanted, numbers, strict=True) if str(number) not in {j.id for j in chosen}]
    for word in missing:
        print(f"JobID {word} unknown", file=sys.stderr)
    chosen.sort(key=lambda job: job.stat in FINAL, reverse=True)
    chosen.sort(key=lambda job: job.stat == "PEND")  # reversed below: those that wait, that run, that have ended
    count = int(asked.count or _COUNT)
    found = [describe(store, job) for job in reversed(chosen)][: None if wanted or count == 0 else count]
    if asked.json and len(wanted) == 1:
        print("".join(json.dumps(one) for one in found), end="\n" if found else "")
    elif asked.json:
        print(json.dumps({"jobs": found}))
    elif asked.format:
        _formatted(found, asked.format)
    else:
        _table(found, header=not asked.no_header)
    sys.exit(1 if missing and not found else 0)


def describe(store: Store, job: Job) -> dict[str, Any]:
    """A job as ``flux jobs --json`` shows it."""
    given = job.options
    limit = (job.run_limit or 0) * store.settings.minute
    state = _state(job)
    found: dict[str, Any] = {"t_depend": job.submitted}
    if state != "DEPEND":
        found |= {"t_priority": job.submitted, "t_sched": job.submitted}
    if job.started is not None:
        found |= {"t_run": job.started}
    if job.ended is not None:
        found |= {"t_cleanup": job.ended, "t_inactive": job.ended}
    found["duration"] = limit
    if job.started is not None and limit:
        found["expiration"] = job.started + limit
    found |= {"name": given["name"], "cwd": job.cwd, "queue": job.queue, "ntasks": int(given["ntasks"])}
    if job.hosts:
        found["ncores"] = job.slots
    found |= {"nnodes": job.nodes}
    if state != "DEPEND":
        found["priority"] = int(given.get("urgency", "16") if given.get("urgency", "16").isdecimal() else 0)
    if job.hosts:
        ranks = [list(store.settings.hosts or job.hosts).index(host) for host in job.hosts]
        found |= {"ranks": ",".join(map(str, ranks)), "nodelist": fold(job.hosts)}
    result, status, note = _end(job)
    if job.stat in FINAL:
        found |= {"success": result == "COMPLETED", "result": result}
        if status is not None:
            found["waitstatus"] = status
    found |= {"id": int(job.id), "t_submit": job.submitted}
    if job.stat == "RUN" and limit and job.started is not None:
        found["t_remaining"] = max(0.0, job.started + limit - time.time())
    found |= {"state": "INACTIVE" if job.stat in FINAL else state, "username": job.user, "userid": 0}
    found["urgency"] = found.get("priority", 16)
    if job.started is not None:
        found["runtime"] = (job.ended or time.time()) - job.started
    found["status"] = result if job.stat in FINAL else state
    if job.stat in FINAL:
        found["returncode"] = _returncode(status, result)
    dependencies = [one for one in given.get("dependencies", "").split(",") if one]
    found["dependencies"] = (
        [one.replace("afterok:", "after-success=") for one in dependencies] if state == "DEPEND" else []
    )
    found |= {"jobid": ids.f58(int(job.id)), "annotations": {}}
    found["exception"] = note
    return found


def _state(job: Job) -> str:
    if job.stat == "RUN":
        return "RUN"
    return "DEPEND" if job.options.get("dependencies") and job.pend_reason == "dependency" else "SCHED"


def _end(job: Job) -> tuple[str, int | None, dict[str, Any]]:
    """A job's result, its wait status (None: nothing ran) and its exception."""
    none: dict[str, Any] = {"occurred": False}
    if job.stat not in FINAL:
        return "", None, none
    code = int(job.exit_code or 0)
    reason = job.exit_reason
    if not reason:
        return ("FAILED" if code else "COMPLETED"), code << 8, none
    result = _RESULTS.get(reason, "FAILED")
    kind = {"TERM_OWNER": "cancel", "TERM_RUNLIMIT": "timeout"}.get(reason, "exec")
    notes = {"TERM_OWNER": "", "TERM_RUNLIMIT": "resource allocation expired"}
    lost = f"lost contact with job shell on {job.first_host}" if job.hosts else ""
    note = notes.get(reason, lost if reason == "TERM_CSM_ALLOC" else reason)
    exception = {"occurred": True, "severity": 0, "type": kind, "note": note}
    if job.started is None:
        return result, None, exception
    return result, (128 + _SIGNALS[reason] if reason in _SIGNALS else code or 1) << 8, exception


def _returncode(status: int | None, result: str) -> int:
    if status is None:
        return -128 if result == "CANCELED" else 1
    return status >> 8


def _number(program: str, word: str) -> int:
    number = ids.parse(word)
    if number is None:
        argument = "JOBID..." if program == "flux-cancel" else "JOBID"
        refuse(f"{program}: error: argument {argument}: invalid JobID value: '{word}'", 2)
    return number


def _formatted(found: Sequence[dict[str, Any]], form: str) -> None:
    """A format of Python's, as far as it names keys of the JSON: {id}, {status}, {returncode}, {exception.note}."""
    for job in found:
        fields = job | {"id": job["jobid"], "status_abbrev": _SHORT.get(job["status"], job["status"])}

        def value(match: re.Match[str], fields: dict[str, Any] = fields) -> str:
            held: Any = fields
            for part in match[1].split("."):
                held = held.get(part, "") if isinstance(held, dict) else held
            return str(held)

        print(re.sub(r"\{([\w.]+)[^}]*\}", value, form))


def _table(found: Sequence[dict[str, Any]], *, header: bool) -> None:
    if header:
        print("       JOBID QUEUE    USER     NAME       ST NTASKS NNODES     TIME INFO")
    for job in found:
        used = options.duration(job.get("runtime", job["duration"]))
        told = "depends:" + ",".join(job["dependencies"]) if job["dependencies"] else job.get("nodelist", "")
        line = f"{job['jobid']:>12} {job['queue']:<8.8} {job['username']:<8.8} {job['name']:<10.10} "
        print(f"{line}{_SHORT.get(job['status'], '?'):>2} {job['ntasks']:>6} {job['nnodes']:>6} {used:>8} {told}")


def cancel(store: Store, arguments: Sequence[str]) -> None:
    """Cancel jobs."""
    status, words = 0, [word for word in arguments if not word.startswith("-")]
    for word in words:
        number = _number("flux-cancel", word)
        job = store.job(str(number))
        if job is None or not store.visible(job):
            print(f"flux-cancel: ERROR: {ids.f58(number)}: unknown job id", file=sys.stderr)
            status = 1
        elif job.stat in FINAL:
            print(f"flux-cancel: ERROR: {ids.f58(number)}: job is inactive", file=sys.stderr)
            status = 1
        else:
            store.give_order(job.id, store.settings.killer)
    sys.exit(status)


def job(store: Store, arguments: Sequence[str]) -> None:
    """Of ``flux job``: status, eventlog, info ID R, wait-event, id."""
    verb, words = arguments[0] if arguments else "", [word for word in arguments[1:] if not word.startswith("-")]
    if not words:
        refuse(f"flux-job: usage: flux job {verb} [OPTIONS] ID", 1)
    number = ids.parse(words[0])
    if verb == "id" and number is not None:
        print(number if "--to=dec" in arguments else ids.f58(number))
        return
    found = store.job(str(number)) if number is not None else None
    if found is None:
        refuse("flux-job: invalid job id", 1)
    if verb == "status":
        while found is not None and found.stat not in FINAL:
            time.sleep(0.1)
            found = store.job(found.id)
        assert found is not None
        sys.exit(int(describe(store, found)["returncode"]) % 256)
    if verb == "eventlog":
        print("\n".join(_events(found)))
    elif verb == "info" and words[1:] == ["R"]:
        nodes = fold(found.hosts)
        print(json.dumps({"version": 1, "execution": {"R_lite": [], "starttime": found.started, "nodelist": [nodes]}}))
    else:
        refuse(f"flux-job: {verb}: unsupported by this stand-in", 1)


def _events(job: Job) -> Iterator[str]:
    yield f"{job.submitted:.6f} submit userid=0 urgency=16 flags=0 version=1"
    yield f"{job.submitted:.6f} validate"
    if job.started is not None:
        yield f"{job.started:.6f} alloc"
        yield f"{job.started:.6f} start"
    _, status, exception = _end(job)
    if job.ended is not None:
        if exception["occurred"]:
            told = f'type="{exception["type"]}" severity=0 userid=0 note="{exception["note"]}"'
            yield f"{job.ended:.6f} exception {told}"
        if status is not None:
            yield f"{job.ended:.6f} finish status={status}"
        yield f"{job.ended:.6f} clean"

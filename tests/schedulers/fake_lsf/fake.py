"""An LSF of one machine, for tests: it does what the documentation of IBM Spectrum LSF 10.1 says its commands do.

Its jobs really run, each under a keeper process that plays LSF's daemons. What it knows is in ``$FAKE_LSF``:
``settings.json`` (below), ``calls`` (one line per command), ``history`` and ``jobs/<id>/`` with ``job.json``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

SPOOL = Path(os.environ["FAKE_LSF"])
SETTINGS: dict[str, Any] = {
    "down": False,  # nobody answers (or, to the command named here); it waits LSB_NTRIES times, or for ever
    "parse_script": False,  # LSB_BSUB_PARSE_SCRIPT: "bsub FILE" reads FILE's #BSUB lines
    "minute": 60.0,  # how long a minute of a run limit takes, in seconds
    "interval": 0.4,  # JOB_TERMINATE_INTERVAL: between SIGINT, SIGTERM and SIGKILL
    "lag": 0.0,  # how long an ended job goes on being RUN
    "clean_period": 3600.0,  # CLEAN_PERIOD: how long bjobs knows an ended job
    "pending": "",  # a reason: no job starts while it is there
    "max_nodes": 4,  # of every queue
    "max_minutes": 120,  # RUNLIMIT of every queue
    "queues": ["batch", "debug"],
    "mute": False,  # bsub takes the job, and then hangs
    "noise": "",  # what an esub of the site prints with every submission
    "hosts": [],  # the compute nodes of every job; empty: node01, node02, ...
    "hide": False,  # bjobs forgets every job for the moment
}
VALUED = {"-nnodes", "-W", "-P", "-q", "-J", "-o", "-e", "-U", "-env", "-Jd", "-cwd", "-alloc_flags", "-R", "-n", "-M"}
REASONS = {
    "TERM_OWNER": "TERM_OWNER: job killed by owner",
    "TERM_ADMIN": "TERM_ADMIN: job killed by root or LSF administrator",
    "TERM_RUNLIMIT": "TERM_RUNLIMIT: job killed after reaching LSF run time limit",
    "TERM_MEMLIMIT": "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit",
}


def settings() -> dict[str, Any]:
    file = SPOOL / "settings.json"
    return SETTINGS | (json.loads(file.read_text()) if file.is_file() else {})


def called(command: str) -> None:
    """Note the call; wait, as LSF's commands do, where LSF is down."""
    with (SPOOL / "calls").open("a") as file:
        file.write(shlex.join([command, *sys.argv[1:]]) + "\n")
    tries = int(os.environ.get("LSB_NTRIES", "1000000"))
    while settings()["down"] in (True, command):
        print("LSF is down. Please wait ...", file=sys.stderr, flush=True)
        tries -= 1
        if tries <= 0:
            sys.exit(255)
        time.sleep(0.5)


def refuse(words: str) -> NoReturn:
    print(f"{words}. Job not submitted.", file=sys.stderr)
    sys.exit(255)


# ---- bsub


def bsub() -> None:
    called("bsub")
    given, command = read_options(sys.argv[1:])
    script: Path | None = None
    if not command:
        script = SPOOL / f"stdin.{os.getpid()}"
        script.write_text(sys.stdin.read())
    elif settings()["parse_script"] and Path(command[0]).is_file():
        script = Path(command[0])
    if script is not None:
        lines = [line[5:] for line in script.read_text().splitlines() if line.startswith("#BSUB")]
        given = read_options([word for line in lines for word in shlex.split(line)])[0] | given
    check(given)
    if settings()["noise"]:
        print(settings()["noise"])
    job = enter(given, command, script)
    if settings()["mute"]:
        save(job | {"ended": time.time()})  # it stays in the queue: nobody keeps it
        time.sleep(3600)
    queue = f"queue <{given['-q']}>" if "-q" in given else "default queue <batch>"
    if "BSUB_QUIET" not in os.environ:
        print(f"Job <{job['id']}> is submitted to {queue}.", flush=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            keep(job)
        os._exit(0)


def read_options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    given: dict[str, str] = {}
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option not in VALUED and option not in ("-x", "-rn", "-r"):
            refuse(f"bsub: illegal option -- {option}")
        given[option] = words.pop(0) if option in VALUED else ""
    return given, words


def check(given: dict[str, str]) -> None:
    known = settings()
    if given.get("-q", "batch") not in known["queues"]:
        refuse(f"{given['-q']}: No such queue")
    if int(given.get("-nnodes", "1")) > known["max_nodes"]:
        refuse("Too many processors requested")
    if minutes(given) > known["max_minutes"]:
        refuse("RUNLIMIT: Cannot exceed queue's hard limit(s)")


def minutes(given: dict[str, str]) -> int:
    hours, _, rest = given.get("-W", "10").rpartition(":")
    return int(hours or 0) * 60 + int(rest)


def enter(given: dict[str, str], command: list[str], script: Path | None) -> dict[str, Any]:
    with locked():
        number = SPOOL / "number"
        id = str(int(number.read_text()) + 1) if number.is_file() else "101"
        number.write_text(id)
    directory = SPOOL / "jobs" / id
    directory.mkdir(parents=True)
    if script is not None:
        shutil.copy(script, directory / "command")
        (directory / "command").chmod(0o755)
    else:
        (directory / "command").write_text("#!/bin/sh\n" + " ".join(command) + "\n")
        (directory / "command").chmod(0o755)
    job = {"id": id, "stat": "PEND", "exit_code": "", "exit_reason": "", "options": given, "cwd": str(Path.cwd())}
    save(job)
    return job


# ---- what LSF's daemons do


def keep(job: dict[str, Any]) -> NoReturn:
    wait_for_dispatch(job)
    directory = SPOOL / "jobs" / job["id"]
    with (directory / "out").open("wb") as out:
        child = subprocess.Popen(
            [directory / "command"],
            cwd=job["options"].get("-cwd", job["cwd"]),
            env=job_environment(job),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    job |= {"stat": "RUN", "pid": child.pid}
    save(job)
    watch(job, child)
    time.sleep(settings()["lag"])
    status = child.returncode if child.returncode >= 0 else 128 - child.returncode
    job |= {"stat": "DONE" if status == 0 else "EXIT", "exit_code": str(status) if status else "", "ended": time.time()}
    save(job)
    report(job)
    os._exit(0)


def wait_for_dispatch(job: dict[str, Any]) -> None:
    while settings()["pending"]:
        if order(job):
            job |= {"stat": "EXIT", "exit_reason": REASONS[order(job)], "ended": time.time()}
            save(job)
            os._exit(0)
        time.sleep(0.02)


def job_environment(job: dict[str, Any]) -> dict[str, str]:
    given = job["options"]
    hosts = settings()["hosts"] or [f"node{number:02d}" for number in range(1, int(given.get("-nnodes", "1")) + 1)]
    hostfile = SPOOL / "jobs" / job["id"] / "hostfile"
    hostfile.write_text("".join(f"{host}\n" for host in ["launch1", *(host for host in hosts for _ in range(42))]))
    own = {
        "LSB_JOBID": job["id"],
        "LSB_DJOB_HOSTFILE": str(hostfile),
        "LSB_MCPU_HOSTS": " ".join(["launch1 1", *(f"{host} 42" for host in hosts)]),
        "LS_SUBCWD": job["cwd"],
    }
    passed = dict(os.environ)
    if given.get("-env", "all") != "all":
        passed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return passed | own


def watch(job: dict[str, Any], child: subprocess.Popen[bytes]) -> None:
    """Wait for the job's end; end it at its run limit, or when somebody orders that."""
    limit = time.monotonic() + minutes(job["options"]) * settings()["minute"]
    while child.poll() is None:
        reason = order(job)
        if not reason and time.monotonic() > limit:
            reason = "TERM_RUNLIMIT"
        if reason:
            job["exit_reason"] = REASONS[reason]
            end(child, [signal.SIGUSR2] if reason == "TERM_RUNLIMIT" else [])
            return
        time.sleep(0.02)


def end(child: subprocess.Popen[bytes], before: list[signal.Signals]) -> None:
    for number in [*before, signal.SIGINT, signal.SIGTERM, signal.SIGKILL]:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        deadline = time.monotonic() + settings()["interval"]
        while time.monotonic() < deadline:
            if child.poll() is not None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                return
            time.sleep(0.01)
    child.wait()


def report(job: dict[str, Any]) -> None:
    """The file of ``-o`` gets LSF's report and then what the job printed, once the job has ended."""
    how = "Successfully completed." if job["stat"] == "DONE" else f"Exited with exit code {job['exit_code']}."
    why = f"{job['exit_reason']}.\n" if job["exit_reason"] else ""
    file = Path(job["options"].get("-cwd", job["cwd"]), job["options"].get("-o", "/dev/null"))
    printed = (SPOOL / "jobs" / job["id"] / "out").read_text(errors="replace")
    with file.open("a") as out:
        out.write(f"Sender: LSF System <lsfadmin@launch1>\nSubject: Job {job['id']}\n\n{why}{how}\n\n")
        out.write(f"The output (if any) follows:\n\n{printed}")


def order(job: dict[str, Any]) -> str:
    file = SPOOL / "jobs" / job["id"] / "order"
    return file.read_text() if file.is_file() else ""


# ---- bjobs, bkill, bhist, lsid


def bjobs() -> None:
    called("bjobs")
    fields = sys.argv[sys.argv.index("-o") + 1]
    delimiter = re.search(r"delimiter='(.)'", fields)
    names = fields.split(" delimiter=")[0].split()
    rows = [row(job, names) for job in jobs() if not forgotten(job)]
    if not rows or settings()["hide"]:
        print("No job found", file=sys.stderr)
        sys.exit(255)
    for cells in rows:
        print((delimiter[1] if delimiter else " ").join(cells))


def row(job: dict[str, Any], names: list[str]) -> list[str]:
    reason = settings()["pending"] or "New job is waiting for scheduling"
    values = job | {
        "jobid": job["id"],
        "job_description": job["options"].get("-Jd", ""),
        "pend_reason": f"{reason};" if job["stat"] == "PEND" else "",
    }
    return [values[name] or "-" for name in names]


def forgotten(job: dict[str, Any]) -> bool:
    return "ended" in job and time.time() - job["ended"] > settings()["clean_period"]


def bkill() -> None:
    called("bkill")
    id = sys.argv[-1]
    found = next((job for job in jobs() if job["id"] == id and not forgotten(job)), None)
    if found is None:
        print(f"Job <{id}>: No matching job found", file=sys.stderr)
        sys.exit(255)
    if "ended" in found:
        print(f"Job <{id}>: Job has already finished", file=sys.stderr)
        sys.exit(255)
    (SPOOL / "jobs" / id / "order").write_text(os.environ.get("FAKE_LSF_KILLER", "TERM_OWNER"))
    print(f"Job <{id}> is being terminated")


def bhist() -> None:
    called("bhist")
    wanted = [job for job in jobs() if job["id"] in sys.argv and "ended" in job]
    for job in wanted:
        how = "Done successfully. The CPU time used is 0.1 seconds"
        if job["stat"] == "EXIT":
            why = f"; {job['exit_reason']}" if job["exit_reason"] else ""
            how = f"Exited with exit code {job['exit_code']}. The CPU time used is 0.1 seconds;\n"
            how += f"Sat Nov 21 10:00:01: Completed <exit>{why}"
        lines = [f"Job <{job['id']}>, Job Name <x>, User <me>, Project <default>, Command <./job.sh>"]
        lines += ["Sat Nov 21 09:59:01: Submitted from host <login1>, to Queue <batch>;"]
        lines += [f"Sat Nov 21 10:00:01: {line}" if not line.startswith("Sat") else line for line in how.split("\n")]
        print("\n\n".join("\n                     ".join(re.findall(r".{1,78}", line)) for line in lines) + ";")
    if not wanted:
        print("No matching job found", file=sys.stderr)
        sys.exit(255)


def lsid() -> None:
    called("lsid")
    print("IBM Spectrum LSF Standard 10.1.0.9, Oct 16 2019\n\nMy cluster name is fake\nMy master name is launch1")


# ---- the spool


def jobs() -> list[dict[str, Any]]:
    files = sorted((SPOOL / "jobs").glob("*/job.json"), key=lambda file: int(file.parent.name))
    return [json.loads(file.read_text()) for file in files]


def save(job: dict[str, Any]) -> None:
    file = SPOOL / "jobs" / job["id"] / "job.json"
    file.with_suffix(".new").write_text(json.dumps(job))
    file.with_suffix(".new").replace(file)


@contextmanager
def locked() -> Iterator[None]:
    with (SPOOL / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    commands = {"bsub": bsub, "bjobs": bjobs, "bkill": bkill, "bhist": bhist, "lsid": lsid}
    commands[sys.argv.pop(1)]()

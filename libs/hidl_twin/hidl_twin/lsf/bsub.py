"""``bsub``."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from hidl_cli import process
from hidl_twin.batch import host
from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import FINAL, Job, Store, refuse
from hidl_twin.lsf import options
from hidl_twin.lsf.admission import admit, ignored

#: Variables that -env none leaves to a job.
_PLAIN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL")


def bsub(store: Store, arguments: Sequence[str]) -> None:
    """Submit a job: a script on standard input, a script that is named, or a command."""
    settings = store.settings
    print(f"bsub: hidl's stand-in for IBM Spectrum LSF; cluster {settings.cluster}.", file=sys.stderr)
    given, command = options.parse(arguments)
    interactive = next((flag for flag in ("-Is", "-Ip", "-I") if flag in given), None)
    script = _script(command, settings, interactive=interactive is not None)
    if not command or (settings.parse_script and _is_file(command[0])):
        given = options.in_script(script) | given
    job = Job(
        id="",
        user=getpass.getuser(),
        options=given,
        cwd=given.get("-cwd", str(Path.cwd())),
        from_host=os.uname().nodename.split(".")[0],
        submitted=time.time(),
    )
    job = admit(job, settings)
    if left_out := ignored(given):
        print(f"bsub: this stand-in ignores {' '.join(left_out)}.", file=sys.stderr)
    if settings.noise:
        print(settings.noise)
    job = store.enter(job, script, _environment(given))
    if settings.mute:
        time.sleep(3600)
    queue = f"queue <{given['-q']}>" if "-q" in given else f"default queue <{job.queue}>"
    if "BSUB_QUIET" not in os.environ:
        print(f"Job <{job.id}> is submitted to {queue}.", flush=True)
    if interactive or "-K" in given:
        _wait_for_it(store, job, interactive)


def _script(command: Sequence[str], settings: Settings, *, interactive: bool) -> str:
    """What the job runs."""
    if not command:
        if interactive:
            refuse("Job not submitted: an interactive job needs a command.")
        return sys.stdin.read()
    file = Path(command[0])
    if settings.parse_script and len(command) == 1 and _is_file(command[0]) and not interactive:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
        if text.startswith("#!"):
            return text
    # LSF hands the words to a shell as one line.
    return "#!/bin/sh\n" + (f"exec {shlex.join(command)}" if interactive else " ".join(command)) + "\n"


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # longer than a file's name can be
        return False


def _environment(given: dict[str, str]) -> dict[str, str]:
    """What of the user's environment the job gets: all of it, or what -env says."""
    wanted = given.get("-env", "all")
    everything = dict(os.environ)
    if wanted == "none":
        return {name: everything[name] for name in _PLAIN if name in everything}
    passed: dict[str, str] = {}
    for part in wanted.split(","):
        name, _, value = part.strip().partition("=")
        if name == "all":
            passed |= everything
        elif name.startswith("~"):
            passed.pop(name[1:], None)
        elif "=" in part or name in everything:
            passed[name] = value if "=" in part else everything[name]
    return passed


def _wait_for_it(store: Store, job: Job, interactive: str | None) -> NoReturn:
    """Wait until the job has ended (-K), or be the job's terminal (-I)."""
    print("<<Waiting for dispatch ...>>", flush=True)
    try:
        job = _until(store, job, lambda now: now.stat != "PEND")
        if job.hosts:
            print(f"<<Starting on {job.first_host}>>", flush=True)
        if interactive and job.stat == "RUN":
            terminal = ["-tt"] if interactive in ("-Is", "-Ip") and sys.stdin.isatty() else []
            command = host.command("lsf", store, job, store.settings, terminal=terminal)
            process.replace_with(command, env=os.environ)
        job = _until(store, job, lambda now: now.stat in FINAL)
    except KeyboardInterrupt:
        store.give_order(job.id, "TERM_OWNER")
        sys.exit(130)
    print("<<Job is finished>>", flush=True)
    sys.exit(0 if job.stat == "DONE" else int(job.exit_code or 255))


def _until(store: Store, job: Job, fits: Callable[[Job], bool]) -> Job:
    while not fits(job):
        time.sleep(0.1)
        job = store.job(job.id) or job
    return job

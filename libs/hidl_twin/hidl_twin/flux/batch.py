"""``flux batch`` and ``flux submit``: what is refused, and submission."""

from __future__ import annotations

import argparse
import getpass
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import Job, Store, refuse
from hidl_twin.flux import ids, options

#: The first job's number, and the distance to the next: ids of a system that has been up for a while.
NUMBERS = (289_088_208_896, 1 << 30)


def batch(store: Store, arguments: Sequence[str]) -> None:
    """Submit a script: a file that is named, standard input, or a command (--wrap)."""
    _submit(store, "batch", arguments)


def submit(store: Store, arguments: Sequence[str]) -> None:
    """Submit a command."""
    _submit(store, "submit", arguments)


def _submit(store: Store, name: str, arguments: Sequence[str]) -> None:
    settings = store.settings
    print(f"flux: a stand-in for Flux, made by hidl; cluster {settings.cluster}.", file=sys.stderr)
    first = options.parse(name, arguments)
    script, title = _script(name, first)
    given = options.parse(name, arguments, script) if name == "batch" and not first.wrap else first
    arguments_of_it = "" if name == "submit" or given.wrap else shlex.join(given.command[1:])
    kept = {key: value for key, value in vars(given).items() if isinstance(value, str) and value}
    job = Job(
        id="",
        user=getpass.getuser(),
        options={
            **kept,
            "name": given.job_name or title,
            "arguments": arguments_of_it,
            "ntasks": str(given.ntasks or given.nodes or 1),
            "dependencies": ",".join(given.dependency),
            "setattr": ",".join(given.setattr),
            "error": given.error or "",
            "output": given.output or "",
        },
        cwd=given.cwd or str(Path.cwd()),
        from_host=os.uname().nodename.split(".")[0],
        submitted=time.time(),
    )
    job = _admit(store, settings, job, given)
    if settings.noise:
        print(settings.noise, file=sys.stderr)
    job = store.enter(job, script, dict(os.environ), NUMBERS)
    if settings.mute:
        time.sleep(3600)
    if not given.quiet:
        print(ids.f58(int(job.id)), flush=True)


def _script(name: str, given: argparse.Namespace) -> tuple[str, str]:
    words = given.command
    if name == "submit" or given.wrap:
        if not words:
            _refuse("job command and arguments are missing")
        return f"#!/bin/sh\nexec {shlex.join(words)}\n", Path(words[0]).name
    if not words:
        return _shebang(sys.stdin.read()), "flux"
    try:
        return _shebang(Path(words[0]).read_text(encoding="utf-8", errors="surrogateescape")), Path(words[0]).name
    except OSError as error:
        _refuse(f"{error.strerror}: {words[0]!r}")


def _shebang(text: str) -> str:
    if not text.startswith("#!"):
        _refuse("does not appear to be a script, or failed to encode as utf-8")
    return text


def _admit(store: Store, settings: Settings, job: Job, given: argparse.Namespace) -> Job:
    """The job with its queue, its nodes and its run limit; ends the program for one that is refused."""
    for option in settings.required:
        if not getattr(given, option.lstrip("-").replace("-", "_")):
            _refuse(f"missing required option {option}")
    name = given.queue or settings.default_queue or ""
    queue = settings.queues.get(name)
    if queue is None:
        _refuse(f"Invalid queue '{name}' specified" if name else "no queue specified")
    cores = max((host.slots for host in settings.hosts.values()), default=42)
    nodes = given.nodes or -(-(given.ntasks or 1) * (given.cores or 1) // cores)
    if queue.max_nodes is not None and nodes > queue.max_nodes:
        _refuse(f"requested nnodes ({nodes}) exceeds policy limit of {queue.max_nodes} for queue {name}")
    longest = queue.run_limit(nodes)
    asked = options.seconds(given.time_limit) / 60 if given.time_limit else settings.default_minutes or longest
    if longest is not None and asked is not None and asked > longest:
        told, most = options.duration(asked * 60), options.duration(longest * 60)
        _refuse(f"requested duration ({told}) exceeds policy limit of {most} for queue {name}")
    for dependency in given.dependency:
        scheme, _, word = dependency.partition(":")
        number = ids.parse(word)
        if number is None or store.job(str(number)) is None:
            _refuse(f"dependency: {scheme}: id {word}: job not found")
    have = len(queue.hosts or settings.hosts)
    if settings.hosts and nodes > have:
        _refuse(
            f"{nodes} nodes are within the limits of {settings.cluster}, but queue {name} of this twin has {have}: "
            f"hidl cluster up --nodes {nodes}"
        )
    return Job(**{**vars(job), "queue": name, "nodes": nodes, "run_limit": asked})


def _refuse(words: str) -> NoReturn:
    refuse(f"flux-batch: ERROR: {words}", 1)

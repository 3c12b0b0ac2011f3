"""``qsub``."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hidl_twin.batch.store import FINAL, Job, Store, refuse
from hidl_twin.pbs import options
from hidl_twin.pbs.admission import admit

#: Variables of the submission that a job gets as PBS_O_NAME, whatever -v and -V say.
_ORIGIN = ("HOME", "LANG", "LOGNAME", "PATH", "MAIL", "SHELL", "TZ")
_LOGIN = ("HOME", "LOGNAME", "SHELL", "USER")
_LEFT_OUT = ("I", "J", "X")
_NOTHING = ("c", "C", "m", "M", "p", "P", "R", "r", "u", "f", "k")


def qsub(store: Store, arguments: Sequence[str]) -> None:
    """Submit a job: a script that is named, one on standard input, or a command after ``--``."""
    if arguments == ["--version"]:
        print(f"pbs_version = {store.settings.version}")
        return
    settings = store.settings
    print(f"qsub: a stand-in for PBS Professional, made by hidl; cluster {settings.cluster}.", file=sys.stderr)
    given, rest = options.parse(arguments)
    script, name = _script(rest)
    given = options.in_script(script) | given
    for letter in _LEFT_OUT:
        if letter in given:
            refuse(f"qsub: -{letter}: unsupported by this stand-in", 1)
    job = Job(
        id="",
        user=getpass.getuser(),
        options={"N": name, **given},
        cwd=str(Path.cwd()),
        from_host=os.uname().nodename.split(".")[0],
        submitted=time.time(),
    )
    job = admit(job, settings)
    if left := [f"-{letter}" for letter in given if letter in _NOTHING]:
        print(f"qsub: this stand-in ignores {' '.join(left)}.", file=sys.stderr)
    if settings.noise:
        print(settings.noise)
    job = store.enter(job, script, _environment(given, os.environ))
    if settings.mute:
        time.sleep(3600)
    if "z" not in given:
        print(f"{job.id}.{settings.login_host}", flush=True)
    if "block=true" in given.get("W", ""):
        while (now := store.job(job.id)) is not None and now.stat not in FINAL:
            time.sleep(0.1)
        sys.exit(int(now.exit_code or 0) if now else 1)


def _script(rest: Sequence[str]) -> tuple[str, str]:
    """The script, and the job's name if none is given."""
    if rest and rest[0] == "--":
        return f"#!/bin/sh\nexec {shlex.join(rest[1:])}\n", Path(rest[1]).name
    if not rest:
        return _shebang(sys.stdin.read()), "STDIN"
    try:
        return _shebang(Path(rest[0]).read_text(encoding="utf-8", errors="surrogateescape")), Path(rest[0]).name
    except OSError as error:
        refuse(f"qsub: script file:: {error.strerror}", 1)


def _shebang(text: str) -> str:
    return text if text.startswith("#!") else f"#!/bin/sh\n{text}"


def _environment(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """What of the submission's environment the job gets: what -V or -v say, and PBS_O_*; else that of a login."""
    found = dict(environ) if "V" in given else {name: environ[name] for name in _LOGIN if name in environ}
    for part in given.get("v", "").split(",") if given.get("v") else []:
        name, sign, value = part.partition("=")
        if sign or name in environ:
            found[name] = value if sign else environ[name]
    return found | {f"PBS_O_{name}": environ[name] for name in _ORIGIN if name in environ}

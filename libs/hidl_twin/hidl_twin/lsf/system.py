"""IBM Spectrum LSF as a stand-in."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hidl_cli.documents import write_text
from hidl_twin.batch import task
from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import REASONS, Job, Store
from hidl_twin.batch.system import System
from hidl_twin.jsrun import step
from hidl_twin.lsf import bsub, jobs, tables
from hidl_twin.lsf.dependencies import obstacle

_NOBODY_ANSWERS = "LSF is down. Please wait ..."
_OPTIONS = {"time": "-W", "partition": "-q", "reservation": "-U"}


class Lsf(System):
    """See ``System``."""

    name = "lsf"
    title = "IBM Spectrum LSF"
    daemon = "mbatchd"
    variable = "LSF_ENVDIR"
    commands: ClassVar = {
        "bsub": bsub.bsub,
        "bjobs": jobs.bjobs,
        "bhist": jobs.bhist,
        "bpeek": jobs.bpeek,
        "bkill": jobs.bkill,
        "bmod": jobs.bmod,
        "bqueues": tables.bqueues,
        "bhosts": tables.bhosts,
        "lshosts": tables.lshosts,
        "lsid": tables.lsid,
        "bparams": tables.bparams,
    }
    launchers: ClassVar = {"jsrun": step.jsrun}
    internal: ClassVar = {"task": task.task}

    def environment(self, store: Store, job: Job) -> dict[str, str]:
        """See ``System``; writes the files of hosts that it names."""
        settings, directory = store.settings, store.job_directory(job.id)
        slots = {host: settings.slots(host) for host in job.hosts}
        launch = [job.launch_host] if job.launch_host else []
        each = [*launch, *(host for host, number in slots.items() for _ in range(number))]
        for name in ("hostfile", "rankfile"):
            write_text(directory / name, "".join(f"{host}\n" for host in each))
        pairs = [*(f"{host} 1" for host in launch), *(f"{host} {number}" for host, number in slots.items())]
        return {
            "LSB_JOBID": job.id,
            "LSB_BATCH_JID": job.id,
            "LSB_JOBINDEX": "0",
            "LSB_JOBNAME": job.options.get("-J", "Not_Specified"),
            "LSB_QUEUE": job.queue,
            "LSB_PROJECT_NAME": job.options.get("-P", "default"),
            "LSB_SUB_HOST": job.from_host,
            "LSB_DJOB_HOSTFILE": str(directory / "hostfile"),
            "LSB_DJOB_RANKFILE": str(directory / "rankfile"),
            "LSB_DJOB_NUMPROC": str(len(each)),
            "LSB_MAX_NUM_PROCESSORS": str(len(each)),
            "LSB_MCPU_HOSTS": " ".join(pairs),
            "LSB_HOSTS": " ".join(each),
            "LS_SUBCWD": job.cwd,
            "LSFUSER": job.user,
            "LSF_ENVDIR": str(store.directory),
            "HOSTNAME": job.first_host,
        } | ({"LSB_INTERACTIVE": "Y"} if self.is_interactive(job) else {})

    def obstacle(self, store: Store, job: Job) -> str:
        """Dependencies."""
        return obstacle(job.options["-w"], store.jobs()) if "-w" in job.options else ""

    def is_interactive(self, job: Job) -> bool:
        """By -I, -Is or -Ip."""
        return any(flag in job.options for flag in ("-I", "-Is", "-Ip"))

    def directory(self, job: Job) -> Path:
        """The directory of -cwd, else the one that the job was submitted in."""
        return Path(job.options.get("-cwd", job.cwd))

    def files(self, store: Store, job: Job) -> tuple[Path, Path]:
        """Files of its own, until the report."""
        directory = store.job_directory(job.id)
        return directory / "out", directory / ("err" if _files(job)[1] else "out")

    def signals(self, reason: str) -> Sequence[signal.Signals]:
        """A run limit is announced by SIGUSR2."""
        first = [signal.SIGUSR2] if reason == "TERM_RUNLIMIT" else []
        return (*first, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)

    def concluded(self, store: Store, job: Job, status: int, reason: str) -> None:
        """The file of ``-o`` gets LSF's report and then what the job printed."""
        out, err = _files(job)
        directory, cwd = store.job_directory(job.id), self.directory(job)
        how = f"Exited with exit code {status}." if status else "Successfully completed."
        why = f"{REASONS.get(reason, reason)}.\n" if reason else ""
        printed, name = _text(directory / "out"), job.options.get("-J", "")
        text = f"Sender: LSF System <lsfadmin@{job.first_host}>\nSubject: Job {job.id}: <{name}>\n\n"
        text += f"Job was executed on host(s) {' '.join(f'<{host}>' for host in job.hosts)}, in queue <{job.queue}>, "
        text += f"as user <{job.user}>.\n\n{why}{how}\n\nThe output (if any) follows:\n\n{printed}"
        with suppress(OSError):
            _write(cwd / (out or os.devnull), text, append="-oo" not in job.options)
            if err:
                _write(cwd / err, _text(directory / "err"), append="-eo" not in job.options)

    def unanswered(self, store: Store, command: str) -> None:
        """Wait as LSF's commands do: for ever, or LSB_NTRIES times."""
        tries = int(os.environ.get("LSB_NTRIES", "1000000"))
        while not store.answers(command):
            print(_NOBODY_ANSWERS, file=sys.stderr, flush=True)
            tries -= 1
            if tries <= 0:
                sys.exit(255)
            time.sleep(0.5)

    def host_states(self, store: Store) -> dict[str, str]:
        """As bhosts tells them."""
        return tables.states(store.settings, store.jobs())

    def settings(self, settings: Settings, rules: Mapping[str, str], account: str) -> Settings:
        """The options that its bsub requires."""
        options = _OPTIONS | {"account": account}
        return replace(settings, required=tuple(options[rule] for rule in rules if rule in options))


def _files(job: Job) -> tuple[str | None, str | None]:
    """The files of -o and -e; None where there is none."""

    def named(*names: str) -> str | None:
        given = next((job.options[name] for name in names if name in job.options), None)
        return given.replace("%J", job.id).replace("%I", "0") if given else None

    return named("-o", "-oo"), named("-e", "-eo")


def _write(file: Path, text: str, *, append: bool) -> None:
    with file.open("a" if append else "w", encoding="utf-8") as stream:
        stream.write(text)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

"""The daemon of a stand-in scheduler: it gives hosts to jobs, each to one job only, and starts them there."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from hidl_cli import process
from hidl_cli.documents import read_json
from hidl_twin.batch import host
from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import FINAL, Job, Store
from hidl_twin.batch.system import System

_PAUSE = 0.02  # between two looks at the jobs, while there are some
_IDLE = 0.1
_LOST = 15.0  # seconds without a sign of life after which a job's host counts as gone
_STARTS = 30.0  # seconds that a job may take to show its first


def serve(system: System, store: Store, _: Sequence[str]) -> None:
    """Serve until a SIGTERM."""
    store["jobs"].mkdir(parents=True, exist_ok=True)
    with store["daemon.lock"].open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        signal.signal(signal.SIGTERM, _leave)
        _Daemon(system, store).serve()


def _leave(_: int, __: FrameType | None) -> None:
    os._exit(0)


class _Daemon:
    def __init__(self, system: System, store: Store) -> None:
        self._system = system
        self._store = store
        self._open: dict[str, Job] = {}
        self._seen: set[str] = set()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ended_at: dict[str, float] = {}

    def serve(self) -> None:
        """Look at the jobs again and again."""
        while True:
            settings = self._store.settings
            self._take_new()
            for id in list(self._open):
                self._look_at(self._open[id], settings)
            for id in [id for id, child in self._children.items() if child.poll() is not None]:
                del self._children[id]
            time.sleep(_PAUSE if self._open else _IDLE)

    def _take_new(self) -> None:
        entries = {entry.name for entry in self._store["jobs"].iterdir() if entry.name.isdecimal()}
        for id in sorted(entries - self._seen, key=int):
            job = self._store.job(id)
            if job is None:  # being entered
                continue
            self._seen.add(id)
            if job.stat not in FINAL:
                self._open[id] = job

    def _look_at(self, job: Job, settings: Settings) -> None:
        if job.stat == "RUN":
            self._follow(job, settings)
            return
        job = self._store.job(job.id) or job  # bmod may have changed it
        if word := self._store.order(job.id):
            self._set(replace(job, stat="EXIT", exit_reason=word, ended=time.time()))
            return
        reason = settings.pending or self._system.obstacle(self._store, job)
        hosts = self._hosts_for(job, settings)
        if not reason and hosts is None:
            reason = "Job requirements for reserving resources (slots) not satisfied"
        if reason or hosts is None or settings.mute:
            self._set(replace(job, pend_reason=reason or job.pend_reason))
            return
        launch = settings.launch_host
        given = replace(job, hosts=hosts, launch_host=launch, slots=sum(settings.slots(host) for host in hosts))
        self._set(replace(given, stat="RUN", started=time.time(), pend_reason=""))
        if not self._system.is_interactive(job):
            self._start(self._open[job.id], settings)

    def _hosts_for(self, job: Job, settings: Settings) -> tuple[str, ...] | None:
        """Hosts for the job; None while too few are free."""
        if not settings.hosts:
            return tuple(f"node{number:02d}" for number in range(1, job.nodes + 1))
        taken = {host for other in self._open.values() if other.stat == "RUN" for host in other.hosts}
        queue = settings.queues.get(job.queue)
        free = [host for host in (queue.hosts if queue else ()) or settings.hosts if host not in taken]
        # Jobs that ask for no GPU leave the hosts that have some to others.
        free.sort(key=lambda host: settings.hosts[host].gpus)
        free = [host for host in free if self._system.fits(job, settings.hosts[host])]
        return tuple(free[: job.nodes]) if len(free) >= job.nodes else None

    def _start(self, job: Job, settings: Settings) -> None:
        log = self._store.job_directory(job.id) / "host.log"
        command = host.command(self._system.name, self._store, job, settings)
        child = process.start_detached(command, cwd=Path("/"), env=os.environ, stdout=log, stderr=log)
        self._children[job.id] = child

    def _follow(self, job: Job, settings: Settings) -> None:
        directory = self._store.job_directory(job.id)
        if (directory / "ended.json").is_file():
            if time.time() - self._ended_at.setdefault(job.id, time.time()) < settings.lag:
                return
            document = read_json(directory / "ended.json")
            self._end(job, int(document["status"]), str(document["reason"]))
        elif self._is_lost(job):
            self._end(job, 255, "TERM_CSM_ALLOC")

    def _is_lost(self, job: Job) -> bool:
        alive = self._store.job_directory(job.id) / "alive"
        if not alive.is_file():
            return time.time() - (job.started or 0) > _STARTS
        return time.time() - alive.stat().st_mtime > _LOST

    def _end(self, job: Job, status: int, reason: str) -> None:
        stat = "EXIT" if status or reason else "DONE"
        code = str(status) if status else ""
        self._set(replace(job, stat=stat, exit_code=code, exit_reason=reason, ended=time.time()))

    def _set(self, job: Job) -> None:
        if job != self._store.job(job.id):
            self._store.write_state(job)
        self._open[job.id] = job
        if job.stat in FINAL:
            del self._open[job.id]

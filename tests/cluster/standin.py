"""A stand-in scheduler of this machine: every job runs here, on hosts that need not exist."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hidl_twin.batch import service
from hidl_twin.batch.settings import Queue, Settings
from hidl_twin.batch.store import FINAL, Job, Store
from hidl_twin.batch.system import System

from tests.waiting import patience, until

HOUR = Queue(max_nodes=4, run_limits=((None, 60.0),))


class StandIn:
    """What a test can do to a stand-in scheduler, and ask of it."""

    def __init__(self, system: System, spool: Path, **settings: Any) -> None:
        self.spool = spool
        queues = {"batch": HOUR, "debug": Queue(max_nodes=1, run_limits=((None, 10.0),))}
        common = {"launch_host": None, "interval": 0.4, "queues": queues, "login_host": "login1"}
        service.write(system, spool, system.settings(Settings(**(common | settings)), {}, "-A"))
        self._daemon = subprocess.Popen([sys.executable, "-IS", spool / f"{system.name}.py", "daemon"])
        while not self.store.is_served():
            assert self._daemon.poll() is None
            time.sleep(0.01)

    @property
    def store(self) -> Store:
        """Its directory."""
        return Store(self.spool)

    def __call__(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of its commands in the directory above its own."""
        path = f"{self.spool / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
            cwd=self.spool.parent,
            env={**os.environ, "PATH": path, **variables},
        )

    def crowd(self, number: int) -> None:
        """Enter further jobs like the last one, which waits."""
        last = self.store.jobs()[-1]
        request = (self.store.job_directory(last.id) / "request.json").read_text()
        step = int(last.id) - int(self.store.jobs()[-2].id)
        for count in range(1, number + 1):
            directory = self.store.job_directory(str(int(last.id) + count * step))
            unseen = directory.with_name(f".{directory.name}")
            unseen.mkdir()
            (unseen / "request.json").write_text(request.replace(f'"{last.id}"', f'"{directory.name}"'))
            unseen.rename(directory)

    def set(self, **settings: Any) -> None:
        """Change its settings."""
        file = self.spool / "settings.json"
        file.with_suffix(".new").write_text(json.dumps(json.loads(file.read_text()) | settings))
        file.with_suffix(".new").replace(file)

    def script(self, text: str, name: str = "job.sh") -> str:
        """A script for it."""
        file = self.spool.parent / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        return name

    def wait(self, number: int = -1, stat: str = "") -> Job:
        """The job, once it has that state, or has ended."""

        def found() -> Job | None:
            job = self.store.jobs()[number]
            return job if job.stat == stat or (not stat and job.stat in FINAL) else None

        job = until(found, otherwise=self.store.jobs)
        assert job is not None
        return job

    def end_daemon(self) -> None:
        """Stop answering."""
        self._daemon.kill()
        self._daemon.wait()

    def end(self) -> None:
        """Leave no process behind."""
        self.end_daemon()
        for file in self.spool.glob("jobs/*/pid"):
            with suppress(ProcessLookupError):
                os.killpg(int(file.read_text()), signal.SIGKILL)

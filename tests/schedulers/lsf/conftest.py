"""A stand-in LSF (``libs/hidl_twin/hidl_twin/lsf``) of this machine, and runs whose job scripts do what hidl's do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hidl_twin.batch import service
from hidl_twin.batch.settings import Queue, Settings
from hidl_twin.batch.store import FINAL, Job, Store
from hidl_twin.lsf.system import Lsf as StandInLsf

from hidl_cli.launch.placement import Allocation
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers.batch import BatchScheduler
from hidl_cli.schedulers.lsf import LsfBackend
from hidl_cli.site.schema import Policies
from tests.schedulers import bench
from tests.waiting import until

_QUEUE = Queue(max_nodes=4, run_limits=((None, 120),))

SCRIPT = """\
#!/usr/bin/env bash
{header}
set -euo pipefail
directory=$(dirname -- "${{BASH_SOURCE[0]}}")
[[ -e $directory/plan.json ]] || directory=$LS_SUBCWD
cd -- "$directory"
{functions}
write_status() {{ # state exit-status end-time
    printf '{{"state": "%s", "exit_status": %s, "started": 1.0, "ended": %s, "step": 1, "steps": 1, "hosts": []}}' \\
        "$1" "$2" "$3" > .status.new
    mv -f .status.new status.json
}}
ended_early() {{
    trap '' TERM INT USR2
    write_status "$(cat reason 2> /dev/null || echo CANCELLED)" 143 "$(date +%s.%N)"
    exit 143
}}
trap ended_early TERM INT USR2
list_hosts > hosts
write_status RUNNING null null
status=0
( {program} ) &
wait $! || status=$?
if ((status == 0)); then state=COMPLETED; else state=FAILED; fi
write_status "$state" "$status" "$(date +%s.%N)"
exit "$status"
"""


def lsf_scheduler() -> BatchScheduler:
    """LSF, as a new process of hidl has it."""
    return BatchScheduler(LsfBackend())


class FakeLsf:
    """What a test can do to the stand-in LSF, and ask of it."""

    def __init__(self, spool: Path, runs: Path) -> None:
        self.spool = spool
        self.runs = runs
        settings = Settings(parse_script=False, interval=0.4, queues={"batch": _QUEUE, "debug": _QUEUE})
        service.write(StandInLsf(), spool, settings)
        self._daemon = subprocess.Popen([sys.executable, "-IS", spool / "lsf.py", "daemon"])
        while not Store(spool).is_served():
            assert self._daemon.poll() is None
            time.sleep(0.01)

    def set(self, **settings: Any) -> None:
        """Change settings of LSF."""
        file = self.spool / "settings.json"
        known = json.loads(file.read_text())
        file.with_suffix(".new").write_text(json.dumps(known | settings))
        file.with_suffix(".new").replace(file)

    def limit(self, nodes: int) -> None:
        """Let no job have more nodes."""
        self.set(queues={"batch": {"max_nodes": nodes}})

    def calls(self, command: str) -> list[str]:
        """The calls of one command, in order."""
        file = self.spool / "calls"
        lines = file.read_text().splitlines() if file.is_file() else []
        return [line for line in lines if line.split()[0] == command]

    def job(self, id: str) -> Job:
        """What LSF itself knows of a job."""
        job = Store(self.spool).job(id)
        assert job is not None
        return job

    def run(self, program: str, name: str = "run-1", *, policies: Policies | None = None, **asked: Any) -> Run:
        """A run whose job does ``program``, not submitted yet."""
        allocation = Allocation(**({"job_name": name, "nodes": 2, "ranks_per_node": 1, "time_limit": 600.0} | asked))
        header = lsf_scheduler().header(allocation, policies or Policies.model_validate({}))
        functions = lsf_scheduler().functions
        run = Run(self.runs / name)
        run.directory.mkdir(parents=True)
        run.script.write_text(SCRIPT.format(header="\n".join(header), functions=functions, program=program))
        run.script.chmod(0o755)
        return run

    def submitted(self, program: str, name: str = "run-1", **asked: Any) -> Run:
        """The same, submitted."""
        run = self.run(program, name, **asked)
        lsf_scheduler().submit(run)
        return run

    def end_daemon(self) -> None:
        """Let nobody answer."""
        self._daemon.kill()
        self._daemon.wait()

    def end_all(self) -> None:
        """Leave no process behind."""
        self.set(pending="", down=False, mute=False, interval=0.05, lag=0.0)
        store = Store(self.spool)
        for job in store.jobs():
            store.give_order(job.id, "TERM_OWNER")
        if self._daemon.poll() is None:
            with suppress(AssertionError):
                until(lambda: all(job.stat in FINAL for job in store.jobs()), within=10)
        for file in self.spool.glob("jobs/*/pid"):
            with suppress(ProcessLookupError):
                os.killpg(int(file.read_text()), signal.SIGKILL)
        self.end_daemon()


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLsf]:
    """The stand-in LSF, whose commands come first on PATH."""
    spool = tmp_path / "lsf"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(LsfBackend, "first_interval", 0.02)
    monkeypatch.setenv("PATH", f"{spool / 'bin'}:{os.environ['PATH']}")
    fake = FakeLsf(spool, tmp_path / "my runs")
    yield fake
    fake.end_all()


@pytest.fixture
def polled() -> Callable[..., Status]:
    """``polled(run, wanted)``: poll until the status pleases, and return it."""

    def poll(run: Run, wanted: Callable[[Status], bool] = lambda status: status.state.is_final) -> Status:
        return bench.polled(lsf_scheduler(), run, wanted, within=30)

    return poll


def is_running(status: Status) -> bool:
    """Has the job begun?"""
    return status.state is State.RUNNING

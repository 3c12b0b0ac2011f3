"""A fake LSF, and runs whose job scripts do what hidl's do."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.lsf import Lsf, poll
from hidl_cli.site.schema import Policies
from hidl_cli.templates import render_script
from tests.conftest import REPOSITORY

FAKE_LSF = REPOSITORY / "tests" / "schedulers" / "fake_lsf"

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
    write_status "$(cat reason 2> /dev/null || echo CANCELLED)" 143 2.0
    exit 143
}}
trap ended_early TERM INT USR2
list_hosts > hosts
write_status RUNNING null null
status=0
( {program} ) &
wait $! || status=$?
if ((status == 0)); then write_status COMPLETED 0 2.0; else write_status FAILED "$status" 2.0; fi
exit "$status"
"""


class FakeLsf:
    """What a test can do to the fake LSF, and ask of it."""

    def __init__(self, spool: Path, runs: Path) -> None:
        self.spool = spool
        self.runs = runs

    def set(self, **settings: Any) -> None:
        """Change settings of ``fake.py``."""
        file = self.spool / "settings.json"
        known = json.loads(file.read_text()) if file.is_file() else {}
        file.with_suffix(".new").write_text(json.dumps(known | settings))
        file.with_suffix(".new").replace(file)

    def calls(self, command: str) -> list[str]:
        """The calls of one command, in order."""
        file = self.spool / "calls"
        lines = file.read_text().splitlines() if file.is_file() else []
        return [line for line in lines if line.split()[0] == command]

    def job(self, id: str) -> dict[str, Any]:
        """What LSF itself knows of a job."""
        document = json.loads((self.spool / "jobs" / id / "job.json").read_text())
        assert isinstance(document, dict)
        return document

    def run(self, program: str, name: str = "run-1", *, policies: Policies | None = None, **asked: Any) -> Run:
        """A run whose job does ``program``, not submitted yet."""
        allocation = Allocation(**({"job_name": name, "nodes": 2, "ranks_per_node": 1, "time_limit": 600.0} | asked))
        header = Lsf().header(allocation, policies or Policies.model_validate({}))
        functions = render_script("schedulers/lsf.sh.j2", {})
        run = Run(self.runs / name)
        run.directory.mkdir(parents=True)
        run.script.write_text(SCRIPT.format(header="\n".join(header), functions=functions, program=program))
        run.script.chmod(0o755)
        return run

    def submitted(self, program: str, name: str = "run-1", **asked: Any) -> Run:
        """The same, submitted."""
        run = self.run(program, name, **asked)
        Lsf().submit(run, time_limit=None)
        return run

    def end_all(self) -> None:
        """Leave no process behind."""
        self.set(pending="", down=False, interval=0.05, lag=0.0)
        for file in self.spool.glob("jobs/*/job.json"):
            (file.parent / "order").write_text("TERM_OWNER")
        deadline = time.monotonic() + 10
        for file in self.spool.glob("jobs/*/job.json"):
            while "ended" not in (job := json.loads(file.read_text())) and time.monotonic() < deadline:
                time.sleep(0.02)
            with suppress(ProcessLookupError, KeyError):
                os.killpg(job["pid"], signal.SIGKILL)


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLsf]:
    """The fake LSF, whose commands come first on PATH."""
    spool = tmp_path / "lsf"
    spool.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(poll, "FIRST_INTERVAL", 0.02)
    monkeypatch.setenv("FAKE_LSF", str(spool))
    monkeypatch.setenv("PATH", f"{FAKE_LSF / 'bin'}:{os.environ['PATH']}")
    fake = FakeLsf(spool, tmp_path / "my runs")
    yield fake
    fake.end_all()


@pytest.fixture
def polled() -> Callable[..., Status]:
    """``polled(run, until)``: poll until the status pleases, and return it."""

    def poll(run: Run, until: Callable[[Status], bool] = lambda status: status.state.is_final) -> Status:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            (status,) = Lsf().poll([run])
            if until(status):
                return status
            time.sleep(0.05)
        raise AssertionError(f"still {status}")

    return poll


def is_running(status: Status) -> bool:
    """Has the job begun?"""
    return status.state is State.RUNNING

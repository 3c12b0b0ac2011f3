"""Jobs on this machine: whose process is whose, and what a look does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.errors import HidlError
from hidl_cli.record import Run, State
from hidl_cli.schedulers import local
from hidl_cli.schedulers.local import Local
from tests.plan.test_job_script import script
from tests.waiting import patience, until

SCRIPT = """\
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
%s
job_id > /dev/null
exec sleep 300
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run whose job sleeps."""
    directory = tmp_path / "run-1"
    directory.mkdir()
    made = Run(directory)
    made.script.write_text(SCRIPT % Local().functions)
    yield made
    Local().cancel(made, state=State.CANCELLED)


def job(run: Run) -> dict[str, Any]:
    return run.document("job") or {}


def change(run: Run, **values: Any) -> None:
    (run.directory / "job.json").write_text(json.dumps(job(run) | values))


def submit(run: Run) -> None:
    """Submit it, and wait until its script has written all that it writes."""
    Local().submit(run)
    until(lambda: Path(f"/proc/{job(run)['pid']}/comm").read_text() == "sleep\n")


def state(run: Run) -> State:
    return Local().poll([run])[0].state


def test_a_run_whose_job_is_not_known_yet_is_not_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making of its directory and the start of its job; hidl may be killed there."""
    assert state(run) is State.PENDING
    monkeypatch.setattr(local, "change_time", lambda _: time.time() - 600)
    assert state(run) is State.LOST


def test_a_job_says_itself_which_process_it_is(run: Run) -> None:
    """As hidl does, to the letter: it may be started without hidl."""
    process = subprocess.Popen(["bash", run.script], start_new_session=True)
    until(lambda: job(run).get("pid") == process.pid)
    by_itself = job(run)
    local._record(run, process.pid)
    by_hidl = job(run)
    assert by_itself["of"]["inode"] == by_hidl["of"]["inode"]
    assert by_itself | {"of": 0} == by_hidl | {"of": 0}
    assert state(run) is State.PENDING
    process.terminate()
    process.wait()


def test_a_job_that_was_killed_is_lost_and_a_look_ends_nothing(run: Run) -> None:
    submit(run)
    other = subprocess.Popen(["sleep", "300"], env={"HIDL_RUN_ID": run.id, "HIDL_FINDINGS": f"{run.directory}/f"})
    os.kill(job(run)["pid"], signal.SIGKILL)
    until(lambda: state(run) is State.LOST)
    assert other.poll() is None
    assert not Local().cancel(run, state=State.CANCELLED)
    assert other.wait(patience(10)) == -signal.SIGKILL


@pytest.mark.parametrize(
    "elsewhere",
    [{"birth": "another-boot:1", "host": "another-host"}, {"space": "pid:[1]"}],
    ids=["another host", "a container"],
)
def test_what_cannot_be_seen_from_here_goes_on(run: Run, elsewhere: dict[str, Any]) -> None:
    submit(run)
    truth = job(run)
    change(run, **elsewhere)
    (status,) = Local().poll([run])
    assert (status.state.is_final, "is not visible" in (status.reason or "")) == (False, True)
    with pytest.raises(HidlError, match="was started on"):
        Local().cancel(run, state=State.CANCELLED)
    change(run, **truth)
    assert not (run.directory / "reason").exists()


def test_after_a_restart_of_this_machine_it_is_lost(run: Run) -> None:
    submit(run)
    truth = job(run)
    change(run, birth="an-earlier-boot:1")
    assert state(run) is State.LOST
    change(run, **truth)
    os.killpg(truth["pid"], signal.SIGKILL)


def test_the_process_of_the_first_run_is_not_that_of_a_copy(run: Run, tmp_path: Path) -> None:
    submit(run)
    copy = Run(tmp_path / "copy")
    shutil.copytree(run.directory, copy.directory)
    Local().cancel(copy, state=State.CANCELLED)
    assert state(run) is State.PENDING
    with subprocess.Popen(["bash", copy.script], start_new_session=True) as process:
        until(lambda: job(copy).get("pid") == process.pid)
        (copy.directory / "status.json").write_text(
            (copy.directory / "status.json").read_text().replace("CANCELLED", "RUNNING")
        )
        assert state(copy) is State.RUNNING
        assert Local().cancel(copy, state=State.CANCELLED)
        assert process.wait(patience(10)) == -signal.SIGTERM
    assert state(run) is State.PENDING


def limited(run: Run, program: str) -> None:
    """Submit a job that has a time limit of 1 s; each of its ranks does ``program``."""
    run.script.write_text(script(["bash", "-c", program], local_limit=1))
    Local().submit(run)


def words_of_processes(run: Run) -> list[str]:
    """What runs of the job, here."""
    mark = f"HIDL_FINDINGS={run.directory}/findings.json".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [words for words in found if words]


def test_a_job_ends_at_its_time_limit_though_nobody_looks(run: Run) -> None:
    limited(run, "setsid sleep 301 & sleep 302")
    until(lambda: run.status().state is State.TIMEOUT)
    assert run.status().exit_status == 143
    until(lambda: not words_of_processes(run), otherwise=lambda: "\n".join(words_of_processes(run)))


@pytest.mark.deep  # 10 s of grace
def test_a_job_that_ignores_the_signal_is_killed_at_its_time_limit(run: Run) -> None:
    limited(run, "trap '' TERM; while true; do sleep 1; done")
    until(lambda: not words_of_processes(run), otherwise=lambda: "\n".join(words_of_processes(run)))
    assert state(run) is State.TIMEOUT


def test_nothing_waits_for_the_time_limit_of_a_job_that_has_ended(run: Run) -> None:
    run.script.write_text(script(["true"], local_limit=300))
    Local().submit(run)
    until(lambda: run.status().state.is_final)
    until(lambda: not words_of_processes(run), otherwise=lambda: "\n".join(words_of_processes(run)))


def test_a_look_at_a_job_beyond_its_time_limit_ends_nothing(run: Run) -> None:
    submit(run)
    change(run, deadline=time.time() - 60)
    assert state(run) is State.PENDING
    assert not (run.directory / "reason").exists()

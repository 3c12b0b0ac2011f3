"""Records of jobs over ssh: what is said of one whose supervisor was killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hidl_cli import paths
from hidl_cli.record import State
from hidl_cli.schedulers import ssh
from hidl_cli.schedulers.ssh import JobRecord, SshBackend
from tests.waiting import patience, until


@pytest.fixture
def orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process of a job whose supervisor is gone."""
    monkeypatch.setattr(paths, "user_state", lambda: tmp_path)
    JobRecord("1", "an-earlier-boot:1", f"run-{tmp_path.name}", str(tmp_path / "run"), State.RUNNING).write()
    with subprocess.Popen(["sleep", "300"], env={"HIDL_RUN_ID": f"run-{tmp_path.name}"}) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        yield process
        process.kill()


def test_a_look_at_a_job_without_its_supervisor_ends_nothing(orphan: subprocess.Popen[bytes]) -> None:
    (record,) = ssh.records()
    assert (record.state, record.reason) == (
        State.RUNNING,
        "its supervisor was killed; 1 process(es) left (hidl cancel ends them)",
    )
    assert orphan.poll() is None


def test_cancel_ends_a_job_without_its_supervisor_which_is_then_lost(orphan: subprocess.Popen[bytes]) -> None:
    SshBackend().kill("1", None)
    assert orphan.wait(patience(10)) == -signal.SIGKILL
    (record,) = ssh.records()
    assert (record.state, record.reason, record.by_itself) == (State.LOST, ssh.KILLED, False)
    assert record == ssh.records()[0]

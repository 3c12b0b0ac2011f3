"""The supervisor of a job over ssh with a real guard; ``ssh`` is replaced by a program that stays on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hidl_cli.record import State
from hidl_cli.schedulers.local import kill_run, processes_of
from hidl_cli.schedulers.ssh import JobRecord, records
from tests.waiting import until

SSH = """\
#!/bin/bash
until [[ $1 == -- ]]; do shift; done
echo "$2" >> "$CONNECTIONS"
exec bash "${@:5}"
"""
#: The script ends at SIGTERM, and leaves a daemon behind, as programs do.
SCRIPT = """\
#!/bin/bash
# ssh: --hosts=node1
# ssh: --share-hosts
setsid sleep 978 &
touch started
sleep 979 &
wait
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a run that has started on one host."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    directory = tmp_path / f"{tmp_path.name}-{os.getpid()}"
    directory.mkdir()
    (directory / "job.sh").write_text(SCRIPT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CONNECTIONS", str(tmp_path / "connections"))
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    supervisor = subprocess.Popen([sys.executable, "-m", "hidl_cli.schedulers.ssh.supervise", directory / "job.sh"])
    until((directory / "started").exists)
    yield directory
    supervisor.kill()
    supervisor.wait()
    kill_run(directory.name)


def record() -> JobRecord:
    (found,) = records()
    return found


def guard_of(run: Path) -> int:
    """The process number of the guard."""
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words.read_bytes().split(b"\0")[-3:-1] == [b"hidl-guard", run.name.encode()]:
                return int(words.parent.name)
        except OSError:
            continue
    raise AssertionError("no guard")


def test_after_kill_9_of_the_supervisor_nothing_is_left(run: Path) -> None:
    os.kill(int(record().id), signal.SIGKILL)
    until(lambda: not [*processes_of(run.name)])
    until(lambda: record().state is State.LOST)


def test_a_host_whose_guard_was_killed_is_cleaned_all_the_same(run: Path) -> None:
    os.kill(guard_of(run), signal.SIGKILL)
    until(lambda: record().ended is not None)
    assert (record().state, "processes may be left" in record().reason) == (State.NODE_FAIL, False)
    assert [*processes_of(run.name)] == []
    assert (run.parent / "connections").read_text().split() == ["node1", "node1"]

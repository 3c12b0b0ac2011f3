"""Runs on a real OpenPBS or PBS Professional, whichever answers. Skipped by name if none does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hidl_cli.errors import SchedulerUnreachable
from hidl_cli.schedulers.pbs import PbsBackend
from tests.schedulers.bench import BatchSystemTests, Bench
from tests.waiting import patience

_DIRECTORY = "HIDL_TEST_PBS"


def _obstacle() -> str | None:
    """Why there is no PBS to test on; None: there is one."""
    if _DIRECTORY not in os.environ:
        return f"{_DIRECTORY} is not set"
    if shutil.which("qstat") is None:
        return "no qstat on PATH"
    answer = subprocess.run(["qstat", "-B"], capture_output=True, text=True, timeout=patience(60), check=False)
    return answer.stderr.strip() or None


_OBSTACLE = _obstacle()
pytestmark = pytest.mark.skipif(
    _OBSTACLE is not None,
    reason=f"NO OPENPBS ANSWERS HERE ({_OBSTACLE}): put its commands on PATH (PBS_CONF_FILE, if not /etc/pbs.conf) and "
    f"name in {_DIRECTORY} a directory that this host and the nodes share; jobs go to the default queue",
)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs on it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Bench(PbsBackend, Path(os.environ[_DIRECTORY]) / f"runs-{os.getpid()}")


class TestPbsReal(BatchSystemTests):
    """See ``BatchSystemTests``."""

    hold = "-h"

    def test_the_host_file_has_a_line_for_each_rank(self, bench: Bench) -> None:
        run = bench.submitted('wc -l < "$PBS_NODEFILE"', ranks_per_node=2)
        bench.polled(run)
        assert run.directory.joinpath("stdout.log").read_text().strip() == "4"

    def test_without_a_server_nothing_is_submitted(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PBS_SERVER", "no-such-server.invalid")
        with pytest.raises(SchedulerUnreachable):
            bench.submitted("true")

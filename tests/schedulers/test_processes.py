"""Processes of jobs get signals, those of other users never do, whatever their environment claims."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hidl_twin.batch import host

from hidl_cli.schedulers import local
from tests.waiting import until

NOBODY = 65534
RUN = f"run-of-{os.getpid()}"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """A process of the run, and one of another user that claims to be; both end after 20 s."""
    environment = {
        "PATH": os.environ["PATH"],
        "HIDL_RUN_ID": RUN,
        "HIDL_FINDINGS": str(tmp_path / "findings.json"),
        host.MARK: RUN,
    }
    with ExitStack() as stack:
        own = stack.enter_context(subprocess.Popen(["sleep", "20"], env=environment))
        stack.callback(own.kill)
        other = stack.enter_context(
            subprocess.Popen(["sleep", "20"], env=environment, user=NOBODY, group=NOBODY, extra_groups=[])
        )
        stack.callback(other.kill)
        yield own, other


@needs_root
@pytest.mark.parametrize("kill", ["run", "job", "guard", "clean"])
def test_a_process_of_another_user_with_the_runs_variables_is_spared(
    pair: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]], tmp_path: Path, kill: str
) -> None:
    own, other = pair
    if kill == "run":
        assert list(local.processes_of(RUN)) == [own.pid]
        local.kill_run(RUN)
    elif kill == "job":
        local.kill_job(tmp_path)
    elif kill == "guard":
        text = Path(local.__file__).with_name("ssh").joinpath("guard.sh").read_text()
        functions = text[text.index("own_environments() {") : text.index("leave() {")]
        subprocess.run(["bash", "-c", f"run={RUN}; say() {{ :; }}\n{functions}\nsweep"], check=True, timeout=60)
    else:
        subprocess.run(["sh", "-c", host._CLEAN % (host.MARK, RUN)], check=True, timeout=60)
    until(lambda: own.poll() is not None)
    assert (own.returncode, other.poll()) == (-signal.SIGKILL, None)


def test_a_signal_reaches_only_the_process_that_was_meant() -> None:
    with subprocess.Popen(["sleep", "20"]) as process:
        try:
            born = local.birth(process.pid)
            local.send(process.pid, signal.SIGKILL, lambda: local.birth(process.pid) == f"{born}0")
            assert process.poll() is None
            local.send(process.pid, signal.SIGTERM, lambda: local.birth(process.pid) == born)
            assert process.wait() == -signal.SIGTERM
            local.send(process.pid, signal.SIGTERM, lambda: True)  # it has ended
        finally:
            process.kill()

"""Runs on a real Flux: an instance of two brokers that the test starts. Skipped by name if flux-core is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hidl_cli.errors import SchedulerUnreachable, SubmitRefused
from hidl_cli.record import State
from hidl_cli.schedulers.flux import FluxBackend
from tests.schedulers.bench import BatchSystemTests, Bench
from tests.waiting import patience

_ASKED = "HIDL_TEST_FLUX"
_FLUX = shutil.which(os.environ.get(_ASKED, "flux"))
_CONFIGURATION = """\
[policy]
jobspec.defaults.system.queue = "batch"
[queues.batch]
policy.limits.duration = "1h"
policy.limits.job-size.max.nnodes = 2
[queues.closed]
"""

pytestmark = pytest.mark.skipif(
    _FLUX is None,
    reason=f"FLUX-CORE IS NOT HERE: put its `flux` on PATH, or name it in {_ASKED}; the test starts an instance itself",
)


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of an instance with queues batch (1 h, 2 nodes) and closed (disabled)."""
    assert _FLUX is not None
    directory = tmp_path_factory.mktemp("flux")
    (directory / "flux.toml").write_text(_CONFIGURATION)
    script = "flux queue start --all --quiet && flux queue disable --queue=closed && flux getattr local-uri && cat"
    command = [_FLUX, "start", "--test-size=2", f"--config-path={directory / 'flux.toml'}", "sh", "-c", script]
    environment = {**os.environ, "PATH": f"{Path(_FLUX).parent}:{os.environ['PATH']}"}
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert started.stdout is not None
    assert started.stdin is not None
    uri = next(line.strip() for line in started.stdout if line.startswith("local://"))
    yield uri
    started.stdin.close()
    started.wait(patience(60))


@pytest.fixture
def bench(instance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs on it."""
    assert _FLUX is not None
    monkeypatch.setenv("FLUX_URI", instance)
    monkeypatch.setenv("PATH", f"{Path(_FLUX).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Bench(FluxBackend, tmp_path / "my runs", shortest=2.0)


class TestFluxReal(BatchSystemTests):
    """See ``BatchSystemTests``."""

    hold = "--urgency=0"

    def test_a_disabled_queue_refuses(self, bench: Bench) -> None:
        with pytest.raises(SubmitRefused, match="job submission to closed is disabled"):
            bench.submitted("true", queue="closed")

    def test_a_job_over_a_limit_is_refused(self, bench: Bench) -> None:
        with pytest.raises(SubmitRefused, match="exceeds policy limit of 2 for queue batch"):
            bench.submitted("true", nodes=3)

    def test_ranks_start_by_flux_run(self, bench: Bench) -> None:
        run = bench.submitted("flux run -N 2 -n 2 -c 1 -o exit-on-error -o cpu-affinity=per-task sh -c 'echo rank'")
        assert bench.polled(run).state is State.COMPLETED
        assert run.directory.joinpath("stdout.log").read_text() == "rank\nrank\n"

    def test_without_a_broker_nothing_is_submitted(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FLUX_URI", "local:///nonexistent/flux/local")
        with pytest.raises(SchedulerUnreachable):
            bench.submitted("true")

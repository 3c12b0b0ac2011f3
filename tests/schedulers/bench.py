"""Runs on a batch system, as hidl submits, follows and ends them: the same tests on a stand-in and on the real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.errors import SubmitRefused
from hidl_cli.launch.placement import Allocation
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers.backend import Backend, Scheduler, read_reference
from hidl_cli.schedulers.batch import BatchScheduler
from hidl_cli.site.job_options import JobSettings
from hidl_cli.site.schema import Policies
from tests.waiting import until

SCRIPT = """\
#!/usr/bin/env bash
{header}
set -euo pipefail
directory=$(dirname -- "${{BASH_SOURCE[0]}}")
[[ -e $directory/job.sh ]] || directory={directory}
cd -- "$directory"
{functions}
write_status() {{ # state exit-status end-time
    printf '{{"state": "%s", "exit_status": %s, "started": 1.0, "ended": %s, "step": 1, "steps": 1, "hosts": []}}' \\
        "$1" "$2" "$3" > .status.new
    mv -f .status.new status.json
}}
ended_early() {{
    trap '' TERM INT ALRM HUP
    write_status "$(cat reason 2> /dev/null || echo CANCELLED)" 143 "$(date +%s.%N)"
    exit 143
}}
trap ended_early TERM INT ALRM HUP
list_hosts > hosts
write_status RUNNING null null
status=0
( {program} ) &
wait $! || status=$?
if ((status == 0)); then state=COMPLETED; else state=FAILED; fi
write_status "$state" "$status" "$(date +%s.%N)"
exit "$status"
"""


class Bench:
    """A batch system that answers, and a directory for runs that its hosts see."""

    def __init__(self, backend: type[Backend], runs: Path, *, nodes: int = 2, shortest: float = 60.0) -> None:
        """``shortest``: the shortest time limit of a job, in seconds."""
        self.backend = backend
        self.runs = runs
        self.nodes = nodes
        self.shortest = shortest

    @property
    def scheduler(self) -> BatchScheduler:
        """As a new process of hidl has it."""
        return BatchScheduler(self.backend())

    def submitted(self, program: str, *, directives: Sequence[str] = (), **asked: Any) -> Run:
        """A run whose job does ``program``, submitted."""
        name = f"run-{time.time_ns()}"
        common = {"job_name": "hidl-test", "nodes": self.nodes, "ranks_per_node": 1, "time_limit": 600.0}
        allocation = Allocation(**(common | asked))
        policies = Policies.model_validate({"directives": list(directives)})
        run = Run(self.runs / name)
        run.directory.mkdir(parents=True)
        variable = self.scheduler.directory_variable
        run.script.write_text(
            SCRIPT.format(
                header="\n".join(self.scheduler.header(allocation, policies)),
                directory=f"${variable}" if variable else "$PWD",
                functions=self.scheduler.functions,
                program=program,
            )
        )
        run.script.chmod(0o755)
        self.scheduler.submit(run)
        return run

    def polled(self, run: Run, wanted: Callable[[Status], bool] = lambda status: status.state.is_final) -> Status:
        """Poll until the status pleases, and return it."""
        return polled(self.scheduler, run, wanted, within=self.shortest + 60)


def polled(scheduler: Scheduler, run: Run, wanted: Callable[[Status], bool], *, within: float) -> Status:
    """Poll until the status pleases, and return it."""
    statuses: list[Status] = []

    def pleases() -> bool:
        statuses[:] = scheduler.poll([run])
        return wanted(statuses[0])

    until(pleases, within=within, otherwise=lambda: f"still {statuses[0]}")
    return statuses[0]


class BatchSystemTests:
    """What holds on every batch system. A subclass has a fixture ``bench``, and ``hold``, which keeps a job waiting."""

    hold: str

    def test_a_run_completes_and_names_its_hosts(self, bench: Bench) -> None:
        run = bench.submitted("echo done")
        assert bench.polled(run).state is State.COMPLETED
        assert run.directory.joinpath("stdout.log").read_text() == "done\n"
        assert len(run.directory.joinpath("hosts").read_text().split()) >= 1

    def test_a_run_that_fails_has_its_exit_status(self, bench: Bench) -> None:
        status = bench.polled(bench.submitted("echo why >&2; exit 3"))
        assert (status.state, status.exit_status) == (State.FAILED, 3)

    def test_a_running_job_is_cancelled(self, bench: Bench) -> None:
        run = bench.submitted("sleep 300")
        bench.polled(run, lambda status: status.state is State.RUNNING)
        bench.scheduler.cancel(run, state=State.CANCELLED)
        assert bench.polled(run).state is State.CANCELLED

    def test_a_waiting_job_is_cancelled(self, bench: Bench) -> None:
        run = bench.submitted("true", directives=[self.hold])
        assert bench.polled(run, lambda status: status.state is State.PENDING).state is State.PENDING
        bench.scheduler.cancel(run, state=State.CANCELLED)
        assert bench.polled(run).state is State.CANCELLED

    def test_exported_variables_reach_the_job(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OWN_VARIABLE", "a b;c")
        run = bench.submitted('echo "${OWN_VARIABLE-}"')
        assert bench.polled(run).state is State.COMPLETED
        assert run.directory.joinpath("stdout.log").read_text() == "a b;c\n"

    def test_a_held_job_waits(self, bench: Bench) -> None:
        run = bench.submitted("true", settings=JobSettings(hold=True))
        bench.polled(run, lambda status: status.state is State.PENDING)
        bench.scheduler.cancel(run, state=State.CANCELLED)
        assert bench.polled(run).state is State.CANCELLED

    def test_a_job_starts_after_the_one_that_it_depends_on(self, bench: Bench) -> None:
        first = bench.submitted("sleep 5; date +%s%N > end")
        job = read_reference(first).id
        assert job is not None
        second = bench.submitted("date +%s%N > begin", settings=JobSettings(after=(job,)))
        assert bench.polled(second).state is State.COMPLETED
        end, begin = (first.directory / "end").read_text(), (second.directory / "begin").read_text()
        assert int(begin) > int(end)

    def test_a_job_over_its_time_limit_is_ended(self, bench: Bench) -> None:
        run = bench.submitted("sleep 300", time_limit=bench.shortest)
        status = bench.polled(run)
        assert status.state is State.TIMEOUT, status

    def test_a_job_that_hidl_did_not_end_says_why(self, bench: Bench) -> None:
        run = bench.submitted("sleep 300")
        bench.polled(run, lambda status: status.state is State.RUNNING)
        id = read_reference(run).id
        assert id is not None
        bench.backend().kill(id, None)
        assert bench.polled(run).state is State.CANCELLED

    def test_an_unknown_queue_is_refused(self, bench: Bench) -> None:
        with pytest.raises(SubmitRefused, match=r"(?i)queue"):
            bench.submitted("true", queue="no-such-queue")

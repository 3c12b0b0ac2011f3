"""Run jobs on hosts without a scheduler. A supervisor runs the job script here, and ranks are started through ssh."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from hidl_cli import process
from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import InvalidInput
from hidl_cli.launch.placement import Allocation
from hidl_cli.record import Run
from hidl_cli.schedulers.backend import Backend, NotSubmitted, Programs, Receipt, Refused
from hidl_cli.schedulers.decision import Job
from hidl_cli.schedulers.local import kill_run, send
from hidl_cli.schedulers.ssh import jobs
from hidl_cli.schedulers.ssh.guards import check_hosts
from hidl_cli.site.schema import Policies

#: File for output from the supervisor and its connections.
OUTPUT = "ssh.log"
_START_SECONDS = 30.0
_SUPERVISOR = "hidl_cli.schedulers.ssh.supervise"
#: Supervisor option that runs the script in the supervisor's terminal.
ATTENDED = "--attended"
PROGRAMS = Programs(
    # A launcher that finds another scheduler's variables would get its hosts from that scheduler.
    dropped=("SLURM_", "LSB_", "PBS_", "FLUX_", "PMI_", "PMIX_", "HYDRA_", "HIDL_SSH_JOB"),
    kept=frozenset({"SLURM_CONF", "HYDRA_IFACE", "HYDRA_LAUNCHER_EXEC"}),
    unreachable=re.compile(r"(?!)"),
)


class SshBackend(Backend):
    """Hosts that are reached through ssh. A job's id is the pid of its supervisor on this machine."""

    traits = SYSTEMS["ssh"]
    programs = PROGRAMS
    grace_seconds = 3.0
    first_interval = 0.2

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        return jobs.request_lines(allocation, policies)

    def this_cluster(self) -> str | None:
        return jobs.here()

    def ping(self) -> None:
        """Do nothing: jobs are managed on this machine, and ``submit`` checks the hosts."""

    def submit(self, run: Run) -> Receipt | None:
        """Start the supervisor. Raises ``MissingPrecondition`` listing all hosts that cannot be used."""
        self.check(run)
        log = run.directory / OUTPUT
        child = process.start_detached(
            [sys.executable, "-m", _SUPERVISOR, run.script],
            cwd=run.directory,
            env=PROGRAMS.environment(),
            stdout=log,
            stderr=log,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not any(record.id == str(child.pid) for record in jobs.records()):
            if child.poll() is not None or time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    child.kill()
                raise NotSubmitted(f"the job's supervisor did not start; see {log}")
            time.sleep(0.02)
        return Receipt(str(child.pid))

    def check(self, run: Run) -> None:
        """Check the hosts. Raises ``MissingPrecondition`` listing all hosts that cannot be used."""
        try:
            request = jobs.read_request(run.script.read_text(encoding="utf-8"))
        except InvalidInput as invalid:
            raise Refused(invalid.message, hint=invalid.hint or "") from invalid
        check_hosts(request.hosts, run, shared=request.shared)

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        return (sys.executable, "-m", _SUPERVISOR, ATTENDED, "./job.sh")

    def query(self, cluster: str | None) -> Sequence[str]:
        return jobs.format_lines(jobs.records())

    def parse(self, lines: Iterable[str]) -> list[Job]:
        return jobs.parse(lines)

    def kill(self, id: str, cluster: str | None) -> None:
        for record in jobs.records():
            if record.id == id and record.is_alive:
                send(int(id), signal.SIGTERM, lambda record=record: record.is_alive)  # type: ignore[misc]
            elif record.id == id and record.ended is None:
                kill_run(record.run)


BACKEND = SshBackend

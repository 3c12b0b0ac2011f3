"""Hosts without a queue: the job script runs here, under a supervisor, and its launcher starts ranks through ssh."""

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
from hidl_cli.record.run import Run
from hidl_cli.schedulers.backend import Backend, NotTaken, Programs, Receipt, Refused
from hidl_cli.schedulers.decision import Job
from hidl_cli.schedulers.local import kill_run, send
from hidl_cli.schedulers.ssh import header, jobs
from hidl_cli.schedulers.ssh.needs import look_at_hosts
from hidl_cli.site.schema import Policies

#: What the supervisor and the connections print.
OUTPUT = "ssh.log"
_START_SECONDS = 30.0
_SUPERVISOR = "hidl_cli.schedulers.ssh.supervise"
#: Before the script's name: it runs at the supervisor's own terminal.
ATTENDED = "--attended"
PROGRAMS = Programs(
    # A launcher that finds another scheduler's variables would ask that one for its hosts.
    dropped=("SLURM_", "LSB_", "PBS_", "FLUX_", "PMI_", "PMIX_", "HYDRA_", "HIDL_SSH_JOB"),
    kept=frozenset({"SLURM_CONF", "HYDRA_IFACE", "HYDRA_LAUNCHER_EXEC"}),
    unreachable=re.compile(r"(?!)"),
)


class Ssh(Backend):
    """A job is the process that supervises it, on this machine."""

    traits = SYSTEMS["ssh"]
    programs = PROGRAMS
    grace_seconds = 3.0
    first_interval = 0.2

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Backend``."""
        return header.header(allocation, policies)

    def this_cluster(self) -> str | None:
        """Return this machine's name."""
        return jobs.here()

    def ping(self) -> None:
        """Return: this machine is here. Whether the hosts are is looked at by ``submit``."""

    def submit(self, run: Run) -> Receipt | None:
        """See ``Backend``; raises ``MissingPrecondition`` with every host that cannot be used."""
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
                raise NotTaken(f"the job's supervisor did not start; see {log}")
            time.sleep(0.02)
        return Receipt(str(child.pid))

    def check(self, run: Run) -> None:
        """See ``Backend``; raises ``MissingPrecondition`` with every host that cannot be used."""
        request = _request_of(run)
        look_at_hosts(request.hosts, run, shared=request.shared)

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        """See ``Backend``: the supervisor at the terminal, and the script in its foreground."""
        return (sys.executable, "-m", _SUPERVISOR, ATTENDED, "./job.sh")

    def query(self, cluster: str | None) -> Sequence[str]:
        """See ``Backend``."""
        return jobs.format_lines(jobs.records())

    def parse(self, lines: Iterable[str]) -> list[Job]:
        """See ``Backend``."""
        return jobs.parse(lines)

    def kill(self, id: str, cluster: str | None) -> None:
        """See ``Backend``."""
        for record in jobs.records():
            if record.id == id and record.is_alive:
                send(int(id), signal.SIGTERM, lambda record=record: record.is_alive)  # type: ignore[misc]
            elif record.id == id and record.ended is None:
                kill_run(record.run)


def _request_of(run: Run) -> header.HostsRequest:
    """Return what the run's script requests; raises ``Refused``."""
    try:
        return header.read_request(run.script.read_text(encoding="utf-8"))
    except InvalidInput as invalid:
        raise Refused(invalid.message, hint=invalid.hint or "") from invalid


BACKEND = Ssh

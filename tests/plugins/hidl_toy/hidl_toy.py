"""A launcher, a parser and a scheduler for hidl: what docs/how-to/write-a-plug-in.md shows."""

import re
from collections.abc import Iterable

from hidl_cli.batch_systems import BatchSystem
from hidl_cli.errors import MetricMissing
from hidl_cli.launch.launchers.contract import Launch, Launcher, Request
from hidl_cli.launch.placement import Allocation
from hidl_cli.launchers import require_fit
from hidl_cli.record import Run, State
from hidl_cli.schedulers.backend import Backend, Programs, Receipt
from hidl_cli.schedulers.decision import Job
from hidl_cli.site.schema import Policies


class Toy(Launcher):
    """Hydra's mpiexec on this machine alone; each rank finds ``TOY_LAUNCHER`` in its environment."""

    name = "toy"
    starts = ("mpich",)

    def launch(self, request: Request) -> Launch:
        require_fit(self, request.mpi)
        argv = [request.mpi.program("mpiexec"), "-launcher", "fork", "-n", str(request.placement.ranks)]
        argv += request.arguments_for(self.name)
        return Launch((*argv, *request.program), environment={"TOY_LAUNCHER": "1"})


def parse(text: str) -> dict[str, dict[str, object]]:
    """Read lines of the form ``name = 1.5 unit``."""
    found = re.findall(r"^(\w+) = ([\d.]+) (\S+)$", text, re.MULTILINE)
    if not found:
        raise MetricMissing("no line of the form `name = 1.5 unit`")
    return {name: {"value": float(value), "unit": unit, "samples": [float(value)]} for name, value, unit in found}


class Queue(Backend):
    """Jobs are processes of this machine, started at once; ``ps`` shows them. A job's own record says how it ended."""

    traits = BatchSystem(
        name="toy-queue",
        title="Toy",
        submit="sh",
        shows="toy-queue",
        job_id="TOY_JOB",
        submit_directory="PWD",
        variables=("TOY_",),
        configuration=(),
        cluster_command=("uname", "-n"),
        cluster_name=r"^(\S+)$",
        access=r"# toy: queue=",
        reframe=None,
    )
    programs = Programs(dropped=("TOY_",), unreachable=re.compile("not answering"))
    functions = "list_hosts() {\n    hostname\n}\n"
    grace_seconds = 3.0

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        return (f"# toy: nodes={allocation.nodes}",)

    def submit(self, run: Run) -> Receipt:
        start = 'TOY_JOB=1 setsid bash "$0" > stdout.log 2> stderr.log < /dev/null & echo $!'
        return Receipt(self.programs.call("sh", "-c", start, run.script.name, cwd=run.directory).stdout.strip())

    def query(self, cluster: str | None) -> list[str]:
        return self.programs.call("ps", "-e", "-o", "pid=").stdout.split()

    def parse(self, lines: Iterable[str]) -> list[Job]:
        return [Job(line, State.RUNNING, "R") for line in lines]

    def kill(self, id: str, cluster: str | None) -> None:
        self.programs.call("kill", "-TERM", id)

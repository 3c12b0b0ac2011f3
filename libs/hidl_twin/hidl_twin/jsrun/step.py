"""``jsrun``: a step of a job, from its options to its status."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hidl_twin.batch import ranks
from hidl_twin.batch.ranks import Task
from hidl_twin.batch.store import Job, Store
from hidl_twin.jsrun.claims import claim
from hidl_twin.jsrun.options import Options, fail, parse
from hidl_twin.jsrun.placement import DoesNotFit, Host, place

_PRELOAD = "OMPI_LD_PRELOAD_PREPEND"


def jsrun(store: Store, arguments: Sequence[str]) -> None:
    """Start the ranks, wait, and exit with the status of the first that failed."""
    print("jsrun: hidl's stand-in for IBM's Job Step Manager.", file=sys.stderr)
    options = parse(arguments)
    job = store.job(os.environ.get("LSB_JOBID", ""))
    if job is None:
        fail("jsrun: not in an LSF job: no host allocated")
    threads = _threads(store, job)
    hosts = _hosts(store, job)
    environment = _environment(options)
    try:
        sets, directory = claim(options, hosts, store.job_directory(job.id))
    except DoesNotFit as error:
        fail(f"jsrun: {error}")
    tasks = place(options, sets)
    if options.print_placement:
        for task in tasks:
            print(f"task {task.rank} host {task.host} cores {_listed(task.cores)} gpus {_listed(task.gpus)}")
    step = {
        "launcher": "jsrun",
        "program": list(options.program),
        "cwd": str(Path(options.chdir or Path.cwd())),
        "environment": environment,
        "evaluated": options.evaluated,
        "threads": threads,
        "individual": options.stdio_mode == "individual" and bool(options.stdout or options.stderr),
        "stdout": options.stdout,
        "stderr": options.stderr,
    }
    launcher = _hydra(environment) or ranks.find(
        "mpirun", "ompi_info", first=None, path=f"{environment.get('PATH', '')}:{store.settings.mpi or ''}/bin"
    )
    if launcher is None:
        fail("jsrun: Open MPI not found: it plays Spectrum MPI here, from the twin or PATH")
    sys.stdout.flush()
    _streams(options)
    child = ranks.run(store["lsf.py"], directory, [_with_variables(task, len(tasks)) for task in tasks], step, launcher)
    if not options.immediate:
        sys.exit(ranks.status(directory, ranks.wait(child)))


def _with_variables(task: Task, size: int) -> Task:
    numbers = {"RANK": task.rank, "SIZE": size, "LOCAL_RANK": task.local_rank, "LOCAL_SIZE": task.local_size}
    found = {
        f"{prefix}_{name}": str(number)
        for name, number in numbers.items()
        for prefix in ("JSM_NAMESPACE", "OMPI_COMM_WORLD")
    }
    own = {"OMPI_COMM_WORLD_NODE_RANK": str(task.local_rank), "PMIX_RANK": str(task.rank)}
    return replace(task, variables=found | own)


def _hosts(store: Store, job: Job) -> list[Host]:
    """Compute hosts in the job's host file, without the launch host."""
    settings = store.settings
    slots: dict[str, int] = {}
    try:
        lines = Path(os.environ["LSB_DJOB_HOSTFILE"]).read_text(encoding="utf-8").split()
    except (KeyError, OSError):
        fail("jsrun: invalid LSB_DJOB_HOSTFILE: expected the job's hosts")
    for name in lines:
        slots[name] = slots.get(name, 0) + 1
    names = [name for name in slots if name != job.launch_host]
    gpus = {name: settings.hosts[name].gpus if name in settings.hosts else 0 for name in names}
    return [Host(name, tuple(range(slots[name])), tuple(range(gpus[name]))) for name in names]


def _threads(store: Store, job: Job) -> int:
    """Hardware threads per core that the job uses: -alloc_flags smt1, smt2, smt4; else all."""
    hosts = [host for name, host in store.settings.hosts.items() if name in job.hosts]
    most = min((host.threads_per_core for host in hosts), default=1)
    flags = job.options.get("-alloc_flags", "").split()
    return next((int(flag[3:]) for flag in flags if flag in ("smt1", "smt2", "smt4")), most)


def _environment(options: Options) -> dict[str, str]:
    """Environment of the ranks: the whole one, without -D, with -E, and jsrun's preload."""
    environment = dict(os.environ)
    for name in options.kept_back:
        environment.pop(name, None)
    for assignment in options.set:
        name, given, value = assignment.partition("=")
        if given:
            environment[name] = value
    if environment.get(_PRELOAD) and options.smpiargs not in ("none", "off"):
        environment["LD_PRELOAD"] = " ".join(
            part for part in (environment[_PRELOAD], environment.get("LD_PRELOAD")) if part
        )
    return environment


def _hydra(environment: Mapping[str, str]) -> Path | None:
    """The mpiexec of the MPICH or MVAPICH2 whose libmpi.so is to be preloaded; None where none is."""
    for part in environment.get(_PRELOAD, "").replace(":", " ").split():
        for library in (Path(part), Path(part).resolve()):
            for name in ("mpiexec.hydra", "mpiexec"):
                program = library.parent.parent / "bin" / name
                if (
                    library.name.startswith("libmpi.so")
                    and (program.parent / "hydra_pmi_proxy").exists()
                    and program.exists()
                ):
                    return program
    return None


def _streams(options: Options) -> None:
    """-o, -k, -t: of all ranks together; a rank has files of its own with -e individual. -i prints nothing else."""
    nowhere = os.devnull if options.immediate else None
    wanted = [(0, options.stdin or nowhere, os.O_RDONLY)]
    if options.stdio_mode == "collected":
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        wanted += [(1, options.stdout or nowhere, flags), (2, options.stderr or options.stdout or nowhere, flags)]
    for stream, name, flags in wanted:
        if name:
            os.dup2(os.open(name, flags, 0o644), stream)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers) or "-"

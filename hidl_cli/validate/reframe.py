"""ReFrame itself: how it is started, and what it lists and reports."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import batch_systems, paths, process
from hidl_cli.batch_systems import SSH
from hidl_cli.documents import read_json
from hidl_cli.errors import HidlError, InvalidInput, MissingPrecondition, UsageError
from hidl_cli.launch.hosts import parse_hosts
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Gpus, Request
from hidl_cli.launch.library import library_for
from hidl_cli.launch.placement import Placement, Topology
from hidl_cli.launchers import LAUNCHERS, starts
from hidl_cli.mpi import Library
from hidl_cli.quoting import sh, sh_line
from hidl_cli.record.run import Run, State
from hidl_cli.schedulers import scheduler_for, slurm
from hidl_cli.schedulers.backend import Backend, NoAnswer, Refused
from hidl_cli.site import hidl_cluster
from hidl_cli.site.schema import NodeType, Site

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site


_LARGEST = 4096
FULL = "full"
#: Every name, the smallest first.
NAMES = ("1-rank", "1-node", *(f"{2**power}-nodes" for power in range(1, _LARGEST.bit_length())), FULL)
#: What a nightly can afford, and what is for maintenance days.
SMALL = NAMES[:4]
LARGE = NAMES[4:]


@dataclass(frozen=True)
class Scale:
    """``nodes`` nodes with ``ranks_per_node`` ranks on each; ``fullest``: as many as fill a node.

    ``least``: the fewest nodes that the partition allows, from which studies start. ``overhead``: ranks of each launch
    that do no work of their own, such as Dask's scheduler and client.
    """

    name: str
    nodes: int
    ranks_per_node: int
    fullest: int
    least: int = 1
    overhead: int = 0

    @property
    def study(self) -> str | None:
        """The sizes of a scaling study up to here, as ``hidl run --scale`` takes them; None: there is none."""
        if self.nodes > 1:
            return f"nodes={self.least},{self.nodes}" if self.nodes > self.least else None
        one = 1 + self.overhead
        return f"ranks={one},{self.ranks_per_node}" if self.ranks_per_node > one else None

    def with_overhead(self, ranks: int) -> Scale:
        """The same for a workload of which so many ranks of each launch do no work of their own.

        They come on top where a node would not hold two that do, so that a study finds something to compare.
        """
        if not ranks:
            return self

        def grown(each: int) -> int:
            return each if each > ranks + 1 else each + ranks

        return replace(self, ranks_per_node=grown(self.ranks_per_node), fullest=grown(self.fullest), overhead=ranks)


def offered(site: Site, partition: str | None = None) -> dict[str, Scale]:
    """The scales that a partition (None: the default one) allows, by name, the smallest first."""
    found, node = site.partition(partition), site.node_type(partition)
    most = (found.max_nodes if found else None) or _count(site, node)
    least = found.min_nodes if found else 1
    per_node = _ranks_per_node(node)
    scales = []
    if least == 1:
        scales.append(Scale("1-rank", 1, 1, per_node))
        scales += [Scale("1-node", 1, per_node, per_node)] if per_node > 1 else []
    sizes = [2**power for power in range(1, _LARGEST.bit_length()) if least <= 2**power <= most]
    scales += [Scale(f"{nodes}-nodes", nodes, _of_each_node(node), per_node, least) for nodes in sizes]
    if most > 1:
        scales.append(Scale(FULL, most, _of_each_node(node), per_node, least))
    return {scale.name: scale for scale in scales}


def scale(site: Site, partition: str | None, name: str) -> Scale:
    """The scale of that name; ``UsageError`` if the partition does not allow it."""
    scales = offered(site, partition)
    if name not in scales:
        raise UsageError(
            f"partition {partition or site.default_partition} of site {site.name} has no scale {name!r}",
            hint=f"it has: {', '.join(scales) or 'none'}",
        )
    return scales[name]


def _count(site: Site, node: NodeType) -> int:
    """The number of nodes; 1 if unknown."""
    hosts = parse_hosts(node.hosts).names if site.scheduler == SSH and node.hosts else ()
    return node.count or len(hosts) or 1


def _of_each_node(node: NodeType) -> int:
    """A rank for each GPU, as ``hidl run`` has it."""
    return node.gpus or 1


def _ranks_per_node(node: NodeType) -> int:
    """Ranks on one full node: one for each GPU, else for each socket; two where it has neither of them twice."""
    if (node.gpus or 0) > 1:
        return int(node.gpus or 0)
    if (node.sockets or 0) > 1:
        return int(node.sockets or 0)
    return 1 if node.cores == 1 else 2


# Our launchers as ReFrame's: those that it lacks, for whatever check names no run of hidl.


#: Before their names in ReFrame, which refuses a second launcher of the same name (4.10 has an ``ibrun``).
_OURS_PREFIX = "hidl-"
_HOSTS = "hidl-hosts"
#: What stands for the program, which ReFrame puts after the command by itself.
_PROGRAM = "hidl-program"
#: What the ranks of a check get, as far as it is set in its job.
_FORWARDED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")


def ours(site: Site) -> list[str]:
    """The site's launchers that ReFrame starts by hidl's own command.

    ReFrame has srun, mpirun and mpiexec itself; its ``ibrun`` takes all of the job's slots, whatever the check's
    placement.
    """
    return [name for name in site.launchers if not LAUNCHERS.get(name).in_reframe]


def name_in_reframe(launcher: str) -> str:
    """Return the name under which ReFrame knows the launcher."""
    return launcher if LAUNCHERS.get(launcher).in_reframe else f"{_OURS_PREFIX}{launcher}"


def register_launchers(site: Site) -> None:
    """Register the launchers that are ``ours`` with ReFrame; again: nothing happens."""
    from reframe.core.backends import register_launcher
    from reframe.core.launchers import JobLauncher

    for name in ours(site):
        _register(name, site, register_launcher, JobLauncher)


def _register(name: str, site: Site, register_launcher: Any, base: Any) -> None:
    from reframe.core.exceptions import ConfigError

    class Ours(base):  # type: ignore[misc]
        def command(self, job: Any) -> list[str]:
            return [launcher_command(site, name, job.num_tasks, job.num_tasks_per_node, job.num_cpus_per_task)]

    try:
        register_launcher(name_in_reframe(name))(Ours)
    except ConfigError:  # by an earlier call: nobody else has a name with this prefix
        return


def launcher_command(site: Site, name: str, ranks: int | None, ranks_per_node: int | None, threads: int | None) -> str:
    """The line, without the program, that starts so many ranks with launcher ``name``, as shell text."""
    ranks = ranks or 1
    per_node = min(ranks, ranks_per_node or 1)
    placement = Placement(
        -(-ranks // per_node), per_node, ranks, threads or 1, bind=True, node=Topology.of(site.node_type())
    )
    request = Request(
        placement,
        program=(_PROGRAM,),
        mpi=_library(site, name),
        forward=_FORWARDED,
        hostfile=_HOSTS,
        gpus=Gpus.of(site.node_type().gpus, per_node),
    )
    launch = launcher(name).launch(request)
    variables = [f"{key}={value}" for key, value in launch.environment.items()]
    argv = [word for word in launch.argv if word != _PROGRAM]
    start = sh_line([*(["env", *variables] if variables else []), *argv])
    if launch.forwarded:  # each of these names that is set, as NAME='value'
        start += "".join(f' ${{{variable}+"{variable}=${variable}"}}' for variable in launch.forwarded)
    if _HOSTS not in launch.argv:
        return start
    # The hosts come from the allocation, when the job runs.
    hosts = scheduler_for(site).functions.strip()
    form = launch.host_line.replace("{host}", "&")
    return f"{hosts}\nlist_hosts | head -n {placement.nodes} | sed 's/.*/{form}/' > {_HOSTS}\n{start}"


def _library(site: Site, name: str) -> Library:
    """The site's MPI library that this launcher starts: the default one where it does."""
    own = Library("stack", "mpich")
    for key in dict.fromkeys([site.default_mpi, *site.mpi]):
        if key is None:
            continue
        library = library_for(site, own, key, gpus=bool(site.node_type().gpus))
        named = site.mpi[key].launchers
        if starts(name, library) and (not named or name in named):
            return library
    raise InvalidInput(
        f"site {site.name} has no MPI library that {name} starts", hint="describe it under `mpi` in the site's file"
    )


# hidl's launchers and schedulers as ReFrame's: those that ReFrame lacks, or cannot use from hidl's Python.


#: Seconds between two queries of one job, the last for ever.
_PAUSES = (0.2, 0.5, 1.0, 2.0)
#: Queries in a row without the job after which it has ended.
_MISSING = 3


def scheduler_in_reframe(site: Site, accounting: bool) -> str:
    """Return the name of ReFrame's scheduler for the site; ``accounting``: it answers."""
    system = batch_systems.system(site.scheduler)
    if system is None:
        return str(site.scheduler)
    if system.reframe is None:
        return _name(system)
    return system.reframe if accounting else system.reframe_without_records or system.reframe


def register_backends(site: Site) -> None:
    """Register with ReFrame what the site needs of hidl's own; again: nothing happens."""
    register_launchers(site)
    system = batch_systems.system(site.scheduler)
    if system is not None and system.reframe is None:
        _register_scheduler(_name(system), batch_systems.SCHEDULERS.get(system.name))


def needed(site: Site) -> list[str]:
    """Return the names of what ``register_backends`` registers."""
    system = batch_systems.system(site.scheduler)
    return [*ours(site), *([system.name] if system is not None and system.reframe is None else [])]


def _name(system: batch_systems.BatchSystem) -> str:
    return f"hidl-{system.name}"


@dataclass(frozen=True)
class _Staged(Run):
    """A job script of ReFrame's in its stage directory."""

    name: str

    @property
    def script(self) -> Path:
        """See ``Run``."""
        return self.directory / self.name


def _register_scheduler(name: str, backend: Backend) -> None:
    from reframe.core.backends import register_scheduler
    from reframe.core.exceptions import ConfigError, JobError, JobSchedulerError
    from reframe.core.schedulers import Job, JobScheduler

    class Ours(JobScheduler):  # type: ignore[misc]  # ReFrame is not typed
        """Jobs of one batch system, through hidl's backend."""

        def make_job(self, *arguments: Any, **options: Any) -> Any:
            return Job(*arguments, **options)

        def emit_preamble(self, job: Any) -> list[str]:
            """The header, and where output goes. The check's options come before ``access``: hidl reads the first."""
            lines = dict.fromkeys([*job.options, *job.cli_options, *job.sched_access])
            redirection = f"exec > {sh(job.stdout)} 2> {sh(job.stderr)}"
            return [*lines, f"cd {sh(str(Path(job.workdir).resolve()))}", redirection]

        def submit(self, job: Any) -> None:
            directory = Path(job.workdir).resolve()
            try:
                receipt = backend.submit(_Staged(directory, job.script_filename))
            except Refused as refused:
                raise JobSchedulerError(f"{backend.traits.title} refused the job: {refused.words}") from refused
            except NoAnswer as silence:
                raise JobSchedulerError(f"{backend.traits.title} does not answer: {silence}") from silence
            if receipt is None:
                raise JobSchedulerError(f"{backend.traits.submit} printed no job id")
            job._jobid, job._submit_time, job._state, job._missing = receipt.id, time.time(), "PENDING", 0

        def poll(self, *jobs: Any) -> None:
            open_jobs = [job for job in jobs if job is not None and not self.finished(job)]
            if not open_jobs:
                return
            try:
                known = {job.id: job for job in backend.parse(backend.query(None))}
            except NoAnswer as silence:
                self.log(f"{backend.traits.title} does not answer: {silence}")
                return
            for job in open_jobs:
                found = known.get(job.jobid)
                job._missing = 0 if found else job._missing + 1
                if found is not None:
                    job._state = found.state.value
                elif job._missing >= _MISSING:  # forgotten: the job's own record tells how it ended
                    job._state = State.COMPLETED.value
                self._end_what_waits_too_long(job)

        def _end_what_waits_too_long(self, job: Any) -> None:
            waits = job.state == State.PENDING.value and job.max_pending_time
            if waits and time.time() - job.submit_time >= job.max_pending_time:
                self.cancel(job)
                job._exception = JobError("maximum pending time exceeded", job.jobid)

        def finished(self, job: Any) -> bool:
            return State(job.state).is_final

        def wait(self, job: Any) -> None:
            for seconds in chain(_PAUSES, repeat(_PAUSES[-1])):
                self.poll(job)
                if self.finished(job):
                    return
                time.sleep(seconds)

        def cancel(self, job: Any) -> None:
            backend.kill(job.jobid, None)

        def allnodes(self) -> Any:
            raise NotImplementedError(f"{name} lists no nodes")

        def filternodes(self, job: Any, nodes: Any) -> Any:
            raise NotImplementedError(f"{name} filters no nodes")

    try:
        register_scheduler(name)(Ours)
    except ConfigError:  # by an earlier call
        return


_LIST_SECONDS = 300.0
_PREFIX = re.compile(r"^(?P<indent> *)[-^] (?P<name>.+?) /(?P<hash>[0-9a-f]{6,})(?: @(?P<place>\S+))?\s*$")


@dataclass(frozen=True)
class Selection:
    """Which checks are run: by tags, all of which must fit, by names, any of which, and on which system."""

    settings: Path
    system: str
    tags: Sequence[str] = ()
    checks: Sequence[str] = ()

    def words(self) -> list[str]:
        """The options of ReFrame that say so."""
        found = [f"--config-file={self.settings}", f"--system={self.system}", "--nocolor"]
        found += [f"--checkpath={directory}" for directory in directories()]
        found += [f"--tag=^{re.escape(tag)}$" for tag in self.tags]
        if self.checks:
            found.append(f"--name={pattern(*self.checks)}")
        return found


def pattern(*checks: str) -> str:
    """The regular expression by which checks are known: a whole name, with parameters (``name%scale=1-node``) or not.

    ReFrame holds it against the name without its blanks. ``UsageError`` where it is none.
    """
    found = f"^(?:{'|'.join(checks)})(?:%|$)"
    try:
        re.compile(found)
    except re.error as error:
        raise UsageError(f"--check {' '.join(checks)} is not a valid regular expression: {error}") from error
    return found


@dataclass(frozen=True)
class Listed:
    """A case as ReFrame lists it: the check's name with its parameters, its hash, and ``system:partition+environ``."""

    name: str
    hash: str
    place: str | None

    @property
    def check(self) -> str:
        """The check's name alone."""
        return self.name.split()[0]

    @property
    def scale(self) -> str | None:
        """The name of its scale; None for a check without one."""
        found = re.search(r"%scale=(\S+)", self.name)
        return found[1] if found and found[1] in NAMES else None

    def fits(self, check: str) -> bool:
        """Whether ``--check`` means it."""
        return re.search(pattern(check), self.name.replace(" ", "")) is not None


def directories() -> list[Path]:
    """Where checks are looked for: those that ship with hidl, and the site's and the user's own."""
    own = [place / "reframe_checks" for place in (paths.system_config(), paths.user_config())]
    return [shipped_checks(), *(place for place in own if place.is_dir())]


def shipped_checks() -> Path:
    """The checks that ship with hidl."""
    return paths.shipped() / "reframe_checks"


def reframe_command(*arguments: str) -> list[str]:
    """ReFrame of this very Python, so that its checks find hidl; ``MissingPrecondition`` where it is not there."""
    if importlib.util.find_spec("reframe") is None:
        raise MissingPrecondition(
            f"ReFrame is not installed for {sys.executable}",
            hint=f"{sys.executable} -m pip install 'hidl[validate]', or: {sys.executable} -m pip install reframe-hpc",
        )
    beside = Path(sys.executable).with_name("reframe")
    start = [sys.executable, str(beside)] if beside.is_file() else [sys.executable, "-c", _MAIN]
    return [*start, *arguments]


_MAIN = "import sys; del sys.path[0]; from reframe.frontend.cli import main; sys.exit(main())"


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment as it is, without what would change ReFrame's answers; the library of checks can be imported."""
    kept = {name: value for name, value in hidl_cluster.environment().items() if not name.startswith("RFM_")}
    path = [str(Path(__file__).parents[2]), str(shipped_checks()), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONDONTWRITEBYTECODE": "1",
        **(more or {}),
    }


def cases(selection: Selection, directory: Path) -> list[Listed]:
    """The cases that would be run, fixtures and all; ``HidlError`` where ReFrame cannot list them."""
    return _list(selection, "--list=C", directory)


def everything(selection: Selection, directory: Path) -> list[Listed]:
    """The tests that fit by name and tag, whether this site has what they want or not."""
    return _list(selection, "--list=T", directory, "--skip-system-check", "--skip-prgenv-check")


def _list(selection: Selection, how: str, directory: Path, *more: str) -> list[Listed]:
    words = reframe_command(*selection.words(), f"--prefix={directory}", *more, how)
    completed = process.run(words, cwd=directory, env=environment(), timeout=_LIST_SECONDS, check=False)
    if completed.status != 0:
        raise HidlError(
            f"ReFrame cannot list its checks: {(completed.stdout + completed.stderr).strip()[-1500:]}",
            hint="hidl validate --dry-run prints the configuration and the command",
        )
    skipped = [line for line in completed.stdout.splitlines() if "skipping test" in line]
    if skipped:
        raise HidlError(
            "ReFrame cannot read all checks:\n" + "\n".join(skipped), hint="correct the check, or remove its file"
        )
    matches = [_PREFIX.match(line) for line in completed.stdout.splitlines()]
    return [Listed(m["name"], m["hash"], m["place"]) for m in matches if m]


def run(
    selection: Selection, directory: Path, *, log: Path, report: Path, more: Mapping[str, str] | None = None
) -> int:
    """Run the checks, with ``more`` variables set; ReFrame's exit status, which says no more than that some failed."""
    words = run_command(selection, directory, report)
    return process.run(words, cwd=directory, env=environment(more), log=log, check=False).status


def run_command(selection: Selection, directory: Path, report: Path) -> list[str]:
    """The command of ``run``."""
    return reframe_command(
        *selection.words(),
        f"--prefix={directory}",
        f"--perflogdir={directory / 'perflogs'}",
        f"--report-file={report}",
        "--keep-stage-files",
        "--run",
    )


def read_report(report: Path) -> list[Mapping[str, Any]]:
    """The cases in ReFrame's JSON report; ``HidlError`` where there is none."""
    try:
        document = read_json(report)
        return list(document["runs"][-1]["testcases"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise HidlError(
            f"ReFrame left no report that can be read: {error}", hint=f"its output is in {report.parent}"
        ) from error


def accounting_answers(site: Site) -> bool:
    """Whether sacct answers here, now; without it ReFrame's scheduler `slurm` fails after three tries."""
    if site.scheduler != "slurm":
        return False
    return slurm.accounting_answers()

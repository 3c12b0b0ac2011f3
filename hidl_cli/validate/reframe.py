"""The interface to ReFrame: scales, launchers, schedulers, and ReFrame's command line and reports."""

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
from typing import Any

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
from hidl_cli.record import Run, State
from hidl_cli.redaction import shown_end
from hidl_cli.schedulers import scheduler_for, slurm
from hidl_cli.schedulers.backend import Backend, NoAnswer, Refused
from hidl_cli.site import hidl_cluster
from hidl_cli.site.schema import NodeType, Site

_LARGEST = 4096
FULL = "full"
#: Names of all scales in ascending order.
NAMES = ("1-rank", "1-node", *(f"{2**power}-nodes" for power in range(1, _LARGEST.bit_length())), FULL)
#: Scales for nightly validations and for maintenance days.
SMALL = NAMES[:4]
LARGE = NAMES[4:]


@dataclass(frozen=True)
class CheckScale:
    """A number of nodes and ranks at which checks run.

    Attributes:
        fullest: Number of ranks that fill a node.
        least: Number of nodes at which studies start: the smallest number that a job in the partition may have.
        overhead: Number of ranks in each launch that do not compute, such as Dask's scheduler and client.
    """

    name: str
    nodes: int
    ranks_per_node: int
    fullest: int
    least: int = 1
    overhead: int = 0

    @property
    def study(self) -> str | None:
        """The ``hidl run --scale`` argument for a study up to this scale, or None if it is the smallest size."""
        if self.nodes > 1:
            return f"nodes={self.least},{self.nodes}" if self.nodes > self.least else None
        one = 1 + self.overhead
        return f"ranks={one},{self.ranks_per_node}" if self.ranks_per_node > one else None

    def with_overhead(self, ranks: int) -> CheckScale:
        """Return the scale for a workload in which ``ranks`` ranks in each launch do not compute.

        These ranks are added to the others if fewer than two computing ranks would remain on a node, since a study
        requires at least two.
        """
        if not ranks:
            return self

        def enlarge(count: int) -> int:
            return count if count > ranks + 1 else count + ranks

        return replace(self, ranks_per_node=enlarge(self.ranks_per_node), fullest=enlarge(self.fullest), overhead=ranks)


def allowed_scales(site: Site, partition: str | None = None) -> dict[str, CheckScale]:
    """Return the scales that a partition (default: the default partition) allows, by name, smallest scale first."""
    found, node = site.partition(partition), site.node_type(partition)
    most = (found.max_nodes if found else None) or _count(site, node)
    least = found.min_nodes if found else 1
    per_node = _ranks_per_node(node)
    scales = []
    if least == 1:
        scales.append(CheckScale("1-rank", 1, 1, per_node))
        scales += [CheckScale("1-node", 1, per_node, per_node)] if per_node > 1 else []
    sizes = [2**power for power in range(1, _LARGEST.bit_length()) if least <= 2**power <= most]
    scales += [CheckScale(f"{nodes}-nodes", nodes, _default_ranks_per_node(node), per_node, least) for nodes in sizes]
    if most > 1:
        scales.append(CheckScale(FULL, most, _default_ranks_per_node(node), per_node, least))
    return {scale.name: scale for scale in scales}


def scale(site: Site, partition: str | None, name: str) -> CheckScale:
    """Return the scale with this name.

    Raises:
        UsageError: If the partition does not allow the scale.
    """
    scales = allowed_scales(site, partition)
    if name not in scales:
        raise UsageError(
            f"partition {partition or site.default_partition} of site {site.name} has no scale {name!r}",
            hint=f"available scales: {', '.join(scales) or 'none'}",
        )
    return scales[name]


def _count(site: Site, node: NodeType) -> int:
    """Return the number of nodes, or 1 if it is unknown."""
    hosts = parse_hosts(node.hosts).names if site.scheduler == SSH and node.hosts else ()
    return node.count or len(hosts) or 1


def _default_ranks_per_node(node: NodeType) -> int:
    """Return the default number of ranks per node, as for ``hidl run``: one per GPU, or one if there are no GPUs."""
    return node.gpus or 1


def _ranks_per_node(node: NodeType) -> int:
    """Return the number of ranks that fill a node: one per GPU, or else one per socket.

    A node with fewer than two GPUs and sockets has two ranks, or one if it has a single core.
    """
    if (node.gpus or 0) > 1:
        return int(node.gpus or 0)
    if (node.sockets or 0) > 1:
        return int(node.sockets or 0)
    return 1 if node.cores == 1 else 2


# hidl launchers that are registered with ReFrame for checks that do not start a hidl run.


#: Prefix of the names of hidl's launchers in ReFrame, which rejects duplicates (ReFrame 4.10 has its own ``ibrun``).
_OURS_PREFIX = "hidl-"
_HOSTS = "hidl-hosts"
#: Placeholder for the program, which ReFrame itself appends to the command.
_PROGRAM = "hidl-program"
#: Variables that are passed to the ranks if the job sets them.
_FORWARDED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")


def missing_launchers(site: Site) -> list[str]:
    """Return a site's launchers that must be registered with ReFrame.

    ReFrame itself supports srun, mpirun and mpiexec. Its ``ibrun`` is not used because it always starts ranks in all
    slots of the job, regardless of the check's placement.
    """
    return [name for name in site.launchers if not LAUNCHERS.get(name).in_reframe]


def name_in_reframe(launcher: str) -> str:
    """Return a launcher's name in ReFrame."""
    return launcher if LAUNCHERS.get(launcher).in_reframe else f"{_OURS_PREFIX}{launcher}"


def register_launchers(site: Site) -> None:
    """Register the launchers that ReFrame lacks. Repeated calls have no effect."""
    from reframe.core.backends import register_launcher
    from reframe.core.launchers import JobLauncher

    for name in missing_launchers(site):
        _register(name, site, register_launcher, JobLauncher)


def _register(name: str, site: Site, register_launcher: Any, base: Any) -> None:
    from reframe.core.exceptions import ConfigError

    class Ours(base):  # type: ignore[misc]
        def command(self, job: Any) -> list[str]:
            return [launcher_command(site, name, job.num_tasks, job.num_tasks_per_node, job.num_cpus_per_task)]

    try:
        register_launcher(name_in_reframe(name))(Ours)
    except ConfigError:  # already registered by an earlier call
        return


def launcher_command(site: Site, name: str, ranks: int | None, ranks_per_node: int | None, threads: int | None) -> str:
    """Return the shell command that starts ranks with a launcher, without the program.

    Args:
        site: The launcher's site.
        name: The launcher's name.
        ranks: Number of ranks (default: 1).
        ranks_per_node: Number of ranks per node (default: 1).
        threads: Number of threads per rank (default: 1).
    """
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
    if launch.forwarded:  # expands to NAME=value for each variable that is set
        start += "".join(f' ${{{variable}+"{variable}=${variable}"}}' for variable in launch.forwarded)
    if _HOSTS not in launch.argv:
        return start
    # The hosts of the allocation are only known when the job runs.
    hosts = scheduler_for(site).functions.strip()
    form = launch.host_line.replace("{host}", "&")
    return f"{hosts}\nlist_hosts | head -n {placement.nodes} | sed 's/.*/{form}/' > {_HOSTS}\n{start}"


def _library(site: Site, name: str) -> Library:
    """Return a site MPI library that the launcher supports, preferably the default one."""
    own = Library("stack", "mpich")
    for key in dict.fromkeys([site.default_mpi, *site.mpi]):
        if key is None:
            continue
        library = library_for(site, own, key, gpus=bool(site.node_type().gpus))
        launchers = site.mpi[key].launchers
        if starts(name, library) and (not launchers or name in launchers):
            return library
    hint = "add the library to `mpi` in the site file"
    raise InvalidInput(f"site {site.name} has no MPI library that supports launcher {name}", hint=hint)


# hidl's schedulers, which are registered with ReFrame if its own are missing or do not work in hidl's Python.


#: Seconds between queries for a job. The last value is repeated.
_PAUSES = (0.2, 0.5, 1.0, 2.0)
#: Number of consecutive queries without a result after which a job is considered ended.
_MISSING = 3


def scheduler_in_reframe(site: Site, accounting: bool) -> str:
    """Return the name of a site's ReFrame scheduler, which depends on whether ``accounting`` is available."""
    system = batch_systems.system(site.scheduler)
    if system is None:
        return str(site.scheduler)
    if system.reframe is None:
        return _name(system)
    return system.reframe if accounting else system.reframe_without_records or system.reframe


def register_backends(site: Site) -> None:
    """Register the launchers and the scheduler that the site requires and ReFrame lacks.

    Repeated calls have no effect.
    """
    register_launchers(site)
    system = batch_systems.system(site.scheduler)
    if system is not None and system.reframe is None:
        _register_scheduler(_name(system), batch_systems.SCHEDULERS.get(system.name))


def registrations(site: Site) -> list[str]:
    """Return the names of the launchers and the scheduler registered by ``register_backends``."""
    system = batch_systems.system(site.scheduler)
    return [*missing_launchers(site), *([system.name] if system is not None and system.reframe is None else [])]


def _name(system: batch_systems.BatchSystem) -> str:
    return f"hidl-{system.name}"


@dataclass(frozen=True)
class _StagedJob(Run):
    """A ReFrame job script in its stage directory."""

    name: str

    @property
    def script(self) -> Path:
        return self.directory / self.name


def _register_scheduler(name: str, backend: Backend) -> None:
    from reframe.core.backends import register_scheduler
    from reframe.core.exceptions import ConfigError, JobError, JobSchedulerError
    from reframe.core.schedulers import Job, JobScheduler

    class Ours(JobScheduler):  # type: ignore[misc]  # ReFrame is not typed
        """A ReFrame scheduler that uses a hidl backend."""

        def make_job(self, *arguments: Any, **options: Any) -> Any:
            return Job(*arguments, **options)

        def emit_preamble(self, job: Any) -> list[str]:
            """Return the header and the output redirection.

            The check's options precede ``access``, because hidl uses the first of several equal options.
            """
            lines = dict.fromkeys([*job.options, *job.cli_options, *job.sched_access])
            redirection = f"exec > {sh(job.stdout)} 2> {sh(job.stderr)}"
            return [*lines, f"cd {sh(str(Path(job.workdir).resolve()))}", redirection]

        def submit(self, job: Any) -> None:
            directory = Path(job.workdir).resolve()
            try:
                receipt = backend.submit(_StagedJob(directory, job.script_filename))
            except Refused as refused:
                raise JobSchedulerError(f"{backend.traits.title} rejected the job: {refused.words}") from refused
            except NoAnswer as error:
                raise JobSchedulerError(f"{backend.traits.title} does not respond: {error}") from error
            if receipt is None:
                raise JobSchedulerError(f"{backend.traits.submit} printed no job id")
            job._jobid, job._submit_time, job._state, job._missing = receipt.id, time.time(), "PENDING", 0

        def poll(self, *jobs: Any) -> None:
            open_jobs = [job for job in jobs if job is not None and not self.finished(job)]
            if not open_jobs:
                return
            try:
                known = {job.id: job for job in backend.parse(backend.query(None))}
            except NoAnswer as error:
                self.log(f"{backend.traits.title} does not respond: {error}")
                return
            for job in open_jobs:
                found = known.get(job.jobid)
                job._missing = 0 if found else job._missing + 1
                if found is not None:
                    job._state = found.state.value
                elif job._missing >= _MISSING:  # no longer listed, but the job itself records how it ended
                    job._state = State.COMPLETED.value
                self._enforce_max_pending_time(job)

        def _enforce_max_pending_time(self, job: Any) -> None:
            is_limited = job.state == State.PENDING.value and job.max_pending_time
            if is_limited and time.time() - job.submit_time >= job.max_pending_time:
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
            raise NotImplementedError(f"{name} cannot list nodes")

        def filternodes(self, job: Any, nodes: Any) -> Any:
            raise NotImplementedError(f"{name} cannot filter nodes")

    try:
        register_scheduler(name)(Ours)
    except ConfigError:  # already registered by an earlier call
        return


_LIST_SECONDS = 300.0
_PREFIX = re.compile(r"^(?P<indent> *)[-^] (?P<name>.+?) /(?P<hash>[0-9a-f]{6,})(?: @(?P<place>\S+))?\s*$")


@dataclass(frozen=True)
class Selection:
    """A selection of checks that have all ``tags`` and match any of ``checks``, on one system."""

    settings: Path
    system: str
    tags: Sequence[str] = ()
    checks: Sequence[str] = ()

    def words(self) -> list[str]:
        """Return ReFrame's command-line options."""
        found = [f"--config-file={self.settings}", f"--system={self.system}", "--nocolor"]
        found += [f"--checkpath={directory}" for directory in directories()]
        found += [f"--tag=^{re.escape(tag)}$" for tag in self.tags]
        if self.checks:
            found.append(f"--name={pattern(*self.checks)}")
        return found


def pattern(*checks: str) -> str:
    """Return a regular expression that matches whole check names, with or without parameters.

    ReFrame compares it with the name without spaces; for example, ``name%scale=1-node``.

    Raises:
        UsageError: If a name is not a valid regular expression.
    """
    found = f"^(?:{'|'.join(checks)})(?:%|$)"
    try:
        re.compile(found)
    except re.error as error:
        raise UsageError(f"invalid regular expression in --check {' '.join(checks)}: {error}") from error
    return found


@dataclass(frozen=True)
class ListedCase:
    """A case listed by ReFrame.

    Attributes:
        name: Name of the check, including its parameters.
        hash: Hash that identifies the test.
        place: ``system:partition+environ``, or None for tests.
    """

    name: str
    hash: str
    place: str | None

    @property
    def check(self) -> str:
        """The name of the check without its parameters."""
        return self.name.split()[0]

    @property
    def scale(self) -> str | None:
        """The name of the scale, or None for a check without scales."""
        found = re.search(r"%scale=(\S+)", self.name)
        return found[1] if found and found[1] in NAMES else None

    def fits(self, check: str) -> bool:
        """Return whether an argument of ``--check`` matches the case."""
        return re.search(pattern(check), self.name.replace(" ", "")) is not None


def directories() -> list[Path]:
    """Return the directories searched for checks: hidl's, the system's and the user's."""
    own = [config / "reframe_checks" for config in (paths.system_config(), paths.user_config())]
    return [shipped_checks(), *(directory for directory in own if directory.is_dir())]


def shipped_checks() -> Path:
    """Return the directory of the checks shipped with hidl."""
    return paths.shipped() / "reframe_checks"


def reframe_command(*arguments: str) -> list[str]:
    """Return the command that runs ReFrame with this Python, so that its checks can import hidl.

    Raises:
        MissingPrecondition: If ReFrame is not installed.
    """
    if importlib.util.find_spec("reframe") is None:
        raise MissingPrecondition(
            f"ReFrame is not installed for {sys.executable}",
            hint=f"run: {sys.executable} -m pip install 'hidl[validate]' (or reframe-hpc alone)",
        )
    program = Path(sys.executable).with_name("reframe")
    start = [sys.executable, str(program)] if program.is_file() else [sys.executable, "-c", _MAIN]
    return [*start, *arguments]


_MAIN = "import sys; del sys.path[0]; from reframe.frontend.cli import main; sys.exit(main())"


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for ReFrame, without any variables that affect its output.

    PYTHONPATH contains hidl and its check library. The variables in ``more`` are added.
    """
    kept = {name: value for name, value in hidl_cluster.environment().items() if not name.startswith("RFM_")}
    path = [str(Path(__file__).parents[2]), str(shipped_checks()), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONDONTWRITEBYTECODE": "1",
        **(more or {}),
    }


def list_cases(selection: Selection, directory: Path) -> list[ListedCase]:
    """Return the cases that would be run, including fixtures.

    Raises:
        HidlError: If ReFrame cannot list the cases.
    """
    return _list(selection, "--list=C", directory)


def list_tests(selection: Selection, directory: Path) -> list[ListedCase]:
    """Return all tests with matching names and tags, even if this site does not meet their requirements."""
    return _list(selection, "--list=T", directory, "--skip-system-check", "--skip-prgenv-check")


def _list(selection: Selection, how: str, directory: Path, *more: str) -> list[ListedCase]:
    words = reframe_command(*selection.words(), f"--prefix={directory}", *more, how)
    completed = process.run(words, cwd=directory, env=environment(), timeout=_LIST_SECONDS, check=False)
    if completed.status != 0:
        raise HidlError(
            f"ReFrame cannot list its checks: {shown_end(completed.stdout + completed.stderr, 1500).strip()}",
            hint="to print the configuration and the command, run: hidl validate --dry-run",
        )
    skipped = [line for line in completed.stdout.splitlines() if "skipping test" in line]
    if skipped:
        raise HidlError(
            "ReFrame cannot load all checks:\n" + "\n".join(skipped), hint="correct the check, or remove its file"
        )
    matches = [_PREFIX.match(line) for line in completed.stdout.splitlines()]
    return [ListedCase(m["name"], m["hash"], m["place"]) for m in matches if m]


def run(
    selection: Selection, directory: Path, *, log: Path, report: Path, more: Mapping[str, str] | None = None
) -> int:
    """Run the checks and return ReFrame's exit status, which only indicates whether any check failed.

    Args:
        selection: Checks to run.
        directory: The validation's directory.
        log: File for ReFrame's output.
        report: File for ReFrame's JSON report.
        more: Additional environment variables.
    """
    words = run_command(selection, directory, report)
    return process.run(words, cwd=directory, env=environment(more), log=log, check=False).status


def run_command(selection: Selection, directory: Path, report: Path) -> list[str]:
    """Return the command that ``run`` executes."""
    return reframe_command(
        *selection.words(),
        f"--prefix={directory}",
        f"--perflogdir={directory / 'perflogs'}",
        f"--report-file={report}",
        "--keep-stage-files",
        "--run",
    )


def read_report(report: Path) -> list[Mapping[str, Any]]:
    """Read the cases in a ReFrame JSON report.

    Raises:
        HidlError: If there is no valid report.
    """
    try:
        document = read_json(report)
        return list(document["runs"][-1]["testcases"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise HidlError(
            f"cannot read ReFrame's report: {error}", hint=f"see ReFrame's output in {report.parent}"
        ) from error


def accounting_answers(site: Site) -> bool:
    """Return whether sacct works on this host. Without it, ReFrame's `slurm` scheduler fails after three attempts."""
    return site.scheduler == "slurm" and slurm.accounting_answers()

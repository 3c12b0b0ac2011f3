"""The options of a run, from which the command line, the Python API and the plan are derived."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

from hidl_cli.errors import UsageError
from hidl_cli.launch.options import JobOptions, option
from hidl_cli.plan.input_files import PIPED

Value = str | int | float | bool

#: Variables that the job script sets for the stack.
OF_THE_STACK = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")

#: Variables that are read-only in bash, or change how the job script itself runs.
_OF_BASH = re.compile(
    r"BASH(OPTS|PID|_(?!ENV\b)\w+)?|SHELLOPTS|E?UID|PPID|IFS|CDPATH|GLOBIGNORE|TMOUT|FUNCNEST|POSIXLY_CORRECT|(OLD)?PWD"
    r"|OPT(ARG|ERR|IND)|RANDOM|SECONDS|LINENO|GROUPS|DIRSTACK|FUNCNAME|PIPESTATUS"
)

#: The default of ``max_jobs``.
_MAX_JOBS = 20

_PROGRAM = "Program"
_RESOURCES = "Resources"
_STUDY = "Study"
_JOB = "Job"
_SOFTWARE = "Software"


@dataclass(frozen=True)
class RunOptions(JobOptions):
    """The options of ``hidl run`` and ``hidl.run``; None selects the default.

    Options with several values are mappings, or words in the form used on the command line: ``NAME=VALUE`` or
    ``NAME=VALUE,VALUE``.

    Attributes:
        nodes: Number of nodes or, with ``until_done``, the smallest and largest number for each job, such as ``"2-4"``.
        workload: Name or file of a workload.
        command: The user's program, which replaces the workload.
        directory: Directory in which ``command`` starts (default: the current one).
        stdin: File that rank 0 of ``command`` reads as standard input; ``PIPED`` selects a copy of this process's
            standard input.
        uses_mpi: Whether to check the MPI world before ``command`` starts.
        separate_ranks: Whether the frameworks in ``command`` may form worlds that differ from the launched ranks.
        precision: Largest half-width of an interval, such as 0.05 or ``5%``; there is no verdict if it is wider.
        profile: Whether to record the ranks' MPI calls, and whether the run fails if they cannot be recorded.
        check: Whether to run the doctor's quick checks before the submission.
    """

    workload: str | PathLike[str] | None = None
    _: KW_ONLY
    command: Sequence[str | PathLike[str]] = ()
    directory: str | PathLike[str] | None = None
    stdin: str | PathLike[str] | None = None
    parameters: Mapping[str, Value] | Sequence[str] | None = option(
        None,
        "--set",
        metavar="NAME=VALUE",
        help="Set a parameter of the workload; repeatable.",
        completion="parameters",
        repeatable=True,
        panel=_PROGRAM,
    )
    matrix: Mapping[str, Sequence[Value]] | Sequence[str] | None = option(
        None,
        "--matrix",
        metavar="NAME=VALUE,VALUE",
        help="Sweep parameter values; all combinations run in one allocation. More NAME=VALUE,... may follow.",
        completion="matrix",
        repeatable=True,
        panel=_STUDY,
    )
    metrics: Mapping[str, str] | Sequence[str] | None = option(
        None,
        "--metric",
        metavar="NAME=REGEX",
        help="Metric in the program's output, matched by a regular expression with one group; "
        "NAME\\[unit=s,take=last]= sets options. A study uses the first metric. Repeatable.",
        repeatable=True,
        panel=_STUDY,
    )
    env_vars: Mapping[str, str | None] | Sequence[str] | None = option(
        None,
        "--env-var",
        metavar="NAME[=VALUE]",
        help="Set an environment variable on every rank, by default to its value in your shell; repeatable.",
        repeatable=True,
        panel=_PROGRAM,
    )
    suite: Literal["c", "python", "both"] | None = option(
        None, "--suite", help="For benchmarks in C and Python: the suite to run, or both.", panel=_PROGRAM
    )
    nodes: int | str | None = option(  # type: ignore[assignment]  # only a RunRequest is used as AllocationOptions
        None,
        "--nodes",
        metavar="N|MIN-MAX",
        help="Number of nodes (default: 1, or all of --hosts). With --until-done, such as 2-4: each job may get any "
        "number in this range.",
        panel=_RESOURCES,
    )
    ranks_per_node: int | None = option(
        None,
        "--ranks-per-node",
        minimum=1,
        help="MPI ranks per node (default: one per GPU, or as the workload requires).",
        panel=_RESOURCES,
    )
    threads: int | None = option(
        None,
        "--threads",
        minimum=1,
        help="Threads per rank (default: the node's cores divided among its ranks).",
        panel=_RESOURCES,
    )
    device: Literal["cpu", "gpu"] | None = option(
        None,
        "--device",
        help="Compute on CPUs or GPUs (default: GPUs if the nodes have some). With cpu, no GPUs are requested, and a "
        "partition without GPUs is preferred unless --partition is given.",
        panel=_RESOURCES,
    )
    stack: str | None = option(
        None, "--stack", help="Stack to run on (default: the workload's).", completion="stacks", panel=_SOFTWARE
    )
    env: str | PathLike[str] | None = option(
        None,
        "--env",
        metavar="DIR",
        help="Run in your own venv or conda environment; --stack then provides the MPI library.",
        panel=_SOFTWARE,
    )
    container: str | PathLike[str] | None = option(
        None,
        "--container",
        metavar="IMAGE",
        help="Run your own program inside a container image, with the site's container runtime.",
        panel=_SOFTWARE,
    )
    mounts: Sequence[str] | None = option(
        None,
        "--mount",
        metavar="SRC[:DST[:ro]]",
        help="Mount a directory in the container (default DST: SRC); repeatable.",
        repeatable=True,
        panel=_SOFTWARE,
    )
    launcher: str | None = option(
        None,
        "--launcher",
        help="Launcher that starts the ranks (default: the site's first one that supports the MPI library).",
        completion="launchers",
        panel=_SOFTWARE,
    )
    mpi: str | None = option(
        None,
        "--mpi",
        help="MPI library of the site, or `stack` for the stack's own (default: the site's default).",
        completion="libraries",
        panel=_SOFTWARE,
    )
    tuning: Mapping[str, str | int] | Sequence[str] | None = option(
        None,
        "--tune",
        "--mv2",
        metavar="NAME=VALUE",
        help="Set a run-time variable of the MPI library (MV2_*, MPIR_CVAR_*, OMPI_MCA_*, ...); repeatable.",
        completion="tuning",
        repeatable=True,
        panel=_SOFTWARE,
    )
    prefix: str | PathLike[str] | None = option(
        None,
        "--prefix",
        metavar="DIR",
        help="Root directory of the installations (default: the site's).",
        panel=_SOFTWARE,
    )
    scale: Sequence[int] | str | None = option(
        None,
        "--scale",
        metavar="SIZES",
        help="Run a scaling study over sizes: 1,2,4 (nodes; ranks on the local site), ranks=1,2 or nodes=1,2.",
        panel=_STUDY,
    )
    repeat: int | None = option(
        None,
        "--repeat",
        minimum=1,
        help="Interleaved repetitions (default: 5 with --scale or --matrix, otherwise 1).",
        panel=_STUDY,
    )
    target: float | None = option(
        None,
        "--target",
        minimum=0.01,
        maximum=2.0,
        help="Target efficiency (default: the workload's).",
        panel=_STUDY,
    )
    scaling: Literal["weak", "strong"] | None = option(
        None,
        "--scaling",
        help="For your own program: strong (same work at all sizes) or weak (work grows with the size).",
        panel=_STUDY,
    )
    until_done: bool = option(
        False,
        "--until-done",
        help="Continue the program in additional jobs, from its checkpoints, until it is done.",
        panel=_PROGRAM,
    )
    max_jobs: int | None = option(
        None,
        "--max-jobs",
        minimum=1,
        help="Maximum number of jobs for --until-done (default: 20).",
        panel=_PROGRAM,
    )
    max_node_hours: float | None = option(
        None,
        "--max-node-hours",
        minimum=0,
        help="With --until-done: start no job that could exceed this total of node-hours.",
        panel=_PROGRAM,
    )
    max_cost: float | None = option(
        None,
        "--max-cost",
        minimum=0,
        help="With --until-done: start no job that could exceed this total cost, in the site's units.",
        panel=_PROGRAM,
    )
    uses_mpi: bool = option(
        True,
        "--no-mpi",
        help="For your own program without MPI: skip the check that all ranks form one MPI world.",
        panel=_PROGRAM,
    )
    separate_ranks: bool = option(
        False,
        "--separate-ranks",
        help="For your own program: accept ranks that work separately, rather than in one world of their framework.",
        panel=_PROGRAM,
    )
    baseline: Literal["single", "copies", "history"] | None = option(
        None,
        "--baseline",
        help="Baseline of the study: its smallest step (single), concurrent runs on each node (copies, which also "
        "finds slow nodes; the default from 4 nodes on), or earlier runs (history).",
        panel=_STUDY,
    )
    until_settled: bool = option(
        False, "--until-settled", help="Stop a study as soon as the verdict is settled.", panel=_STUDY
    )
    precision: float | str | None = option(
        None,
        "--precision",
        metavar="PERCENT",
        help="Largest half-width of an interval that permits a verdict, such as 5% (default: any).",
        panel=_STUDY,
    )
    new_job: bool = option(
        False,
        "--new-job",
        help="Within an allocation (salloc, a batch job, flux alloc): submit another job instead of using it.",
        panel=_JOB,
    )
    profile: Literal["required", "if-possible"] | None = option(
        None,
        "--profile",
        metavar="[if-possible]",
        help="Record the MPI calls of the ranks: who sent what to whom, and who waited. With =if-possible, run "
        "unrecorded if the recorder cannot be built.",
        panel=_STUDY,
    )
    check: bool = option(True, "--no-check", help="Skip the checks of `hidl doctor` before submission.", panel="Output")

    @property
    def node_range(self) -> tuple[int | None, int | None]:
        """The smallest and largest number of nodes of a job; the smallest is None unless ``nodes`` is a range."""
        if self.nodes is None:
            return None, None
        match = re.fullmatch(r"(?:([0-9]{1,9})-)?([0-9]{1,9})", str(self.nodes).strip())
        least, most = (int(match[1] or match[2]), int(match[2])) if match else (0, 0)
        if not 1 <= least <= most:
            raise UsageError(
                f"invalid nodes {self.nodes!r}: must be a number of at least 1, or a range such as 2-4",
                hint="omit it to use the default",
            )
        return (least if least < most else None), most

    @property
    def words(self) -> tuple[str, ...]:
        """The user's program and its arguments."""
        return tuple(fspath(word) for word in self.command)

    @property
    def assignments(self) -> list[str]:
        """The parameters in the form ``NAME=VALUE``; if a name is repeated, its last value is used."""
        return [*_words(self.parameters), *([f"suite={self.suite}"] if self.suite in ("c", "python") else ())]

    @property
    def axes(self) -> list[str]:
        """The parameters to compare, in the form ``NAME=VALUE,VALUE``."""
        return [*(["suite=c,python"] if self.suite == "both" else ()), *_axes(self.matrix)]

    @property
    def metric_words(self) -> list[str]:
        """The metrics to read from the output. A study uses the first one."""
        return _words(self.metrics)

    @property
    def variables(self) -> list[str]:
        """The MPI library's run-time variables in the form ``NAME=VALUE``."""
        return _words(self.tuning)

    @property
    def rank_variables(self) -> dict[str, str]:
        """The environment variables to set on every rank; raises ``UsageError`` for invalid and unset ones."""
        given = self.env_vars or ()
        words = given.items() if isinstance(given, Mapping) else map(_split_variable, given)
        return {name: _value_of(name, value) for name, value in words}

    @property
    def job_limit(self) -> int:
        """The maximum number of successive jobs that complete the run, or 0 if the run is a single job."""
        for name in ("max_jobs", "max_node_hours", "max_cost"):
            if getattr(self, name) is not None and not self.until_done:
                raise UsageError(
                    f"--{name.replace('_', '-')} requires --until-done", hint="omit it, or add --until-done"
                )
        return (self.max_jobs or _MAX_JOBS) if self.until_done else 0

    @property
    def stdin_file(self) -> str | None:
        """The absolute path of the program's standard input, or ``PIPED``."""
        return PIPED if self.stdin == PIPED else absolute(self.stdin)

    @property
    def installation_prefix(self) -> str | None:
        """The root directory of the installations as an absolute path."""
        return absolute(self.prefix)

    @property
    def sizes(self) -> str | None:
        """The sizes of a scaling study, as text."""
        return self.scale if self.scale is None or isinstance(self.scale, str) else ",".join(map(str, self.scale))

    @property
    def required_precision(self) -> float | None:
        """The value of ``precision``; raises ``UsageError`` unless it is greater than 0 and at most 1."""
        given = self.precision
        if given is None:
            return None
        try:
            text = str(given).strip()
            value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            value = math.nan
        if not 0 < value <= 1:
            raise UsageError(
                f"invalid precision {given!r}: must be above 0% and at most 100%", hint="use a value such as 5% or 0.05"
            )
        return value

    def require_valid(self) -> None:
        """Raise ``UsageError`` for values and combinations that the command line also rejects."""
        if isinstance(self.command, str):
            raise UsageError(
                f"invalid command {self.command!r}: must be a list", hint='for example, use ["python", "train.py"]'
            )
        if self.command and self.workload is not None:
            raise UsageError(f"workload {self.workload} and a command cannot be combined", hint="omit one of them")
        if not self.command and self.workload is None:
            raise UsageError(
                "no workload or command given", hint='use run("WORKLOAD") or run(command=["python", "train.py"])'
            )
        self.require_program()
        if self.stdin is not None and not self.command:
            raise UsageError(
                f"invalid stdin {fspath(self.stdin)}: workload {self.workload} reads no standard input",
                hint="stdin requires command",
            )
        self.node_range  # noqa: B018  checks the value
        for name in ("ranks_per_node", "threads", "repeat", "max_jobs"):
            count = getattr(self, name)
            if count is not None and (not isinstance(count, Integral) or isinstance(count, bool) or count < 1):
                raise UsageError(
                    f"invalid {name} {count!r}: must be an integer of at least 1",
                    hint=f"omit {name} to use the default",
                )
        for name in ("max_node_hours", "max_cost"):
            most = getattr(self, name)
            if most is not None and not (_is_number(most) and 0 <= most < math.inf):
                raise UsageError(
                    f"invalid {name} {most!r}: must be a finite number of at least 0", hint=f"omit {name} for no limit"
                )
        if self.target is not None and not (_is_number(self.target) and 0.01 <= self.target <= 2):
            raise UsageError(
                f"invalid target {self.target!r}: must be between 0.01 and 2", hint="use a value such as 0.8"
            )
        if self.device not in (None, "cpu", "gpu"):
            raise UsageError(
                f"invalid device {self.device!r}: must be cpu or gpu", hint="omit device to use the default"
            )

    def require_program(self) -> None:
        """Raise ``UsageError`` for options that require a user's program if there is none."""
        if not self.command and (not self.uses_mpi or (self.scaling is not None and not self.metrics)):
            raise UsageError(
                "--scaling and --no-mpi require a program after --",
                hint="for a workload, set both in the workload's file",
            )
        if self.container is None:
            if self.mounts:
                raise UsageError("--mount requires --container", hint="add --container IMAGE, or omit --mount")
            return
        if not self.command:
            raise UsageError(
                f"--container requires a program after --: workload {self.workload} runs on its stack",
                hint="use hidl run --container IMAGE -- PROGRAM",
            )
        for name, value in (("--env", self.env), ("--profile", self.profile)):
            if value is not None:
                raise UsageError(f"--container and {name} cannot be combined", hint=f"omit {name}")


@dataclass(frozen=True)
class RunRequest(RunOptions):
    """The options of a run, with additional ones that hidl itself sets.

    Attributes:
        nodes: Largest number of nodes of a job.
        least_nodes: Smallest number of nodes of a job; None if each job has ``nodes``.
        any_device: Whether to use CPUs on the same nodes if the workload or its stack does not support GPUs.
        validates: Whether the run validates the site.
        hypothetical: Whether the plan is only shown, in which case the stack need not be installed.
        in_allocation: Whether to use the allocation in which hidl itself runs, if there is one.
    """

    _: KW_ONLY
    nodes: int | None = None
    least_nodes: int | None = None
    in_allocation: bool = False
    any_device: bool = False
    validates: bool = False
    hypothetical: bool = False

    @classmethod
    def of(cls, options: RunOptions, *, hypothetical: bool = False) -> RunRequest:
        """Return the request that has these options."""
        least, most = options.node_range
        given = {**vars(options), "nodes": most, "least_nodes": least}
        return cls(**given, hypothetical=hypothetical, in_allocation=not options.new_job)

    @property
    def is_compared(self) -> bool:
        """True if the run's times are compared with those of other launches."""
        return self.validates or self.scale is not None or bool(self.axes)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _split_variable(word: str) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    return name, value if equals else None


def _value_of(name: str, value: str | None) -> str:
    """Return the value of an ``--env-var`` variable; None stands for its value in this process's environment."""
    from hidl_cli.site.directives import reject_variable

    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"invalid --env-var {name!r}", hint="use NAME or NAME=VALUE")
    if rejected := reject_variable(name):
        raise UsageError(f"--env-var {name}: {rejected.message}", hint=f"use {rejected.instead}")
    if name in OF_THE_STACK:
        raise UsageError(
            f"--env-var {name}: the job sets this variable for its stack", hint="set it in a script that you run"
        )
    if _OF_BASH.fullmatch(name):
        raise UsageError(
            f"--env-var {name}: it would change the job script itself", hint="set it in a script that you run"
        )
    if value is None:
        value = os.environ.get(name)
    if value is None:
        raise UsageError(f"--env-var {name}: not set in your environment", hint=f"use --env-var {name}=VALUE")
    if "\0" in value:
        raise UsageError(f"--env-var {name}: the value contains a NUL character", hint="remove it")
    return value


def absolute(path: str | PathLike[str] | None) -> str | None:
    """Return ``path`` as an absolute path; None stays None."""
    return None if path is None else str(Path(path).expanduser().absolute())


def _words(values: Mapping[str, Value] | Mapping[str, str | int] | Sequence[str] | None) -> list[str]:
    if isinstance(values, Mapping):
        return [f"{name}={as_word(value)}" for name, value in values.items()]
    return [*(values or ())]


def _axes(values: Mapping[str, Sequence[Value]] | Sequence[str] | None) -> list[str]:
    from hidl_cli.plan.parameters import matrix_word
    from hidl_cli.tuning.judge import COMPARED

    if not isinstance(values, Mapping):
        return [*(values or ())]
    axes = []
    for name, several in values.items():
        if isinstance(several, str):
            raise UsageError(
                f"invalid matrix {name}: must be a list", hint=f'for example, use {{"{name}": ["a", "b"]}}'
            )
        words = [as_word(value) for value in several]
        if not name.startswith(COMPARED) and (with_comma := [word for word in words if "," in word]):
            raise UsageError(
                f"invalid matrix {name}: value {with_comma[0]!r} contains a comma", hint="start one run for each value"
            )
        axes.append(matrix_word(name, words))
    return axes


def as_word(value: Value) -> str:
    """Return a parameter's value as typed on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)

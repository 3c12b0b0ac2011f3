"""Reserved options of batch systems and launchers: hidl writes them itself, or they would interfere with a run.

Site files and ``--scheduler-option`` may contain any other option. The rejected options would silently replace hidl's
own, because a batch system uses the last value of an option.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hidl_cli.batch_systems import SSH


@dataclass(frozen=True)
class ReservedOption:
    """An option that hidl rejects.

    Attributes:
        names: Names without dashes, starting with the long one.
        effect: Effect of the option, worded as the end of a sentence that begins with the option's name.
        instead: Replacement for the option.
        values: Pattern that matches rejected values (default: all values).
    """

    names: tuple[str, ...]
    effect: str
    instead: str
    values: str = ""


def _reserved(names: str, effect: str, instead: str, values: str = "") -> ReservedOption:
    return ReservedOption(tuple(names.split()), effect, instead, values)


_SETS = "is set by hidl for each run"
_OUTPUT = "moves the output away from the files that hidl reads"
_LOGS = "`hidl logs RUN`, which shows the output"
_NO_JOB = "makes the submission print something other than the job id"
_SWEEP = "starts several jobs in one run directory"
_SWEPT = "`hidl run --matrix NAME=VALUE,VALUE`"
_DIRECTORY = "moves the job out of its run directory"
_CD = "the directory in which you call `hidl run`; programs start there"
_SHELL = "`hidl shell`"
_WAITS = "keeps the submission waiting until the job ends"
_DETACHED = "`hidl run`, which waits, or `hidl run --no-wait`"
_SIGNAL = "sends the signal to hidl's own job script, which ends the run"
_WHOLE_JOB = "--time, or `default_time` in `policies`"

_SLURM = (
    _reserved("array a", _SWEEP, _SWEPT),
    _reserved("output o error e open-mode", _OUTPUT, _LOGS),
    _reserved("input i", "replaces the standard input of hidl's own job script", "`hidl run -- PROGRAM < FILE`"),
    _reserved("nodes N", _SETS, "--nodes"),
    _reserved("ntasks n ntasks-per-node ntasks-per-socket ntasks-per-core ntasks-per-gpu", _SETS, "--ranks-per-node"),
    _reserved("cpus-per-task c cpus-per-gpu", _SETS, "--threads, or `cpus` in `policies`"),
    _reserved("threads-per-core", _SETS, "`threads_per_core` of the node type"),
    _reserved(
        "distribution m", "changes which ranks share a node or a socket", "SLURM_DISTRIBUTION in policies.environment"
    ),
    _reserved("job-name J", _SETS, "--job-name"),
    _reserved("time t time-min", _SETS, _WHOLE_JOB),
    _reserved("partition p", _SETS, "--partition, `partitions` or `default_partition`"),
    _reserved("account A", _SETS, "--account, or SBATCH_ACCOUNT in your environment"),
    _reserved("qos q", _SETS, "--qos, or `qos` of the partition"),
    _reserved("constraint C", _SETS, "--constraint, or `constraint` of the partition"),
    _reserved("reservation", _SETS, "--reservation"),
    _reserved("mem mem-per-cpu mem-per-gpu", _SETS, "--mem, or `memory` in `policies`"),
    _reserved(
        "gpus G gpus-per-node gpus-per-task gpus-per-socket", _SETS, "--gpus, --gpus-per-rank or `gpus` in `policies`"
    ),
    _reserved("gres", _SETS, "--gpus, --gpus-per-rank or `gpus` in `policies`", r"(^|[,/:])gpu\b"),
    _reserved("tres-per-task", _SETS, "--gpus-per-rank or --threads", r"\b(gpu|cpu)\b"),
    _reserved("export export-file", _SETS, "--env-var, or `export` in `policies`"),
    _reserved("exclusive", _SETS, "--exclusive, or `exclusive` in `policies`", r"^$"),
    _reserved("oversubscribe s share overcommit O", "lets several jobs or ranks use the same cores", "--share"),
    _reserved("signal", _SIGNAL, "--signal without B:, which signals the ranks only", r"^[BR]*B[BR]*:"),
    _reserved("chdir D", _DIRECTORY, _CD),
    _reserved("wrap", "replaces hidl's own job script", "`hidl run -- PROGRAM`"),
    _reserved("wait W", _WAITS, _DETACHED),
    _reserved("test-only", "submits no job", "`hidl run --dry-run`"),
    _reserved("help h usage version V", _NO_JOB, "a shell"),
)
_PBS = (
    _reserved("J", _SWEEP, _SWEPT),
    _reserved("o e j k R", _OUTPUT, _LOGS),
    _reserved("N", _SETS, "--job-name"),
    _reserved("q", _SETS, "--partition, `partitions` or `default_partition`"),
    _reserved("A", _SETS, "--account"),
    _reserved(
        "l",
        _SETS,
        "--nodes, --ranks-per-node, --threads, --gpus or --mem",
        r"(^|,)\s*(select|nodes|ncpus|mem|ngpus|mpiprocs)=",
    ),
    _reserved("l", _SETS, "--exclusive or --share, or `exclusive` in `policies`", r"(^|,)\s*place="),
    _reserved("l", _SETS, _WHOLE_JOB, r"(^|,)\s*((min_|max_)?walltime)="),
    _reserved("V v", _SETS, "--env-var, or `export` in `policies`"),
    _reserved("I X G", "makes the job interactive", _SHELL),
    _reserved("z", _NO_JOB, "no replacement; hidl reads the job id"),
    _reserved("C", "changes which lines of the job script PBS reads", "#PBS lines as they are"),
    _reserved("S", "replaces the shell of hidl's own job script", "`hidl run -- SHELL -c COMMAND`", r"(?<!bash)$"),
    _reserved("W", _WAITS, _DETACHED, r"(^|,)\s*block="),
    _reserved("W", _DIRECTORY, _CD, r"(^|,)\s*sandbox="),
    _reserved("d D", _DIRECTORY, _CD),
)
_LSF = (
    _reserved("J", f"is set by hidl for each run, and a list in brackets {_SWEEP}", f"--job-name, or {_SWEPT}"),
    _reserved("o oo e eo outdir", _OUTPUT, _LOGS),
    _reserved("i is", "replaces the standard input of hidl's own job script", "`hidl run -- PROGRAM < FILE`"),
    _reserved("nnodes n", _SETS, "--nodes"),
    _reserved("W", _SETS, _WHOLE_JOB),
    _reserved("q", _SETS, "--partition, `partitions` or `default_partition`"),
    _reserved("U", _SETS, "--reservation"),
    _reserved("env", _SETS, "--env-var, or `export` in `policies`"),
    _reserved("x", _SETS, "--exclusive, or `exclusive` in `policies`"),
    _reserved("Jd", "replaces the text by which hidl finds its job", "--job-name"),
    _reserved("I Ip IS ISp ISs Is IX", "makes the job interactive", _SHELL),
    _reserved("K", _WAITS, _DETACHED),
    _reserved("cwd", _DIRECTORY, _CD),
    _reserved("hostfile", "chooses the hosts of each rank", "--nodes and --ranks-per-node"),
    _reserved("wa wt", _SIGNAL, "--time"),
    _reserved("pack jsdl jsdl_strict yaml json", "submits another job", "`hidl run`"),
    _reserved("h V", _NO_JOB, "a shell"),
)
#: Additional bsub options that have multi-letter names.
_LSF_WORDS = frozenset(
    (
        *("alloc_flags", "app", "ar", "clusters", "cn_cu", "cn_mem", "core_isolation", "csm", "data", "datagrp", "Ep"),
        *("eptl", "freq", "gpu", "hl", "jobaff", "jsm", "Lp", "mig", "Ne", "network", "notify", "ptl", "rn", "rnc"),
        *("sla", "smt", "sp", "stage", "step_cgroup", "ti", "tty", "ul", "We", "XF", "Zs"),
    )
)
_FLUX = (
    _reserved("cc bcc", _SWEEP, _SWEPT),
    _reserved("output error label-io l", _OUTPUT, _LOGS),
    _reserved("input", "replaces the standard input of hidl's own job script", "`hidl run -- PROGRAM < FILE`"),
    _reserved("nodes N", _SETS, "--nodes"),
    _reserved("nslots n", _SETS, "--ranks-per-node"),
    _reserved("cores-per-slot c", _SETS, "--threads"),
    _reserved("gpus-per-slot g", _SETS, "--gpus or --gpus-per-rank"),
    _reserved("exclusive x", _SETS, "--exclusive, or `exclusive` in `policies`"),
    _reserved("job-name", _SETS, "--job-name"),
    _reserved("time-limit t", _SETS, _WHOLE_JOB),
    _reserved("queue q", _SETS, "--partition, `partitions` or `default_partition`"),
    _reserved("bank B", _SETS, "--account"),
    _reserved("requires", _SETS, "--constraint, or `constraint` of the partition"),
    _reserved("env env-remove env-file", _SETS, "--env-var, or `environment` in `policies`"),
    _reserved("signal", _SIGNAL, "--time"),
    _reserved("cwd", _DIRECTORY, _CD),
    _reserved("wrap", "replaces hidl's own job script", "`hidl run -- PROGRAM`"),
    _reserved("wait", _WAITS, _DETACHED),
    _reserved("dry-run", "submits no job", "`hidl run --dry-run`"),
    _reserved("help h", _NO_JOB, "a shell"),
    _reserved("setopt o", _OUTPUT, _LOGS, r"^(output|input)\b"),
)


@dataclass(frozen=True)
class _Syntax:
    """Rules by which a program parses its options.

    Attributes:
        reserved: The options that hidl rejects.
        flags: Letters of options without a value, which may be combined into one word, as in ``-Hs``.
        has_words: True if multi-letter names follow a single dash, as in ``-nnodes 4``.
        words: Multi-letter names, which must be distinguished from a letter followed by its value.
        joins: True if a value may follow a letter in the same word, as in ``-n4``.
        abbreviates: True if long names may be abbreviated.
    """

    reserved: tuple[ReservedOption, ...]
    flags: str = ""
    has_words: bool = False
    words: frozenset[str] = frozenset()
    joins: bool = True
    abbreviates: bool = False


_SYNTAX = {
    "slurm": _Syntax(_SLURM, flags="HIkOQsVvWh", abbreviates=True),
    "pbs": _Syntax(_PBS, flags="fhIVXz"),
    "lsf": _Syntax(
        _LSF,
        has_words=True,
        words=_LSF_WORDS,
    ),
    "flux": _Syntax(_FLUX, flags="hlux", abbreviates=True),
}


@dataclass(frozen=True)
class Rejection:
    """The reason why an option is rejected, and the recommended replacement."""

    message: str
    instead: str


def reject_directive(scheduler: str | None, text: str, policies: Mapping[str, Any]) -> Rejection | None:
    """Return why hidl rejects a line of scheduler options, or None if it accepts the line.

    Options for plug-in schedulers are not checked.

    Args:
        scheduler: Name of the scheduler.
        text: One or more options with their values.
        policies: The site's policies, which determine some of the options that hidl writes.
    """
    if scheduler in ("local", SSH):
        return Rejection(f"scheduler {scheduler} has no options for jobs", "no such option")
    syntax = _SYNTAX.get(scheduler or "")
    if syntax is None:
        return None
    try:
        given = list(_split(text, syntax))
    except ValueError as error:
        return Rejection(f"invalid quotes: {error}", "each quote closed on the same line")
    for name, value in given:
        for option in (*syntax.reserved, *_by_policy(scheduler, policies)):
            if _is_meant(name, option, syntax) and re.search(option.values, value):
                return Rejection(f"`{_dashed(name, syntax)}` {option.effect}", option.instead)
    return None


def _by_policy(scheduler: str | None, policies: Mapping[str, Any]) -> Iterator[ReservedOption]:
    """Yield the options that hidl writes because of a policy."""
    if scheduler == "slurm" and policies.get("gpus") == "gres":
        yield _reserved(
            "gres", "replaces the option with which hidl requests GPUs", "`gpus: gpus-per-node` in `policies`"
        )
    if scheduler == "lsf":
        yield _reserved(str(policies.get("account_option", "-P")).lstrip("-"), _SETS, "--account")


def option_names(scheduler: str | None, text: str) -> list[str]:
    """Return the option names in a scheduler line, including their dashes, or no names for plug-in schedulers."""
    syntax = _SYNTAX.get(scheduler or "")
    return [] if syntax is None else [_dashed(name, syntax) for name, _ in _split(text, syntax)]


#: Effects of reserved options that a user's batch script may use; hidl leaves these options to the script.
_LEFT_TO_SCRIPTS = re.compile(
    f"{re.escape(_SETS)}|lets several jobs|changes which ranks|chooses the hosts of each rank"
)


def reject_in_script(scheduler: str, text: str) -> Rejection | None:
    """Return why an option of a user's batch script is not copied to hidl's job script, or None if all are copied."""
    syntax = _SYNTAX[scheduler]
    for name, value in _split(text, syntax):
        for option in syntax.reserved:
            carried = _LEFT_TO_SCRIPTS.match(option.effect) is not None
            if not carried and _is_meant(name, option, syntax) and re.search(option.values, value):
                return Rejection(f"it {option.effect}", option.instead)
    return None


def written_options(scheduler: str, words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each option in a line of a job script: its name, its value, and the option as written in a job script.

    For a word that is not an option, the name is empty.
    """
    syntax, rest = _SYNTAX[scheduler], list(words)
    while rest:
        word = rest.pop(0)
        following = rest[0] if rest and not rest[0].startswith("-") else None
        if not word.startswith("-"):
            yield "", word, shlex.quote(word)
            continue
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and following is not None:
                value = rest.pop(0)
            joined = "=" if equals else " "
            yield name, value, f"--{name}" + (f"{joined}{shlex.quote(value)}" if equals or value else "")
            continue
        for name, value in _single(word[1:], _FOLLOWING, syntax):
            given = value
            if value == _FOLLOWING:
                given = "" if following is None else rest.pop(0)
            yield name, given, f"-{name}" + (f" {shlex.quote(given)}" if given else "")


#: Placeholder for the word after an option.
_FOLLOWING = "\0"


def _is_meant(name: str, option: ReservedOption, syntax: _Syntax) -> bool:
    """Return whether ``name`` is a name of the option or an abbreviation of one."""
    return name in option.names or (
        syntax.abbreviates and len(name) > 1 and any(known.startswith(name) for known in option.names)
    )


def _dashed(name: str, syntax: _Syntax) -> str:
    return f"-{name}" if len(name) == 1 or syntax.has_words else f"--{name}"


def _split(text: str, syntax: _Syntax) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each option in a line; raises ``ValueError`` if a quote is not closed."""
    words = shlex.split(text)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        separate = "" if following.startswith("-") else following
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield name, value if equals else separate
        elif word.startswith("-"):
            yield from _single(word[1:], separate, syntax)


def _single(word: str, separate: str, syntax: _Syntax) -> Iterator[tuple[str, str]]:
    """Yield the options in a single-dash word: letters without values, then one whose value is the rest of the word."""
    if syntax.has_words:
        name, equals, value = word.partition("=")
        is_whole = not syntax.joins or name in _words(syntax) | syntax.words
        yield (name, value if equals else separate) if is_whole else (word[:1], word[1:] or separate)
        return
    while word:
        letter, word = word[0], word[1:]
        if letter not in syntax.flags:
            yield letter, word.removeprefix("=") or separate
            return
        yield letter, ""


@cache
def _words(syntax: _Syntax) -> frozenset[str]:
    return frozenset(name for option in syntax.reserved for name in option.names)


# Launcher arguments, and environment variables.


_LABELS = "adds labels to the output, which metrics are read from"
_HOSTS = "chooses the hosts, which hidl takes from the allocation"
_LAUNCHERS = {
    "srun": _Syntax(
        (
            _reserved("nodes N", _SETS, "--nodes"),
            _reserved("ntasks n ntasks-per-node ntasks-per-socket ntasks-per-core", _SETS, "--ranks-per-node"),
            _reserved("cpus-per-task c", _SETS, "--threads"),
            _reserved("output o error e", _OUTPUT, _LOGS),
            _reserved("label l", _LABELS, "no such option"),
            _reserved("input i", _SETS, "`hidl run -- PROGRAM < FILE`"),
            _reserved("mpi", _SETS, "`srun_mpi` of the MPI library"),
            _reserved("export", _SETS, "--env-var, or `environment` in `policies`"),
            _reserved("chdir D", _DIRECTORY, _CD),
            _reserved("multi-prog", "replaces the program", "`hidl run -- PROGRAM`"),
            _reserved("pty", "makes the ranks interactive", _SHELL),
            _reserved("test-only", "starts no rank", "`hidl run --dry-run`"),
        ),
        flags="EHIOQXZhjklquv",
        abbreviates=True,
    ),
    "mpiexec": _Syntax(
        (
            _reserved("n np ppn perhost", _SETS, "--nodes or --ranks-per-node"),
            _reserved("f hosts host hostfile machinefile", _HOSTS, "--nodes"),
            _reserved("outfile-pattern errfile-pattern", _OUTPUT, _LOGS),
            _reserved("l prepend-rank prepend-pattern", _LABELS, "no such option"),
            _reserved("configfile", "replaces the program", "`hidl run -- PROGRAM`"),
            _reserved("wdir wd", _DIRECTORY, _CD),
        ),
        has_words=True,
        joins=False,
    ),
    "mpirun": _Syntax(
        (
            _reserved("n np c N npernode", _SETS, "--nodes or --ranks-per-node"),
            _reserved("hostfile machinefile default-hostfile host H", _HOSTS, "--nodes"),
            _reserved("output output-filename", _OUTPUT, _LOGS),
            _reserved("tag-output timestamp-output xml", _LABELS, "no such option"),
            _reserved("app", "replaces the program", "`hidl run -- PROGRAM`"),
            _reserved("wdir wd", _DIRECTORY, _CD),
        ),
        has_words=True,
        joins=False,
    ),
    "mpirun_rsh": _Syntax(
        (
            _reserved("n np ppn", _SETS, "--nodes or --ranks-per-node"),
            _reserved("hostfile", _HOSTS, "--nodes"),
        ),
        has_words=True,
        joins=False,
    ),
    "pals": _Syntax(
        (
            _reserved("n np ppn", _SETS, "--nodes or --ranks-per-node"),
            _reserved("depth d", _SETS, "--threads"),
            _reserved("hostfile hosts", _HOSTS, "--nodes"),
            _reserved("label l line-buffer-label", _LABELS, "no such option"),
            _reserved("wdir w", _DIRECTORY, _CD),
        ),
    ),
    "flux": _Syntax(
        (
            _reserved("nodes N", _SETS, "--nodes"),
            _reserved("ntasks n tasks-per-node", _SETS, "--ranks-per-node"),
            _reserved("cores-per-task c", _SETS, "--threads"),
            _reserved("gpus-per-task g", _SETS, "--gpus-per-rank"),
            _reserved("output error", _OUTPUT, _LOGS),
            _reserved("label-io l", _LABELS, "no such option"),
            _reserved("cwd", _DIRECTORY, _CD),
        ),
        flags="hluvx",
        abbreviates=True,
    ),
    "jsrun": _Syntax(
        (
            _reserved("n nrs a tasks_per_rs r rs_per_host p np", _SETS, "--nodes or --ranks-per-node"),
            _reserved("c cpu_per_rs", _SETS, "--threads"),
            _reserved("g gpu_per_rs", _SETS, "--gpus-per-rank"),
            _reserved("o stdio_stdout k stdio_stderr", _OUTPUT, _LOGS),
            _reserved("t stdio_input", _SETS, "`hidl run -- PROGRAM < FILE`"),
            _reserved("h chdir", _DIRECTORY, _CD),
        ),
    ),
    "ibrun": _Syntax((_reserved("n np o", _SETS, "--ranks-per-node"),)),
}

#: Variables that describe a rank, a run or a job, and that are set by hidl, the launcher or the scheduler.
_OF_A_RANK = re.compile(
    r"HIDL_(?!(CHECKPOINT_(INTERVAL|KEEP)|TOTAL_BATCH)\b)\w+|(LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TF_CONFIG"
    r"|SLURM_(JOB_?ID|JOB_(NODELIST|NUM_NODES|CPUS_PER_NODE)|NODELIST|NNODES|NTASKS\w*|NPROCS|TASKS_PER_NODE"
    r"|(PROC|LOCAL|NODE)ID|STEP_?\w+|ARRAY_\w+|CPUS_PER_TASK)"
    r"|PMI_(RANK|SIZE|FD|PORT|ID|SPAWNED)|PMIX_(RANK|NAMESPACE|SERVER_\w+)|OMPI_COMM_WORLD_\w+|MV2_COMM_WORLD_\w+"
)
#: Variables that set the number of threads in common libraries.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
#: srun variables that move or label the output.
_OF_THE_OUTPUT = re.compile(r"SLURM_(STD(IN|OUT|ERR)MODE|LABELIO|WORKING_DIR)|SLURM_OPEN_MODE")


def reject_argument(launcher: str, word: str) -> Rejection | None:
    """Return why hidl rejects a launcher argument, or None if it is accepted or if the launcher is unsupported."""
    syntax = _LAUNCHERS.get(launcher)
    if syntax is None or not word.startswith("-"):
        return None
    names = (
        word[2:].partition("=")[:1] if word.startswith("--") else [name for name, _ in _single(word[1:], "", syntax)]
    )
    for name in names:
        for option in syntax.reserved:
            if _is_meant(name, option, syntax):
                return Rejection(f"`{_dashed(name, syntax)}` {option.effect}", option.instead)
    return None


def reject_variable(name: str) -> Rejection | None:
    """Return why a variable cannot be set for all ranks, or None if it can."""
    if name in THREAD_VARIABLES:
        return Rejection(f"`{name}` {_SETS}", "--threads")
    if _OF_A_RANK.fullmatch(name):
        return Rejection(f"`{name}` describes a rank, a run or a job, and is set for each of them", "no such variable")
    if _OF_THE_OUTPUT.fullmatch(name):
        return Rejection(f"`{name}` moves or labels the output, which hidl reads", _LOGS)
    return None

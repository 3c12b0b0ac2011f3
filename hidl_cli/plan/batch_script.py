"""Batch scripts as programs: their directives become options of the run, and their body runs once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from hidl_cli.errors import UsageError
from hidl_cli.plan.options import RunOptions, RunRequest
from hidl_cli.plan.program_launcher import starts_ranks
from hidl_cli.site.directives import reject_in_script, written_options
from hidl_cli.site.schema import Site

_LARGEST = 1 << 18  # bytes
_MARKS = {"slurm": r"#SBATCH(?=\s)", "pbs": r"#PBS(?=\s)", "lsf": r"#BSUB(?=\s)", "flux": r"#\s?[Ff][Ll][Uu][Xx]:"}
_LINE_OF = {"slurm": "#SBATCH", "pbs": "#PBS", "lsf": "#BSUB", "flux": "# flux:"}
_SHORT: Mapping[str, Mapping[str, str]] = {
    "slurm": {
        **{"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "t": "time", "p": "partition", "A": "account"},
        **{"q": "qos", "C": "constraint", "J": "job-name", "o": "output", "e": "error", "D": "chdir", "a": "array"},
        **{"G": "gpus", "W": "wait", "i": "input"},
    },
    "pbs": {"q": "partition", "A": "account", "N": "job-name", "o": "output", "e": "error", "j": "error", "J": "array"}
    | {"V": "export", "v": "export", "t": "array", "S": "shell"},
    "lsf": {"q": "partition", "P": "account", "W": "time", "J": "job-name", "o": "output", "e": "error"}
    | {"oo": "output", "eo": "error", "nnodes": "nodes", "U": "reservation", "env": "export", "cwd": "chdir"},
    "flux": {"N": "nodes", "t": "time", "q": "partition", "B": "account"},
}
_LONG = {"flux": {"time-limit": "time", "queue": "partition", "bank": "account", "cwd": "chdir"}}
_MAPPED = ("nodes", "ntasks-per-node", "time", "partition", "account", "qos", "constraint", "reservation", "chdir")
#: Directives that hidl does not carry over to its own job script, each with the reason or what to use instead.
_REPLACED = {
    "job-name": "the job is named after the run",
    "output": "the output is in the run's directory (hidl logs)",
    "error": "the output is in the run's directory (hidl logs)",
    "open-mode": "the output is in the run's directory (hidl logs)",
    "input": "the script reads hidl's standard input",
    "export": "the site's file sets which environment variables the job gets",
    "export-file": "the site's file sets which environment variables the job gets",
    "array": "the jobs of an array would share one directory; start a run for each value, or use --matrix",
    "shell": "the first line of the script names its interpreter; without one, it is bash",
    "parsable": "hidl submits the job",
    "wait": "hidl waits for the run unless --no-wait is given",
    "wrap": "the script is the program",
    "test-only": "use --dry-run",
}
#: Run options that affect only the ranks that hidl starts itself, and the resources that it requests for them.
_OF_LAUNCHES = {
    "gpus": "--gpus",
    "gpus_per_rank": "--gpus-per-rank",
    "memory": "--mem",
    "exclusive": "--exclusive",
    "share": "--share",
    "threads": "--threads",
    "device": "--device",
    "stack": "--stack",
    "env": "--env",
    "launcher": "--launcher",
    "mpi": "--mpi",
    "tuning": "--tune",
    "profile": "--profile",
}
#: Lines of hidl's own header that are kept because they name the job, its output, or an option that the script sets.
_KEPT = {
    "slurm": r"#SBATCH --(job-name|output|error|open-mode|export|time|partition|account|qos|constraint|reservation"
    r"|signal|requeue)\b",
    "pbs": r"#PBS -([NqAojeV]|l walltime)",
    "lsf": r"#BSUB -(J|o|e|q|P|G|W|U|env)\b",
    "flux": r"# flux: --(job-name|output|error|queue|bank|time-limit|requires)\b",
}
#: Lines of hidl's own header that specify the size of the job, by scheduler and option. They are kept if the script
#: sets this option.
_SIZES = {
    ("slurm", "nodes"): r"#SBATCH --nodes=",
    ("slurm", "ntasks-per-node"): r"#SBATCH --ntasks-per-node=",
    ("lsf", "nodes"): r"#BSUB -nnodes ",
    ("pbs", "nodes"): r"#PBS -l select=",
    ("flux", "nodes"): r"# flux: (-N|--nodes)",
}


@dataclass(frozen=True)
class Directive:
    """An option in a batch script: its ``name``, its ``value``, and the original words."""

    name: str
    value: str
    words: str


@dataclass(frozen=True)
class BatchScript:
    """A batch script as the program of a run.

    Attributes:
        system: Batch system to which its directives belong; empty if it has none.
        command: The command that starts the script: its interpreter, its file and its arguments.
        carried: Directives that are copied to the job's header.
        values: Values of the directives that became run options, by name.
        left_out: Descriptions of directives that are not carried over.
    """

    system: str
    command: tuple[str, ...]
    carried: tuple[Directive, ...] = ()
    values: Mapping[str, str] | None = None
    left_out: tuple[str, ...] = ()

    def header(self, own: Sequence[str], settings: Sequence[str], scheduler: str) -> tuple[str, ...]:
        """Return the header of the job script.

        It consists of hidl's own lines that the script does not replace, the script's directives, and the lines for the
        user's further options. If an option is repeated, batch systems use its last value.

        Args:
            own: The lines that hidl derives from the run options.
            settings: The lines for the user's further options, such as ``--after``.
            scheduler: Name of the site's scheduler.
        """
        if scheduler != self.system:
            return (*own, *settings)
        given = self.values or {}
        carried = {each.name for each in self.carried}
        sizes = [line for (system, name), line in _SIZES.items() if system == scheduler and name in given]
        if "chunks" in carried:  # the script's chunks contain the number of nodes
            sizes = []
        patterns = [_KEPT[scheduler], *sizes]
        kept = [line for line in own if any(re.match(pattern, line) for pattern in patterns)]
        if not {"qos", "constraint"} <= given.keys():  # set by the partition, not requested by the script
            others = "|".join(name for name in ("qos", "constraint") if name not in given)
            kept = [line for line in kept if not re.match(rf"#SBATCH --({others})=", line)]
        if "partition" in carried:
            kept = [
                line for line in kept if not re.match(r"#SBATCH --partition|#PBS -q|#BSUB -q|# flux: --queue", line)
            ]
        return (*kept, *(f"{_LINE_OF[scheduler]} {each.words}" for each in self.carried), *settings)


def read_batch_script(words: Sequence[str], directory: Path) -> tuple[str, list[Directive], tuple[str, ...]] | None:
    """Return a batch script's system, directives and command, or None for any other program.

    A shell script without directives is a batch script, too, if it starts ranks itself, as with ``srun``. Its system is
    then an empty string.

    Args:
        words: Words of a command: the script, possibly preceded by a shell.
        directory: Directory in which the command starts.
    """
    at = 1 if re.fullmatch(r"(ba|da|z|k)?sh", PurePath(words[0]).name) else 0
    if len(words) <= at:
        return None
    file = directory / words[at]
    try:
        is_small = file.is_file() and file.stat().st_size <= _LARGEST
        text = file.read_text(encoding="utf-8", errors="replace") if is_small else ""
    except (OSError, ValueError):
        return None
    if not text.lstrip().startswith("#"):
        return None
    first = text.splitlines()[0]
    interpreter = shlex.split(first[2:]) if first.startswith("#!") else [words[0] if at else "bash"]
    command = (*interpreter, str(file), *words[at + 1 :])
    for system, mark in _MARKS.items():
        if found := list(_directives(text, system, mark)):
            return system, found, command
    return ("", [], command) if starts_ranks(command, directory) else None


def _directives(text: str, system: str, mark: str) -> Iterator[Directive]:
    """Yield the directives before the first command; batch systems ignore any that follow it."""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return
        found = re.match(mark, line)
        if found:
            yield from _options(line[found.end() :], system)


def _options(text: str, system: str) -> Iterator[Directive]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    short, long = _SHORT[system], _LONG.get(system, {})
    for name, value, written in written_options(system, words):
        if system == "pbs" and name == "l":
            yield from _resources(value)
        elif written.startswith("--"):
            yield Directive(long.get(name, _whole(name, system)), value, written)
        else:
            yield Directive(short.get(name, name), value, written)


def _whole(name: str, system: str) -> str:
    """Return the full name of an sbatch option, which may be abbreviated, as in ``--out``."""
    longer = [known for known in (*_MAPPED, *_REPLACED) if known.startswith(name)]
    return longer[0] if system == "slurm" and len(longer) == 1 and len(name) > 2 and name != "ntasks" else name


def _resources(value: str) -> Iterator[Directive]:
    """Yield the resources in PBS's ``-l``, where the number of chunks is the number of nodes."""
    for part in value.split(","):
        name, _, amount = part.partition("=")
        if name == "walltime":
            yield Directive("time", amount, f"-l {part}")
            continue
        count = re.match(r"\d+(?=[:,]|$)", amount)
        if name in ("select", "nodes") and count and "+" not in amount:
            yield Directive("chunks", count[0], f"-l {part}")
        else:  # several kinds of chunks, or node names
            yield Directive("l", amount, f"-l {part}")


def as_program(
    request: RunOptions, site: Site, script: tuple[str, list[Directive], tuple[str, ...]]
) -> tuple[BatchScript, dict[str, object]]:
    """Return the script as the program of a run, and the options that its directives set.

    Options on hidl's command line take precedence over those in the script.

    Args:
        request: The run options.
        site: The site.
        script: Result of ``read_batch_script``.

    Raises:
        UsageError: A directive has an invalid value.
    """
    system, directives, command = script
    same = site.scheduler == system
    queues = {partition.queue or name: name for name, partition in site.partitions.items()}
    options: dict[str, object] = {}
    carried: list[Directive] = []
    values: dict[str, str] = {}
    left_out: list[str] = []
    fields = {"ntasks-per-node": "ranks_per_node", "chdir": "directory"}
    for each in directives:
        name, value = _name_at(site, system, each), each.value
        field = fields.get(name, name)
        given = getattr(request, field, None) if name in _MAPPED else None
        if reason := _why_left_out(name, each, system if same else None):
            left_out.append(f"{each.words}: {reason}")
            continue
        is_known = name in _MAPPED and (name != "partition" or value in queues or value in site.partitions)
        if is_known and given is None:
            options[field] = _value(name, queues.get(value, value) if name == "partition" else value, system, each)
        is_number = name != "nodes" or value.isdecimal()
        if is_known and is_number:
            values[name] = value
        if each.name == "chunks":
            words = each.words if given is None else re.sub(r"(select|nodes)=\d+", rf"\1={given}", each.words)
            each = replace(each, words=words)  # noqa: PLW2901 - with the number of nodes of the command line
        elif given is not None or (is_known and is_number):
            continue
        if same:
            carried.append(each)
        elif not is_known:
            left_out.append(f"{each.words}: {site.scheduler or 'this site'} has no counterpart")
    for name in ("nodes", "ntasks-per-node", "qos", "constraint"):
        if (given := getattr(request, fields.get(name, name))) is not None:
            values[name] = str(given)
    found = BatchScript(system, command, tuple(carried), values, tuple(left_out))
    return found, options


def _why_left_out(name: str, directive: Directive, scheduler: str | None) -> str | None:
    """Return the reason why a directive cannot be carried over to a site's job, or None if it can.

    Args:
        name: Name of the directive at the site, from ``_name_at``.
        directive: The directive.
        scheduler: The site's scheduler, or None if the script is for a different one.

    Raises:
        UsageError: The script has several components.
    """
    if directive.words in ("hetjob", "packjob"):
        raise UsageError(
            "a batch script with several components (hetjob) cannot be run", hint="run one script for each component"
        )
    if not name:
        return "not an option"
    if name in _REPLACED or scheduler is None or name in _MAPPED:
        return _REPLACED.get(name)
    rejected = reject_in_script(scheduler, directive.words)
    return None if rejected is None else f"{rejected.message}; use {rejected.instead}"


def _name_at(site: Site, system: str, directive: Directive) -> str:
    """Return the name of a directive at a site; for LSF, the site's policy defines the option for the account."""
    if system == "lsf" and directive.name in ("account", "G"):
        return "account" if directive.words.startswith(f"{site.policies.account_option} ") else "P"
    return "nodes" if directive.name == "chunks" else directive.name


def _value(name: str, text: str, system: str, directive: Directive) -> object:
    if name in ("nodes", "ntasks-per-node"):
        number = re.match(r"\d+", text)
        if number is None or int(number[0]) < 1:
            raise UsageError(f"{directive.words}: invalid number", hint="correct the script")
        return int(number[0])
    if name == "time" and system == "flux":
        units = {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0, "": 1.0}
        amount = re.fullmatch(r"([\d.]+)([smhd]?)", text)
        return str(max(1, round(float(amount[1]) * units[amount[2]]))) if amount else text
    if name == "time" and system == "lsf":
        return f"{text}:00" if ":" in text else text
    return text


def with_script(request: RunRequest, site: Site) -> tuple[RunRequest, BatchScript | None]:
    """Apply a batch script's directives to the run options, and return the options and the script.

    If the program is not a batch script, the options are unchanged, and the script is None.
    """
    directory = Path(request.directory or Path.cwd())
    found = read_batch_script(request.words, directory)
    if found is None:
        return request, None
    script, options = as_program(request, site, found)
    if "directory" in options:
        options["directory"] = str(directory / str(options["directory"]))
    if ignored := next((name for field, name in _OF_LAUNCHES.items() if getattr(request, field)), None):
        raise UsageError(
            f"a batch script requests its resources and starts its ranks itself: {ignored} does not apply",
            hint="change the script, or add a scheduler option with --scheduler-option",
        )
    if request.ranks_per_node is not None and site.scheduler != "slurm":
        raise UsageError(
            "--ranks-per-node does not apply to a batch script", hint="change the script's request and its launch line"
        )
    if request.scale is not None or request.matrix:
        raise UsageError(
            "a batch script runs once: --scale and --matrix do not apply",
            hint="pass its program after -- instead, for example: hidl run --scale 1,2 -- python train.py",
        )
    # The script itself requests the GPUs that it needs.
    partition = options.pop("partition", request.partition) or site.default_partition
    chosen = {"device": "cpu", **options, "partition": partition, "uses_mpi": False}
    return replace(request, command=script.command, **chosen), script  # type: ignore[arg-type]

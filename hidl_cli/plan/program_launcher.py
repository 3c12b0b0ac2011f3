"""Programs that launch processes: torchrun and accelerate are started once per node, and others are rejected."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from hidl_cli.errors import UsageError
from hidl_cli.plan.options import RunOptions
from hidl_cli.quoting import sh_line

TORCHRUN, ACCELERATE, DEEPSPEED = "torchrun", "accelerate launch", "deepspeed"

#: Launchers that start ranks.
_OF_RANKS = (
    "mpiexec",
    "mpirun",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    "mpirun_rsh",
    "srun",
    "horovodrun",
    "jsrun",
    "aprun",
    "ibrun",
)
#: Options of these launchers that take a value.
_WITH_VALUE = re.compile(
    r"-[nNcptAHfxo]|--?(np?|hosts?|hostfile|machinefile|map-by|bind-to|ppn|launcher|wdir)"
    r"|--(cpu-bind|gpu-bind|num-proc|network-interface|ntasks|nodes|cpus-per-task|ntasks-per-node|mpi)"
)
_COUNTS = ("-n", "-np", "--n", "--np", "--num-proc", "--ntasks")
_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}
_SHELL = re.compile(r"(ba|da|z|k)?sh")
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
#: Programs that start another program: their options that are followed by a value, and the number of arguments between
#: the options and the other program.
_WRAPPERS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "env": (("-u", "--unset", "-C", "--chdir"), 0),
    "nice": (("-n", "--adjustment"), 0),
    "ionice": (("-c", "--class", "-n", "--classdata"), 0),
    "nohup": ((), 0),
    "setsid": ((), 0),
    "time": (("-o", "--output", "-f", "--format"), 0),
    "timeout": (("-k", "--kill-after", "-s", "--signal"), 1),
    "stdbuf": (("-i", "--input", "-o", "--output", "-e", "--error"), 0),
    "taskset": ((), 1),
    "numactl": (("-N", "-m", "-C", "-i", "-p"), 0),
    "exec": (("-a",), 0),
    "command": ((), 0),
}
#: Options of torchrun that take no value.
_FLAGS_OF_TORCHRUN = ("--standalone", "--no-python", "--run-path", "-m", "--module", "--virtual-local-rank")
#: A command in shell text: it follows the beginning of a line, a separator or a keyword.
_COMMANDS = re.compile(r"(?:^|[;&|(]|\b(?:then|do|else)\s)[ \t]*([^\s;&|()#][^\n;&|]*)", re.MULTILINE)
_LARGEST_SCRIPT = 1 << 18  # bytes


@dataclass(frozen=True)
class ProgramLauncher:
    """A launcher in a user's command.

    Attributes:
        name: ``torchrun``, ``accelerate launch``, ``deepspeed``, or the name of a launcher that starts ranks.
        words: The words after the launcher: its options, the program and the program's arguments.
        in_shell: Whether a shell starts the launcher, in which case its words cannot be changed.
    """

    name: str
    words: tuple[str, ...]
    in_shell: bool = False

    def value(self, *names: str) -> str | None:
        """Return the value of a launcher option, whose name may contain ``-`` or ``_``."""
        words = list(self.words)
        while words:
            option, equals, value = words.pop(0).partition("=")
            option = option.replace("_", "-")
            if option in names:
                return value if equals else next(iter(words), None)
            if option.endswith(".py") or (self.name == TORCHRUN and not option.startswith("-")):
                break  # the program
            if self.name == TORCHRUN and not equals and option not in _FLAGS_OF_TORCHRUN:
                del words[:1]
        return None


def find_launcher(command: Sequence[str], directory: Path | None = None) -> ProgramLauncher | None:
    """Return the launcher that a command starts, or None if it starts none.

    Args:
        command: Words of the command.
        directory: Directory in which the command starts and from which shell scripts are read.
    """
    words = _without_wrappers(command)
    if not words:
        return None
    name, rest = PurePath(words[0]).name, words[1:]
    if _PYTHON.fullmatch(name):
        at = rest.index("-m") if "-m" in rest else len(rest)
        module = rest[at + 1] if at + 1 < len(rest) else ""
        before_script = not any(word.endswith(".py") for word in rest[:at])
        return (
            ProgramLauncher(_MODULES[module], tuple(rest[at + 2 :])) if module in _MODULES and before_script else None
        )
    if name in (TORCHRUN, DEEPSPEED) or name in _OF_RANKS:
        return ProgramLauncher(name, tuple(rest))
    if name == "accelerate" and rest[:1] == ["launch"]:
        return ProgramLauncher(ACCELERATE, tuple(rest[1:]))
    if name == "flux" and rest[:1] in (["run"], ["submit"]):
        return ProgramLauncher(f"flux {rest[0]}", tuple(rest[1:]))
    text = _shell_text(words, directory)
    return None if text is None else next(_in_shell(text), None)


def starts_ranks(command: Sequence[str], directory: Path) -> bool:
    """Return whether a command is a shell script that starts ranks with a launcher such as ``srun`` or ``mpiexec``."""
    launcher = find_launcher(command, directory)
    return launcher is not None and launcher.in_shell and (launcher.name in _OF_RANKS or launcher.name[:5] == "flux ")


def _without_wrappers(command: Sequence[str]) -> list[str]:
    """Return a command without leading programs that only start another one, such as ``env`` and ``timeout``."""
    words = list(command)
    while words:
        name = PurePath(words[0]).name
        if name in _WRAPPERS:
            with_value, before = _WRAPPERS[name]
            del words[0]
            while words and words[0].startswith("-"):
                del words[: 2 if words[0] in with_value else 1]
            del words[:before]
        elif _ASSIGNMENT.match(words[0]):
            del words[0]
        else:
            break
    return words


def _shell_text(words: Sequence[str], directory: Path | None) -> str | None:
    """Return the text that a shell executes, from ``-c`` or from a script, or None if the program is not a shell."""
    is_shell = _SHELL.fullmatch(PurePath(words[0]).name) is not None
    for at, word in enumerate(words[1:], start=1):
        if is_shell and re.fullmatch(r"-[a-z]*c", word):
            return next(iter(words[at + 1 : at + 2]), None)
        if not word.startswith("-"):
            break
    file = next((word for word in words[1:] if not word.startswith("-")), "") if is_shell else words[0]
    if directory is None or not file or (not is_shell and "/" not in file):
        return None
    try:
        path = directory / file
        is_small = path.stat().st_size <= _LARGEST_SCRIPT
        text = path.read_text(encoding="utf-8", errors="replace") if is_small else ""
    except (OSError, ValueError):
        return None
    return text if is_shell or re.match(r"#!.*\b(ba|da|z|k)?sh\b", text) else None


def _in_shell(text: str) -> Iterator[ProgramLauncher]:
    joined = text.replace("\\\n", " ")
    for found in _COMMANDS.finditer(joined):
        try:
            words = shlex.split(found[1], comments=True)
        except ValueError:
            words = found[1].split()
        launcher = find_launcher(words)
        if launcher is not None:
            yield ProgramLauncher(launcher.name, launcher.words, in_shell=True)


def processes_per_node(
    launcher: ProgramLauncher, options: RunOptions, *, nodes: int, gpus: int | None, least_nodes: int | None = None
) -> int:
    """Return the number of processes that torchrun or accelerate starts on each node.

    Args:
        launcher: The launcher.
        options: The run options.
        nodes: Number of nodes.
        gpus: Number of GPUs on each node, if the run uses them.
        least_nodes: Smallest number of nodes of a job; None if each job has ``nodes``.

    Raises:
        UsageError: The launcher is unsupported, or its options contradict the run options.
    """
    if least_nodes is not None:
        _require_variable_nodes(launcher, f"{least_nodes} to {nodes}")
    if launcher.name == TORCHRUN:
        given = _processes_of_torchrun(launcher, options, nodes, gpus)
    elif launcher.name == ACCELERATE:
        given = _processes_of_accelerate(launcher, options, nodes, gpus)
    else:
        raise _rejected(launcher, options)
    ranks = options.ranks_per_node
    if given is not None and ranks not in (None, 1):
        raise UsageError(
            f"--ranks-per-node {ranks} would start {launcher.name} {ranks} times on each node, "
            f"each with {given} process(es)",
            hint=f"run: {_line(options, options.words)}",
        )
    return given or ranks or gpus or 1


def _require_variable_nodes(launcher: ProgramLauncher, nodes: str) -> None:
    """Raise ``UsageError`` if an option sets the number of nodes, although the jobs have different numbers of them."""
    of_nodes = {TORCHRUN: ["--nnodes"], ACCELERATE: ["--num-machines", "--num-processes"]}
    for name in of_nodes.get(launcher.name, ()):
        given = launcher.value(name)
        if given is not None and not _is_variable(given, "{nodes}"):
            raise UsageError(
                f"{launcher.name} {name} is {given} in each job, but jobs have {nodes} nodes",
                hint=f"omit {name}: hidl sets it for each job",
            )


def _processes_of_torchrun(launcher: ProgramLauncher, options: RunOptions, nodes: int, gpus: int | None) -> int | None:
    most = launcher.value("--nnodes")
    if most is not None and not _is_variable(most, "{nodes}") and most != str(nodes):
        raise UsageError(
            f"torchrun --nnodes is {most}, but the run has {nodes} node(s)",
            hint=f"omit --nnodes, and set the nodes with hidl run --nodes {nodes if ':' in most else most}",
        )
    if nodes > 1 and "--standalone" in launcher.words:
        raise UsageError(
            f"torchrun --standalone would form {nodes} separate worlds, one on each node",
            hint=f"run: {_line(options, [word for word in options.words if word != '--standalone'])}",
        )
    if nodes > 1 and (launcher.value("--node-rank") or "").isdecimal():
        raise UsageError(
            f"torchrun --node-rank would be the same on all {nodes} nodes",
            hint="omit it: hidl sets it for each node",
        )
    for name in ("--rdzv-endpoint", "--master-addr"):
        if nodes > 1 and re.match(r"localhost\b|127\.", launcher.value(name) or ""):
            raise UsageError(
                f"torchrun {name} {launcher.value(name)}: on each of {nodes} nodes, this is the node itself",
                hint="omit it: hidl sets the address of the first node",
            )
    given = launcher.value("--nproc-per-node")
    if given is None or given.isdecimal():
        return int(given) if given else None
    return gpus if given in ("gpu", "auto") else None


def _is_variable(value: str, placeholder: str) -> bool:
    """Return whether an option's value is known only in the job: hidl's placeholder, or a shell's variable."""
    return value == placeholder or "$" in value


def _processes_of_accelerate(
    launcher: ProgramLauncher, options: RunOptions, nodes: int, gpus: int | None
) -> int | None:
    program = list(launcher.words)
    at = next((at for at, word in enumerate(program) if word.endswith(".py")), 0)
    without = ["python", *program[at:]]
    if not gpus:
        ranks = options.ranks_per_node or launcher.value("--num-processes") or 2
        raise UsageError(
            "accelerate launch starts one process on nodes without GPUs, whatever --num_processes is",
            hint=f"run: {_line(options, without, ranks=ranks)}",
        )
    if launcher.in_shell:
        raise UsageError(
            "accelerate launch cannot be started by a shell", hint=f"run: {_line(options, without, ranks=gpus)}"
        )
    machines = launcher.value("--num-machines")
    if machines is not None and not _is_variable(machines, "{nodes}") and machines != str(nodes):
        raise UsageError(
            f"accelerate --num_machines is {machines}, but the run has {nodes} node(s)",
            hint="omit --num_machines, and set the nodes with hidl run --nodes",
        )
    total = launcher.value("--num-processes")
    if total is None:
        return None
    if not total.isdecimal() or int(total) % nodes:
        raise UsageError(
            f"accelerate --num_processes {total} is not a multiple of {nodes} node(s)", hint="omit --num_processes"
        )
    return int(total) // nodes


def _rejected(launcher: ProgramLauncher, options: RunOptions) -> UsageError:
    """Return the error for a launcher that hidl replaces, with the command line to use instead."""
    program = list(_program(launcher))
    if launcher.name == DEEPSPEED:
        line = _line(options, ["torchrun", *program])
        return UsageError("deepspeed starts its processes through its own host file", hint=f"run: {line}")
    own = replace(launcher, words=launcher.words[: len(launcher.words) - len(program)])
    count = next(filter(None, map(own.value, _COUNTS)), None)
    ranks = count if count and count.isdecimal() and options.nodes in (None, 1) else options.ranks_per_node
    if launcher.in_shell:
        line = f"remove {launcher.name} from the command; hidl starts it on each rank (--nodes, --ranks-per-node)"
    else:
        line = f"run: {_line(options, program, ranks=ranks)}"
    return UsageError(
        f"{launcher.name} cannot be the program: it would start its own ranks within each rank", hint=line
    )


def _program(launcher: ProgramLauncher) -> Iterator[str]:
    """Yield the words of the program that the launcher starts, without the launcher itself or its options."""
    words = iter(launcher.words)
    for word in words:
        if launcher.name != DEEPSPEED and _WITH_VALUE.fullmatch(word):
            next(words, None)
        elif word == "--mca":
            next(words, None), next(words, None)
        elif launcher.name == DEEPSPEED and word.startswith("-") and "=" not in word:
            next(words, None)
        elif not word.startswith("-") or word == "--":
            if word != "--":
                yield word
            yield from words


def _line(options: RunOptions, words: Sequence[str], *, ranks: object = None) -> str:
    """Return the ``hidl run`` command line that starts ``words``, for hints."""
    given = {
        "--site": options.site,
        "--stack": options.stack,
        "--nodes": options.nodes,
        "--ranks-per-node": ranks,
    }
    chosen = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return sh_line(["hidl", "run", *chosen, *([] if options.uses_mpi else ["--no-mpi"]), "--", *words])

"""The user's own program: its file, its interpreter, and the MPI library that it is linked to."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.errors import HidlError
from hidl_cli.inputs.overlay import list_all
from hidl_cli.launch.launchers.contract import Launch
from hidl_cli.mpi import ABI_TITLES, Abi, abi_of
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.parameters import arguments, command
from hidl_cli.plan.program import compiled_by
from hidl_cli.quoting import sh
from hidl_cli.site.probes.host import Host
from hidl_cli.stack import content
from hidl_cli.stack.checks import load_stack
from hidl_workloads.doctor.finding import Evidence, Rules
from hidl_workloads.own_program import decode

_INTERPRETER = re.compile(r"(python|bash|sh|perl|julia|Rscript)[0-9.]*")
_INTERPRETER_OF = {".py": "python", ".pl": "perl", ".jl": "julia", ".R": "Rscript"}
_STARTER = "hidl_workloads.own_program"
_LARGEST = 2**20  # maximum size of a script to read, in bytes
_HEAD = 256  # number of bytes in which the kernel looks for a #! line
#: Program that searches for modules as the script does: in the script's directory instead of the current one.
_NOT_FOUND = """import sys
sys.path[0] = sys.argv[1]
import importlib.util as util
print(*[name for name in sys.argv[2:] if util.find_spec(name) is None])"""
_STACKS: dict[Abi, str] = {"mpich": "mpi", "openmpi": "openmpi"}


@dataclass(frozen=True)
class OwnProgram:
    """The program that each rank starts in ``directory``.

    Attributes:
        file: The program's file, or the script passed to an interpreter.
        directory: Directory in which the ranks start.
        exists: Whether the file is found, or None if unknown.
        in_directory: Whether a program that is not on PATH exists in ``directory``.
        is_executable: Whether the file is executable, or None if unknown or not required.
        missing_interpreter: Interpreter in a script's ``#!`` line, if the interpreter is not found. It is empty if a
            script has no ``#!`` line.
        missing_packages: Packages that a Python script imports, but that its interpreter does not find. Each is paired
            with a stack that contains it, or with None.
        stack: Stack of the plan.
        environment: Directory of the user's own environment, if this replaces the stack.
        linked: ABI of the MPI library that the program is linked to, or None if unknown or not linked.
        abi: ABI of the ranks' MPI library.
        family: Family of the ranks' MPI library.
        nodes: Largest number of nodes in any step.
        uses_gloo: Whether the script chooses gloo for its process group.
    """

    file: str = ""
    directory: str = ""
    exists: bool | None = None
    in_directory: bool = False
    is_executable: bool | None = None
    missing_interpreter: str | None = None
    missing_packages: tuple[tuple[str, str | None], ...] = ()
    stack: str = ""
    environment: str | None = None
    linked: Abi | None = None
    abi: Abi | None = None
    family: str = ""
    nodes: int = 1
    uses_gloo: bool = False


def probe(context: Context) -> OwnProgram:
    """Examine the planned run's program, if it is the user's own and this host is part of the site."""
    plan = context.plan
    program = plan.workload.program_for(plan.parameters) if plan is not None else None
    if plan is None or program is None or program.directory is None or not context.is_here or plan.container:
        return OwnProgram()
    words = [*command(program, plan.parameters), *arguments(program, plan.parameters, plan.workload.parameters)]
    directory = Path(program.directory)
    job_program = OwnProgram(
        words[0],
        program.directory,
        stack=plan.stack,
        environment=plan.user_environment.directory if plan.user_environment else None,
        abi=plan.mpi.traits.abi,
        family=plan.mpi.family,
        nodes=max(step.placement.nodes for step in plan.steps),
        uses_gloo=any(word.endswith(".py") and _chooses_gloo(directory / word) for word in words),
    )
    if script := _script(words):
        python = None if plan.modules else _python(plan.steps[0].launch)
        missing = _missing_packages(context.host, python, directory / script)
        return replace(job_program, file=script, exists=(directory / script).exists(), missing_packages=missing)
    file = directory / words[0]
    if os.sep not in words[0]:
        found = _is_found(words[0], plan, context.host)
        exists = True if found else None if plan.modules else False
        return replace(job_program, exists=exists, in_directory=not found and file.is_file())
    linked = next((abi for name in content.needed(file) or () if (abi := abi_of(name))), None)
    can_run = os.access(file, os.X_OK) and not file.is_dir() if file.exists() else None
    interpreter = _shebang_interpreter(file) if can_run else None
    is_missing = interpreter == "" or (
        interpreter is not None and not plan.modules and not _is_found(interpreter, plan, context.host)
    )
    return replace(
        job_program,
        exists=file.exists(),
        is_executable=can_run,
        missing_interpreter=interpreter if is_missing else None,
        linked=linked,
    )


def _script(words: Sequence[str]) -> str | None:
    """Return the script passed to an interpreter, or None for options such as ``-c`` and ``-m``."""
    if len(words) < 2 or words[1].startswith("-") or not _INTERPRETER.fullmatch(Path(words[0]).name):
        return None
    return words[1]


def _chooses_gloo(script: Path) -> bool:
    """Return whether a Python file calls ``init_process_group`` with the gloo backend."""
    calls = [node for node in ast.walk(_parsed(script)) if isinstance(node, ast.Call)]
    initial = [call for call in calls if ast.unparse(call.func).split(".")[-1] == "init_process_group"]
    given = [[*call.args[:1], *(each.value for each in call.keywords if each.arg == "backend")] for call in initial]
    return any(isinstance(each, ast.Constant) and each.value == "gloo" for values in given for each in values)


def _is_found(program: str, plan: Plan, host: Host) -> bool:
    """Return whether the job can find a program: its path must exist, or its name must be in the stack or on PATH."""
    if os.sep in program:
        return Path(program).exists()
    return (Path(plan.prefix) / "bin" / program).is_file() or host.which(program) is not None


def _shebang_interpreter(file: Path) -> str | None:
    """Return the interpreter in a script's ``#!`` line, or the program that the line passes to ``env``.

    Returns an empty string for text without a ``#!`` line, and None for binaries, empty and unreadable files.
    """
    try:
        with file.open("rb") as opened:
            start = opened.read(_HEAD)
    except OSError:
        return None
    if b"\0" in start or start.strip() == b"" or start.startswith(b"\x7fELF"):
        return None
    first = start.split(b"\n")[0].decode("utf-8", "replace")
    words = re.split("[ \t]+", first[2:].strip(" \t")) if first.startswith("#!") else [""]
    if PurePath(words[0]).name != "env":
        return words[0]
    return next((word for word in words[1:] if not word.startswith("-") and "=" not in word), words[0])


def _python(launch: Launch) -> str | None:
    """Return the path of the Python that the ranks start, or None for other programs and for relative paths."""
    words = list(map(decode, launch.words))
    if _STARTER not in words[:-2] or not Path(word := words[words.index(_STARTER) + 2]).is_absolute():
        return None
    return word if Path(word).name.startswith("python") else None


def _missing_packages(host: Host, python: str | None, script: Path) -> tuple[tuple[str, str | None], ...]:
    names = imports_of(script) if python is not None else ()
    if python is None or not names:
        return ()
    found = host.ask(python, "-c", _NOT_FOUND, str(script.parent), *names) or ""
    return tuple((name, _stack_with(name)) for name in found.split() if name in names)


def imports_of(script: Path) -> tuple[str, ...]:
    """Return the packages that a Python file imports unconditionally, or none if the file changes ``sys.path``."""
    module = _parsed(script)
    if any(isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path" for node in ast.walk(module)):
        return ()
    body = module.body
    modules = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in body if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return tuple(dict.fromkeys(module.partition(".")[0] for module in modules))


def _parsed(script: Path) -> ast.Module:
    """Return a Python file's syntax tree, which is empty if the file is too large or cannot be parsed."""
    try:
        return ast.parse(script.read_text(encoding="utf-8") if script.stat().st_size <= _LARGEST else "")
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.Module([], [])


def _stack_with(package: str) -> str | None:
    """Return the smallest known stack that contains a package."""
    sizes = {}
    for entry in list_all("stack"):
        with suppress(HidlError):
            packages = load_stack(entry.name).packages
            if package in packages:
                sizes[entry.name] = len(packages)
    return min(sizes, key=lambda name: sizes[name], default=None)


RULES: Rules[OwnProgram] = Rules()


@RULES.rule(
    "HD011",
    "The program is linked to another MPI library",
    severity="error",
    why="MPICH and its derivatives share one binary interface (libmpi.so.12), Open MPI has another (libmpi.so.40). "
    "If the launcher belongs to the other library, N ranks start as N worlds of one rank and exit with status 0.",
)
def another_library(facts: OwnProgram) -> Iterator[Evidence]:
    """Report an error if the program's libmpi has a different ABI than the ranks' library."""
    if facts.linked is None or facts.abi is None or facts.linked == facts.abi:
        return
    stack = _STACKS[facts.linked]
    yield Evidence(
        f"{facts.file} is linked to {ABI_TITLES[facts.linked]}, but the ranks use {facts.family}",
        f"hidl run --stack {stack}, or compile it for {ABI_TITLES[facts.abi]}: "
        f"hidl stack exec {_STACKS[facts.abi]} -- mpicc ...",
    )


@RULES.rule(
    "HD012",
    "The program's file is not found",
    severity="error",
    why="Each rank starts the program in the current directory of hidl and would exit with status 127.",
)
def not_found(facts: OwnProgram) -> Iterator[Evidence]:
    """Report an error if the path does not exist, or if a name without a path is neither in the stack nor on PATH."""
    if facts.exists is not False:
        return
    if facts.in_directory:
        yield Evidence(f"{facts.file} is not on PATH", f"use the file's path: ./{sh(facts.file)}")
    elif os.sep in facts.file or "." in facts.file:
        fix = "start hidl in the directory of the file, or use the file's full path"
        yield Evidence(f"{facts.file} not found in {facts.directory}", fix)
    else:
        yield Evidence(f"{facts.file} is neither in the stack nor on PATH", "check the spelling or use the file's path")


@RULES.rule(
    "HD013",
    "The program's file cannot be executed",
    severity="error",
    why="Each rank would exit with status 126 or 127.",
)
def not_executable(facts: OwnProgram) -> Iterator[Evidence]:
    """Report an error for source code, directories, files without execute permission, and unknown interpreters."""
    if facts.is_executable is False and (compile_command := compiled_by(facts.file)) is not None:
        yield Evidence(f"{facts.file} is source code", compile_command)
    elif facts.is_executable is False:
        yield Evidence(f"{facts.file} in {facts.directory}", f"chmod +x {sh(facts.file)}, or specify its interpreter")
    elif facts.missing_interpreter == "":
        yield Evidence(
            f"{facts.file} is a text file without a #! line",
            f"specify its interpreter: hidl run ... -- {_INTERPRETER_OF.get(Path(facts.file).suffix, 'bash')} "
            f"{sh(facts.file)}, or add a first line such as #!/usr/bin/env python",
        )
    elif facts.missing_interpreter is not None and facts.missing_interpreter.endswith("\r"):
        yield Evidence(
            f"{facts.file} has Windows line endings (CR LF), so its interpreter is not found",
            f"sed -i 's/\\r$//' {sh(facts.file)}",
        )
    elif facts.missing_interpreter is not None:
        yield Evidence(
            f"{facts.missing_interpreter} in the #! line of {facts.file} is not found",
            "use an existing interpreter, for example: #!/usr/bin/env python",
        )


@RULES.rule(
    "HD014",
    "The stack lacks a package that the program imports",
    severity="error",
    why="The job would wait for its nodes and then fail with ModuleNotFoundError.",
)
def missing_package(facts: OwnProgram) -> Iterator[Evidence]:
    """Report an error if a top-level import of the script is not found by the Python that will run it."""
    if not facts.missing_packages:
        return
    names = [name for name, _ in facts.missing_packages]
    if facts.environment is not None:
        yield Evidence(
            f"{facts.file} imports {', '.join(names)}, which {facts.environment} does not contain",
            f"{sh(facts.environment)}/bin/python -m pip install {' '.join(map(sh, names))}",
        )
        return
    stacks = {stack for _, stack in facts.missing_packages}
    stack = stacks.pop() if len(stacks) == 1 else None
    if stack is not None:
        fix = f"hidl run --stack {sh(stack)} (hidl install {sh(stack)})"
    else:
        packages = " ".join(f"--with {sh(name)}" for name in names)
        fix = f"hidl install {sh(facts.stack)} {packages} --as mine, then: hidl run --stack mine"
    yield Evidence(f"{facts.file} imports {', '.join(names)}, which stack {facts.stack} does not contain", fix)


@RULES.rule(
    "HD016",
    "The program uses gloo on several nodes",
    severity="info",
    why="gloo connects every pair of ranks by a TCP socket. It does not use the network's own transport, and with "
    "thousands of ranks, it sometimes fails to start. The stack pytorch has MPI for torch.distributed.",
)
def gloo_on_nodes(facts: OwnProgram) -> Iterator[Evidence]:
    """Report a program that chooses gloo and runs on several nodes."""
    if facts.uses_gloo and facts.nodes > 1:
        yield Evidence(
            f'init_process_group("gloo") on {facts.nodes} nodes',
            'init_process_group("mpi") with the stack pytorch (docs/how-to/move-to-mpi.md)',
        )


SUBJECTS = (Subject(probe, RULES, before_runs=True),)

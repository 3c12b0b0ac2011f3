"""A program of the user's own: its file, and the MPI library that it is linked to."""

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
from hidl_cli.plan.own import compiled_by
from hidl_cli.plan.parameters import arguments, command
from hidl_cli.quoting import sh
from hidl_cli.site.probes.host import Host
from hidl_cli.stack import content
from hidl_cli.stack.checks import load_stack
from hidl_workloads.doctor.finding import Evidence, Rules
from hidl_workloads.own_program import decode

_INTERPRETER = re.compile(r"(python|bash|sh|perl|julia|Rscript)[0-9.]*")
_INTERPRETER_OF = {".py": "python", ".pl": "perl", ".jl": "julia", ".R": "Rscript"}
_STARTER = "hidl_workloads.own_program"
_LARGEST = 2**20  # bytes of a script that is read
_HEAD = 256  # bytes of a program that the kernel looks at
#: Finds modules as the script would: beside it, and not in the directory that hidl was called in.
_NOT_FOUND = """import sys
sys.path[0] = sys.argv[1]
import importlib.util as util
print(*[name for name in sys.argv[2:] if util.find_spec(name) is None])"""
_STACKS: dict[Abi, str] = {"mpich": "mpi", "openmpi": "openmpi"}


@dataclass(frozen=True)
class OwnProgram:
    """The program that each rank starts in ``directory``.

    ``file``: it, or the script of its interpreter, as named. ``is_there``: it is found; None: unknown. ``beside``: a
    program named without a directory lies in ``directory``, where no shell looks. ``is_executable``: None if unknown,
    or not required. ``no_interpreter``: it is text, and its ``#!`` line names this interpreter, which is not found;
    empty: it has no such line. ``lacking``: packages that a Python script imports and its interpreter does not find,
    each with a stack that holds it, if there is one.
    ``stack``: the plan's; ``environment``: the directory of the user's own in its place. ``linked``: the ABI that the
    program is linked to, None if unknown or none; ``abi`` and ``family``: of the ranks' MPI library.
    """

    file: str = ""
    directory: str = ""
    is_there: bool | None = None
    beside: bool = False
    is_executable: bool | None = None
    no_interpreter: str | None = None
    lacking: tuple[tuple[str, str | None], ...] = ()
    stack: str = ""
    environment: str | None = None
    linked: Abi | None = None
    abi: Abi | None = None
    family: str = ""


def probe(context: Context) -> OwnProgram:
    """The program of the planned run, if it starts in a directory of its own and this host is part of the site."""
    plan = context.plan
    program = plan.workload.program_for(plan.parameters) if plan is not None else None
    if plan is None or program is None or program.directory is None or not context.is_here:
        return OwnProgram()
    words = [*command(program, plan.parameters), *arguments(program, plan.parameters, plan.workload.parameters)]
    directory = Path(program.directory)
    of_the_plan = OwnProgram(
        words[0],
        program.directory,
        stack=plan.stack,
        environment=plan.user_environment.directory if plan.user_environment else None,
        abi=plan.mpi.traits.abi,
        family=plan.mpi.family,
    )
    if script := _script(words):
        lacking = () if plan.modules else _lacking(context.host, _interpreter(plan.steps[0].launch), directory / script)
        return replace(of_the_plan, file=script, is_there=(directory / script).exists(), lacking=lacking)
    file = directory / words[0]
    if os.sep not in words[0]:
        found = _is_found(words[0], plan, context.host)
        is_there = True if found else None if plan.modules else False
        return replace(of_the_plan, is_there=is_there, beside=not found and file.is_file())
    linked = next((abi for name in content.needed(file) or () if (abi := abi_of(name))), None)
    can_run = os.access(file, os.X_OK) and not file.is_dir() if file.exists() else None
    named = _interpreter_of(file) if can_run else None
    lacking_one = named is not None and (not named or not (plan.modules or _is_found(named, plan, context.host)))
    return replace(
        of_the_plan,
        is_there=file.exists(),
        is_executable=can_run,
        no_interpreter=named if lacking_one else None,
        linked=linked,
    )


def _script(words: Sequence[str]) -> str | None:
    """Return the file that an interpreter is given; None for options such as ``-c`` and ``-m``."""
    if len(words) < 2 or words[1].startswith("-") or not _INTERPRETER.fullmatch(Path(words[0]).name):
        return None
    return words[1]


def _is_found(program: str, plan: Plan, host: Host) -> bool:
    """Whether the job finds a program, by its path, in the stack or on PATH."""
    if os.sep in program:
        return Path(program).exists()
    return (Path(plan.prefix) / "bin" / program).is_file() or host.which(program) is not None


def _interpreter_of(file: Path) -> str | None:
    """Return what the ``#!`` line of a script names, for ``env`` its first word; empty if it has no such line.

    None for a program, and for a file that cannot be read, which may be anything.
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


def _interpreter(launch: Launch) -> str | None:
    """Return the Python that the ranks start, as a path; None if it is found at run time, or is another program."""
    words = list(map(decode, launch.words))
    if _STARTER not in words[:-2] or not Path(word := words[words.index(_STARTER) + 2]).is_absolute():
        return None
    return word if Path(word).name.startswith("python") else None


def _lacking(host: Host, python: str | None, script: Path) -> tuple[tuple[str, str | None], ...]:
    names = imports_of(script) if python is not None else ()
    if python is None or not names:
        return ()
    found = host.ask(python, "-c", _NOT_FOUND, str(script.parent), *names) or ""
    return tuple((name, _stack_with(name)) for name in found.split() if name in names)


def imports_of(script: Path) -> tuple[str, ...]:
    """Return the packages that a Python file imports whatever happens; none if it changes the search path, too."""
    try:
        text = script.read_text(encoding="utf-8") if script.stat().st_size <= _LARGEST else ""
        body = ast.parse(text).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    if "sys.path" in text:
        return ()
    modules = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in body if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return tuple(dict.fromkeys(module.partition(".")[0] for module in modules))


def _stack_with(package: str) -> str | None:
    """Return the smallest known stack that holds the package."""
    sizes = {}
    for entry in list_all("stack"):
        with suppress(HidlError):
            held = load_stack(entry.name).packages
            sizes.update({entry.name: len(held)} if package in held else {})
    return min(sizes, key=lambda name: sizes[name], default=None)


RULES: Rules[OwnProgram] = Rules()


@RULES.rule(
    "HD011",
    "The program is linked to another MPI library",
    severity="error",
    why="MPICH and its derivatives share one binary interface (libmpi.so.12), Open MPI has another (libmpi.so.40). "
    "Started by the launcher of the other, N ranks come up as N worlds of one rank, and exit with status 0.",
)
def another_library(facts: OwnProgram) -> Iterator[Evidence]:
    """The program's libmpi has another ABI than the ranks' library."""
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
    why="Each rank starts the program in the directory in which hidl was started, and would exit with status 127.",
)
def not_found(facts: OwnProgram) -> Iterator[Evidence]:
    """It is neither in the directory nor, without a directory in its name, on PATH."""
    if facts.is_there is not False:
        return
    if facts.beside:
        yield Evidence(f"{facts.file} is not on PATH", f"name it by its path: ./{sh(facts.file)}")
    elif os.sep in facts.file or "." in facts.file:
        yield Evidence(f"{facts.file} not found in {facts.directory}", "start hidl where it is, or name it by its path")
    else:
        yield Evidence(
            f"{facts.file} is neither in the stack nor on PATH", "check its spelling, or name it by its path"
        )


@RULES.rule(
    "HD013",
    "The program's file cannot be executed",
    severity="error",
    why="Each rank would exit with status 126 or 127.",
)
def not_executable(facts: OwnProgram) -> Iterator[Evidence]:
    """The file is source code, a directory or not executable, or a script whose interpreter is not known or found."""
    if facts.is_executable is False and (compiled := compiled_by(facts.file)) is not None:
        yield Evidence(f"{facts.file} is source code", compiled)
    elif facts.is_executable is False:
        yield Evidence(f"{facts.file} in {facts.directory}", f"chmod +x {sh(facts.file)}, or name its interpreter")
    elif facts.no_interpreter == "":
        yield Evidence(
            f"{facts.file} is text without a #! line",
            f"name its interpreter: hidl run ... -- {_INTERPRETER_OF.get(Path(facts.file).suffix, 'bash')} "
            f"{sh(facts.file)}, or begin it with a line such as #!/usr/bin/env python",
        )
    elif facts.no_interpreter is not None and facts.no_interpreter.endswith("\r"):
        yield Evidence(
            f"the lines of {facts.file} end in CR LF, as on Windows, so that its interpreter is not found",
            f"sed -i 's/\\r$//' {sh(facts.file)}",
        )
    elif facts.no_interpreter is not None:
        yield Evidence(
            f"the #! line of {facts.file} names {facts.no_interpreter}, which is not found",
            "name one that is there: #!/usr/bin/env python, for example",
        )


@RULES.rule(
    "HD014",
    "The stack lacks a package that the program imports",
    severity="error",
    why="The job would wait for its nodes, and end with ModuleNotFoundError.",
)
def lacking_package(facts: OwnProgram) -> Iterator[Evidence]:
    """A top-level import of the script is not found by the Python that will run it."""
    if not facts.lacking:
        return
    names = [name for name, _ in facts.lacking]
    if facts.environment is not None:
        yield Evidence(
            f"{facts.file} imports {', '.join(names)}, which {facts.environment} does not hold",
            f"{sh(facts.environment)}/bin/python -m pip install {' '.join(map(sh, names))}",
        )
        return
    with_all = {stack for _, stack in facts.lacking}
    stack = with_all.pop() if len(with_all) == 1 else None
    if stack is not None:
        fix = f"hidl run --stack {sh(stack)} (hidl install {sh(stack)})"
    else:
        packages = " ".join(f"--with {sh(name)}" for name in names)
        fix = f"hidl install {sh(facts.stack)} {packages} --as mine, then hidl run --stack mine"
    yield Evidence(f"{facts.file} imports {', '.join(names)}, which stack {facts.stack} does not hold", fix)


SUBJECT = Subject(probe, RULES, before_runs=True)

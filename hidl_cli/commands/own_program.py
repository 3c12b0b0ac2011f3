"""User programs: the arguments after ``--`` of ``hidl run``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from hidl_cli.errors import UsageError
from hidl_cli.quoting import sh_line

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan

_COMMAND = "hidl.command"
_PYTHON = (".py",)
_SHELL = (".sh", ".bash")


class WorkGrowth(str, Enum):
    """Growth of a program's work with the number of ranks."""

    strong = "strong"
    weak = "weak"


class WithWords(TyperCommand):
    """A command that accepts all arguments after the first ``--`` unchanged."""

    shown = "[-- ARG...]"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hide the arguments after ``--`` from the parser, which would treat a second ``--`` specially."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[at + 1 :])
        return list(super().parse_args(ctx, args[:at]))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Add the arguments after ``--`` to the usage line."""
        return [*super().collect_usage_pieces(ctx), self.shown]


class WithOwnProgram(WithWords):
    """``hidl run``, whose arguments after ``--`` are a program."""

    shown = "[-- PROGRAM...]"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reject ``--`` without a program, and files given instead of a workload."""
        args = with_defaults(args)
        if "--" in args and args.index("--") == len(args) - 1:
            raise UsageError(
                "no program after --", hint="for example, run: hidl run --nodes 2 -- python train.py --lr 0.1"
            )
        if "--" not in args:
            args = self._with_batch_script(args)
            if "--" not in args:
                self._refuse_file(args)
        return super().parse_args(ctx, args)

    def _with_batch_script(self, words: list[str]) -> list[str]:
        """Move a batch script to the end, where it becomes the program, because the words after it are hidl options."""
        at = self._first_argument(words)
        if at is None or not _is_file(Path(words[at])):
            return words
        from hidl_cli.plan.batch_script import read_batch_script

        if read_batch_script([words[at]], Path.cwd()) is None:
            return words
        return [*words[:at], *words[at + 1 :], "--", words[at]]

    def _refuse_file(self, words: list[str]) -> None:
        """Raise ``UsageError`` if a file is given instead of a workload; its hint is the command that runs the file."""
        at = self._first_argument(words)
        if at is None or not is_own_file(Path(words[at])):
            return
        name = words[at]
        refuse_source(name)
        line = sh_line(["hidl", "run", *words[:at], "--", *program_line(name), *words[at + 1 :]])
        raise UsageError(f"{name} is a file, not a workload", hint=f"to run it, use: {line}")

    def _first_argument(self, words: list[str]) -> int | None:
        takes_value = {
            name for one in self.params for name in one.opts if name.startswith("-") and not getattr(one, "is_flag", 0)
        }
        waiting = False
        for at, word in enumerate(words):
            if waiting:
                waiting = False
            elif word.startswith("-"):
                waiting = word in takes_value
            else:
                return at
        return None


def with_defaults(words: list[str]) -> list[str]:
    """Add the default value to a bare ``--profile``, so that the next argument is not mistaken for its value."""
    at = words.index("--") if "--" in words else len(words)
    return [*("--profile=required" if word == "--profile" else word for word in words[:at]), *words[at:]]


def given_words(ctx: typer.Context) -> tuple[str, ...]:
    """Return the arguments after ``--``, or an empty tuple if there are none."""
    words: tuple[str, ...] = ctx.meta.get(_COMMAND, ())
    return words


def program_after(ctx: typer.Context, workload: str | None, *, further: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the arguments after ``--``, or an empty tuple if a workload is given instead.

    ``further`` contains the arguments after the workload, which are invalid here. Raises ``UsageError`` unless there is
    either a workload or a program.
    """
    command = given_words(ctx)
    if command and workload is not None:
        given = sh_line([workload, *further])
        hint = f"--matrix {given}" if "=" in workload else "omit one of them"
        raise UsageError(f"{given} before -- and a program after -- cannot be combined", hint=hint)
    if not command and workload is None:
        raise UsageError("no workload or program given", hint="use hidl run WORKLOAD, or hidl run -- PROGRAM ARG...")
    if further:
        raise UsageError(
            f"unexpected arguments {' '.join(further)!r} after the workload",
            hint="set parameters with --set NAME=VALUE or --matrix",
        )
    return command


def describe_program(plan: Plan) -> None:
    """Show where the program starts, how the MPI world is checked, and how a study is judged."""
    from hidl_cli.commands.render import say
    from hidl_cli.plan.workload import TIMES

    program, scaling = plan.workload.program, plan.workload.scaling
    check = (
        "after a launch that checks MPI's world (skip it with --no-mpi)"
        if program.mpi
        else "without checking MPI's world: each rank only checks the number of ranks reported by its launcher"
    )
    say(f"starts in {program.directory}, {check}", style="dim")
    if plan.container is not None:
        mpi = f"with {plan.mpi.name} mounted" if plan.container.prefixes else "with its own MPI library"
        say(f"in image {plan.container.image} ({plan.container.runtime}), {mpi}", style="dim")
    if plan.stdin is not None:
        say(f"standard input of rank 0: {plan.stdin}", style="dim")
    if plan.is_study and scaling is not None and plan.target is not None:
        what = "of the whole launch" if scaling.metric in TIMES else "printed by the program"
        judged = f"{scaling.kind} scaling of {scaling.metric} ({what}), target {plan.target:g}"
        say(f"judged by {judged}; change it with --scaling, --metric and --target", style="dim")


def describe_environment(plan: Plan) -> None:
    """Show which Python and which MPI library the ranks use."""
    from hidl_cli.commands.render import say

    one = plan.user_environment
    if one is None:
        return
    if one.mpi_stack is not None:
        mpi = f"the MPI library of stack {one.mpi_stack} ({plan.mpi.family})"
    elif plan.mpi_of_the_stack:
        mpi = f"its own MPI library ({plan.mpi.family})"
    else:
        mpi = f"the site's MPI library {plan.mpi.name} ({plan.mpi.family})"
    count = f"{len(one.packages)} package{'' if len(one.packages) == 1 else 's'}"
    say(f"in {one.directory} ({one.kind}): Python {one.python}, {count}, {mpi}", style="dim")


def program_line(file: str) -> list[str]:
    """Return the command that runs a file, either with its interpreter or by its path."""
    suffix = Path(file).suffix
    if suffix in _PYTHON:
        return ["python", file]
    if suffix in _SHELL and not os.access(file, os.X_OK):
        return ["bash", file]
    return [file if "/" in file else f"./{file}"]


def refuse_source(file: str) -> None:
    """Raise ``UsageError`` if ``file`` is source code; its hint is the command that compiles the file."""
    from hidl_cli.plan.program import compiled_by

    if (compiled := compiled_by(file)) is not None:
        raise UsageError(f"{file} is source code, not a program", hint=f"compile it first: {compiled}")


def is_own_file(path: Path) -> bool:
    """Return whether the path is a program or source code rather than the name of a workload."""
    if not _is_file(path) or ("/" not in str(path) and _is_workload(path.name)):
        return False
    from hidl_cli.plan.program import compiled_by

    return path.suffix.lower() in (*_PYTHON, *_SHELL) or os.access(path, os.X_OK) or compiled_by(path.name) is not None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the directory is unreadable, or the name is too long
        return False


def _is_workload(name: str) -> bool:
    from hidl_cli.inputs.overlay import list_all

    return any(entry.name == name for entry in list_all("workload"))

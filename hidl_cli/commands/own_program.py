"""The words after ``--`` of ``hidl run``: a program of the user's own."""

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


class Scaling(str, Enum):
    """How the work of a program grows with the ranks."""

    strong = "strong"
    weak = "weak"


class WithWords(TyperCommand):
    """A command that takes all words after the first ``--`` as they are."""

    shown = "[-- ARG...]"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words after ``--`` from the parser, which would take those after a second one apart."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[at + 1 :])
        return list(super().parse_args(ctx, args[:at]))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Show the words after ``--``."""
        return [*super().collect_usage_pieces(ctx), self.shown]


class WithOwnProgram(WithWords):
    """``hidl run``: the words after ``--`` are a program."""

    shown = "[-- PROGRAM...]"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse ``--`` without a program, and a file in the place of a workload."""
        if "--" in args and args.index("--") == len(args) - 1:
            raise UsageError("no program after --", hint="for example: hidl run --nodes 2 -- python train.py --lr 0.1")
        if "--" not in args:
            self._refuse_file(args)
        return super().parse_args(ctx, args)

    def _refuse_file(self, words: list[str]) -> None:
        """Raise an error with the line that runs the file, if one is named where a workload is expected."""
        at = self._first_argument(words)
        if at is None or not is_own_file(Path(words[at])):
            return
        name = words[at]
        refuse_source(name)
        line = sh_line(["hidl", "run", *words[:at], "--", *program_line(name), *words[at + 1 :]])
        raise UsageError(f"{name} is a file, not a workload", hint=f"to run it: {line}")

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


def given_words(ctx: typer.Context) -> tuple[str, ...]:
    """Return the words after ``--``; empty if there are none."""
    words: tuple[str, ...] = ctx.meta.get(_COMMAND, ())
    return words


def program_after(ctx: typer.Context, workload: str | None, *, further: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the words after ``--``; empty if a workload is named in their place.

    ``further`` are arguments after the workload that mean nothing. ``UsageError`` unless exactly one is given.
    """
    command = given_words(ctx)
    if command and workload is not None:
        given = sh_line([workload, *further])
        hint = f"--matrix {given}" if "=" in workload else "omit one of them"
        raise UsageError(f"{given} before -- and a program after it exclude each other", hint=hint)
    if not command and workload is None:
        raise UsageError(
            "no workload and no program", hint="hidl run WORKLOAD (hidl workload list), or hidl run -- PROGRAM ARG..."
        )
    if further:
        raise UsageError(f"{' '.join(further)!r} is more than one workload", hint="--set NAME=VALUE, or --matrix")
    return command


def describe_program(plan: Plan) -> None:
    """Say where the program starts, how its world is checked, and what a study is judged by."""
    from hidl_cli.commands.render import say
    from hidl_cli.plan.workload import TIMES

    program, scaling = plan.workload.program, plan.workload.scaling
    check = (
        "after a launch that checks MPI's world (--no-mpi skips it)"
        if program.mpi
        else "without a check of MPI's world: each rank compares the number of ranks that its launcher says"
    )
    say(f"starts in {program.directory}, {check}", style="dim")
    if plan.stdin is not None:
        say(f"standard input of rank 0: {plan.stdin}", style="dim")
    if plan.is_study and scaling is not None and plan.target is not None:
        what = "the whole launch" if scaling.metric in TIMES else "as the program prints it"
        judged = f"{scaling.kind} scaling of {scaling.metric} ({what}), target {plan.target:g}"
        say(f"judged by {judged}: --scaling, --metric and --target change it", style="dim")


def describe_environment(plan: Plan) -> None:
    """Say which Python and which MPI library the ranks get."""
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
    """Return the words that run a file: by its interpreter, or by its path."""
    suffix = Path(file).suffix
    if suffix in _PYTHON:
        return ["python", file]
    if suffix in _SHELL and not os.access(file, os.X_OK):
        return ["bash", file]
    return [file if "/" in file else f"./{file}"]


def refuse_source(file: str) -> None:
    """``UsageError`` with the line that compiles ``file``, if it is source code."""
    from hidl_cli.plan.own import compiled_by

    if (compiled := compiled_by(file)) is not None:
        raise UsageError(f"{file} is source code, not a program", hint=compiled)


def is_own_file(path: Path) -> bool:
    """Is this a program's file or source code, and not the name of a workload?"""
    try:
        is_file = path.is_file()
    except PermissionError:  # of the current directory, which may be unreadable
        return False
    if not is_file or ("/" not in str(path) and _is_workload(path.name)):
        return False
    from hidl_cli.plan.own import compiled_by

    return path.suffix.lower() in (*_PYTHON, *_SHELL) or os.access(path, os.X_OK) or compiled_by(path.name) is not None


def _is_workload(name: str) -> bool:
    from hidl_cli.inputs.overlay import list_all

    return any(entry.name == name for entry in list_all("workload"))

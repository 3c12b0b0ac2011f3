"""A program of the user's own, from the words after ``--``, as a workload."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Literal

from hidl_cli.errors import InvalidInput, Problem, UsageError
from hidl_cli.inputs.overlay import list_all
from hidl_cli.plan.arguments import PLACEHOLDER
from hidl_cli.plan.workload import TIMES, Parameter, Program, Scaling, StackChoice, Workload
from hidl_cli.quoting import sh_line
from hidl_cli.redaction import Secrets

ScalingKind = Literal["weak", "strong"]

#: The stack of a program that names none.
STACK = "mpi"

#: The efficiency that a program must reach if nothing else is asked for.
TARGET = 0.8

#: The metric of the job's own clock that each kind of scaling is judged by.
TIME_OF: dict[ScalingKind, str] = {"strong": "wall_time", "weak": "throughput"}

_INTERPRETERS = re.compile(r"(python|pypy|bash|sh|zsh|perl|ruby|Rscript|julia|env)[0-9.]*")
_COMPILERS = {".c": "mpicc", **dict.fromkeys((".cc", ".cpp", ".cxx"), "mpicxx")}
_FORTRAN = (".f", ".f90", ".f95", ".f03", ".f08")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PARAMETER = re.compile(r"[a-z][a-z0-9_]{0,63}")
_EACH_RANK = {
    "rank": "$RANK",
    "local_rank": "$LOCAL_RANK",
    "world_size": "$WORLD_SIZE",
    "master_addr": "$MASTER_ADDR",
    "master_port": "$MASTER_PORT",
}


def own_workload(
    command: Sequence[str],
    *,
    directory: str,
    stack: str | None = None,
    assignments: Sequence[str] = (),
    matrix: Sequence[str] = (),
    scaling: ScalingKind | None = None,
    uses_mpi: bool = True,
) -> Workload:
    """Return the workload that starts ``command`` in ``directory`` on every rank, timed by the job.

    Names that ``assignments`` (``--set``) or ``matrix`` (``--matrix``) give a value are parameters, and ``{name}`` in
    a word stands for the value, as typed. All other braces reach the program as they are. Raises
    ``InvalidInput`` for a name that no word holds and for one that only a rank knows, such as ``{rank}``, and
    ``UsageError`` for an empty program or a word that is not UTF-8.
    """
    if not command[0].strip():
        raise UsageError("the program's name is empty", hint="is a variable of the shell unset?")
    if undecodable := [word for word in command if not _is_text(word)]:
        raise UsageError(f"{undecodable[0]!r} is not UTF-8", hint="rename the file, or name it within a script")
    given = dict(_first_values([*assignments, *matrix]))
    held = {found["name"] for word in command for found in PLACEHOLDER.finditer(word)}
    invalid = {name for name in given if not _PARAMETER.fullmatch(name)}
    problems = [*_invalid(invalid), *_unused(given.keys() - held - invalid), *_of_a_rank(held - given.keys())]
    if problems:
        raise InvalidInput(f"{len(problems)} invalid name(s) in the program's words", problems=problems)
    kind: ScalingKind = scaling or "strong"
    first, *rest = command
    return Workload(
        name=name_of(command),
        title=_title(command, given),
        program=Program(command=[first], arguments=rest, directory=directory, mpi=uses_mpi, timed=True),
        stacks=[StackChoice(stack=stack or STACK)],
        parameters={name: Parameter(type="str", default=value) for name, value in given.items()},
        metrics=dict(TIMES),
        scaling=Scaling(metric=TIME_OF[kind], kind=kind, target=TARGET),
    )


def name_of(command: Sequence[str]) -> str:
    """Return the name of the program's workload: ``stem_of`` it, with ``own-`` before the name of a known workload.

    The results of the two are not comparable.
    """
    name = stem_of(command)
    taken = any(entry.name == name for entry in list_all("workload", bases=True))
    return f"own-{name}" if taken else name


def stem_of(command: Sequence[str]) -> str:
    """Return the program's file without the suffix as a valid name, such as ``train``."""
    words = [word for word in command if not word.startswith("-") and not _VARIABLE.match(word)]
    program = next((word for word in words if not _INTERPRETERS.fullmatch(PurePath(word).name)), command[0])
    stem = PurePath(program).name.partition(".")[0].lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:48].strip("-")
    return name if name[:1].isalpha() else f"own-{name}".strip("-")


def compiled_by(file: str) -> str | None:
    """Return the lines that compile ``file`` and run it; None if it is not C, C++ or Fortran."""
    path = Path(file)
    suffix, program = path.suffix.lower(), str(path.with_suffix(""))
    words = ["-O2", file, "-o", program]
    if suffix in _FORTRAN:
        line = f"{sh_line(['mpifort', *words])} (the site's or a distribution's: wheels have no mpifort)"
    elif suffix in _COMPILERS:
        line = sh_line(["hidl", "stack", "exec", STACK, "--", _COMPILERS[suffix], *words])
    else:
        return None
    run = ["hidl", "run", "--", program if "/" in program else f"./{program}"]
    return f"{line}, then: {sh_line(run)}"


def _is_text(word: str) -> bool:
    return "\0" not in word and not any("\ud800" <= character <= "\udfff" for character in word)


def _title(command: Sequence[str], given: Mapping[str, str]) -> str:
    secrets = Secrets().learn({"parameters": given}, list(command))
    line = " ".join(" ".join(secrets.hide_document(list(command))).split())
    return line if len(line) <= 100 else f"{line[:97]}..."


def _first_values(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each name with its first value; words that are not ``NAME=VALUE`` are reported where they are read."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            yield name, value.partition(",")[0]


def _invalid(names: set[str]) -> Iterator[Problem]:
    for name in sorted(names):
        yield Problem(f"invalid parameter name {name!r}", "lower-case letters, digits and _, starting with a letter")


def _unused(names: set[str]) -> Iterator[Problem]:
    for name in sorted(names):
        yield Problem(
            f"{name} has a value, but no word of the program holds {{{name}}}", f"{{{name}}} where it belongs"
        )


def _of_a_rank(names: set[str]) -> Iterator[Problem]:
    for name in sorted(names & _EACH_RANK.keys()):
        variable = _EACH_RANK[name]
        yield Problem(
            f"{{{name}}} differs between ranks or runs, and all ranks get the same words",
            f"the program reads {variable} from its environment (in a shell: bash -c '... {variable} ...'); "
            f"--set {name}={{{name}}} passes the braces on",
        )

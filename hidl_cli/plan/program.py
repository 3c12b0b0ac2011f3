"""Turn a user's program (the words after ``--``) into a workload, and add the metrics from ``--metric``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import dropwhile
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

from hidl_cli.errors import InvalidInput, Problem, UsageError
from hidl_cli.inputs.check import MAX_REGEX
from hidl_cli.inputs.overlay import list_all
from hidl_cli.plan.parameters import PLACEHOLDER
from hidl_cli.plan.units import better_of, is_time
from hidl_cli.plan.workload import (
    TIMES,
    Metric,
    Parameter,
    Pattern,
    Program,
    Ranks,
    Reduction,
    Scaling,
    StackChoice,
    Take,
    Workload,
    mistakes,
    names_of,
)
from hidl_cli.quoting import sh_line
from hidl_cli.redaction import Secrets

#: Default target efficiency of a study that uses a metric from ``--metric``.
METRIC_TARGET = 0.8

#: ``NAME=REGEX`` or ``NAME[option=value,...]=REGEX``.
_WORD = re.compile(r"(?P<name>[^=\[\]]*)(?:\[(?P<options>[^\]]*)\])?=(?P<regex>.*)", re.DOTALL)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_EXPECTED = "NAME=REGEX or NAME[unit=s,take=last]=REGEX"
_TIMES = {"second": "s", "sec": "s", "minute": "min", "hour": "h", "microsecond": "us", "millisecond": "ms"}

#: The options in brackets, with their valid values; None accepts any text.
OPTIONS: dict[str, tuple[str, ...] | None] = {
    "unit": None,
    "printed": None,
    "better": ("higher", "lower"),
    "take": get_args(Take),
    "skip": None,
    "ranks": tuple(str(each) for each in get_args(Ranks)),
    "reduce": get_args(Reduction),
    "per": ("rank",),
}


@dataclass(frozen=True)
class MetricRequest:
    """A metric from ``--metric``, with the pattern that finds it."""

    name: str
    metric: Metric
    pattern: Pattern


def with_metrics(
    workload: Workload,
    words: Sequence[str],
    *,
    judged: bool = False,
    scaling: Literal["weak", "strong"] | None = None,
) -> Workload:
    """Add the metrics from ``--metric`` to a workload, replacing any with the same name.

    Args:
        workload: The workload.
        words: Values of ``--metric``.
        judged: Whether a study judges the first of these metrics.
        scaling: How the program's work scales; None selects the metric's default.

    Raises:
        InvalidInput: Values are invalid; the error lists all problems.
    """
    if not words:
        return workload
    requests: list[MetricRequest] = []
    problems: list[Problem] = []
    for word in words:
        found = _parse(word, workload.metrics)
        if isinstance(found, MetricRequest):
            requests.append(found)
        else:
            problems += found
    problems += _repeated([one.name for one in requests])
    if problems:
        raise InvalidInput(
            f"{len(problems)} invalid --metric value(s)",
            problems=problems,
            hint="for example, use --metric 'images_per_second=Img/sec: ([0-9.]+)'",
        )
    names = {one.name for one in requests}
    patterns = [one.pattern for one in requests]
    changes: dict[str, Any] = {
        "metrics": {**workload.metrics, **{one.name: one.metric for one in requests}},
        "program": _with_patterns(workload.program, patterns, names),
        "alternatives": [_with_patterns(other, patterns, names) for other in workload.alternatives],
    }
    if judged:
        target = workload.scaling.target if workload.scaling else METRIC_TARGET
        changes["scaling"] = _scaling(requests[0], target, scaling)
    return workload.model_copy(update=changes)


def _scaling(first: MetricRequest, target: float, kind: Literal["weak", "strong"] | None) -> Scaling:
    """Return how a study evaluates the metric (default: strong scaling for times, weak scaling for rates)."""
    better, unit = first.metric.better, first.metric.unit
    if better is None:
        raise InvalidInput(
            f"a study requires a direction for --metric {first.name}, and unit {unit!r} does not imply one",
            hint=f"use {first.name}[better=higher]=REGEX or {first.name}[better=lower]=REGEX",
        )
    if kind == "weak" and better == "lower":
        raise InvalidInput(
            f"lower is better for --metric {first.name}, but weak scaling requires a rate that grows with the ranks",
            hint="use a rate over all ranks; for a time per step: steps_per_second[printed=s/step,per=rank]=REGEX",
        )
    return Scaling(metric=first.name, kind=kind or ("strong" if better == "lower" else "weak"), target=target)


def _with_patterns(program: Program, patterns: Sequence[Pattern], names: set[str]) -> Program:
    kept = [pattern for pattern in program.patterns if not names_of([pattern]) <= names]
    return program.model_copy(update={"patterns": [*kept, *patterns]})


def _parse(word: str, known: Mapping[str, Metric]) -> MetricRequest | list[Problem]:
    """Parse a ``--metric`` value; if it is invalid, return all of its problems instead.

    ``known`` contains the workload's metrics.
    """
    found = _WORD.fullmatch(word)
    if not found:
        return [Problem(f"--metric {word!r} has no '='", _EXPECTED)]
    name, regex = found["name"].strip(), found["regex"]
    options, problems = _options(name, found["options"] or "")
    if not _NAME.fullmatch(name):
        problems.insert(0, _problem(name or word, "invalid metric name", "lower-case letters, digits and _"))
    if not regex or len(regex) > MAX_REGEX:
        what = f"the pattern has more than {MAX_REGEX} characters" if regex else "no pattern"
        return [*problems, _problem(name, what, "a regular expression with one group")]
    own = known.get(name)
    unit = options.pop("unit", None) or (own.unit if own else unit_of(name))
    better = options.pop("better", None) or (own.better if own and own.unit == unit else better_of(unit))
    pattern = Pattern.model_validate({"pattern": regex, "metric": name if _NAME.fullmatch(name) else None, **options})
    wrong = mistakes(pattern.model_copy(update={"metric": name}), {name: unit})
    problems += [_problem(name, each.message, each.expected) for each in wrong]
    if problems:
        return problems
    return MetricRequest(name, Metric(unit=unit, better=better), pattern)


def _options(name: str, text: str) -> tuple[dict[str, Any], list[Problem]]:
    options: dict[str, Any] = {}
    problems = []
    for word in filter(None, (each.strip() for each in text.split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if key not in OPTIONS:
            near = get_close_matches(key, OPTIONS, 1)
            expected = "one of " + ", ".join(OPTIONS)
            problems.append(_problem(name, f"unknown option {key!r}", expected, near[0] if near else None))
        elif not equals or not value:
            problems.append(_problem(name, f"option {key} has no value", f"{key}=VALUE"))
        elif key in options:
            problems.append(_problem(name, f"option {key} given twice", "one value"))
        elif (values := OPTIONS[key]) and value not in values:
            near = get_close_matches(value, values, 1)
            expected = "one of " + ", ".join(values)
            problems.append(_problem(name, f"invalid {key} {value!r}", expected, near[0] if near else None))
        elif key == "skip" and not value.isdecimal():
            problems.append(_problem(name, f"invalid skip {value!r}", "a whole number"))
        else:
            options[key] = int(value) if key == "skip" or value == "0" else value
    return options, problems


def _problem(name: str, message: str, expected: str, suggestion: str | None = None) -> Problem:
    return Problem(f"--metric {name}: {message}", expected, suggestion=suggestion)


def _repeated(names: Sequence[str]) -> Iterator[Problem]:
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield _problem(name, "given twice", "another name")


def unit_of(name: str) -> str:
    """Return the unit in a metric's name, such as ``images/s`` for ``images_per_second``, or ``1`` if there is none."""
    above, per, below = name.rpartition("_per_")
    if per:
        return f"{_TIMES.get(above.removesuffix('s'), above.replace('_', ' '))}/{_TIMES.get(below, below)}"
    last = name.rpartition("_")[2]
    return _TIMES.get(last.removesuffix("s"), last if is_time(last) else "1")


ScalingKind = Literal["weak", "strong"]

#: Default stack for a user's program.
STACK = "mpi"

#: Default target efficiency for a user's program.
OWN_TARGET = 0.8

#: For each kind of scaling, the metric from which efficiency is computed. The job itself measures it.
TIME_OF: dict[ScalingKind, str] = {"strong": "wall_time", "weak": "throughput"}

_INTERPRETERS = re.compile(r"(?P<kind>python|pypy|bash|sh|zsh|perl|ruby|Rscript|julia|env)[0-9.]*")
_SHELLS = ("bash", "sh", "zsh")
#: Letters of an interpreter's options that are followed by the text of a program, or by a program's arguments.
_TEXT_OPTIONS = {
    **dict.fromkeys(_SHELLS, "cs"),
    **dict.fromkeys(("python", "pypy"), "c"),
    **dict.fromkeys(("perl", "Rscript", "julia"), "eE"),
    "ruby": "e",
    "env": "S",
}
#: Letters of an interpreter's options that have a value, in the same word or the next one.
_VALUE_OPTIONS = {
    **dict.fromkeys(("python", "pypy"), "WX"),
    **{"perl": "IMm", "ruby": "CEIr", "julia": "CHJLpt", "env": "Cu"},
}
_LONG_VALUE_OPTIONS = frozenset(
    [
        *("--rcfile", "--init-file", "--check-hash-based-pycs", "--unset", "--chdir"),
        *("--cpu-target", "--home", "--load", "--machine-file", "--procs", "--sysimage", "--threads"),
    ]
)
_LONG_TEXT_OPTIONS = ("--eval", "--print", "--split-string")
# Words of a shell. Substitutions within quotes or other substitutions are not supported.
_SUBSTITUTION = r"\$\([^()'\"`\\]*\)|\$\{[^{}'\"`\\]*\}|`[^`'\"\\]*`"
_QUOTED = rf"'[^']*'|\$'(?:[^'\\]|\\.)*'|\"(?:[^\"\\`$]|\\.|\$(?![({{])|{_SUBSTITUTION})*\""
_SHELL_WORD = rf"(?:[^ \t\n;&|()<>'\"\\`$]|\\.|\$(?!['({{])|{_SUBSTITUTION}|{_QUOTED})+"
_TOKEN = re.compile(
    rf"(?P<redirection>(?:&|\d*)(?:>>|>\||<>|[<>])(?![<(])&?[ \t]*{_SHELL_WORD})"
    rf"|(?P<separator>[;&|()\n]+)|(?P<blank>[ \t]+|#[^\n]*)|(?P<word>{_SHELL_WORD})",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SIMPLY_QUOTED = re.compile(r"'(?P<single>[^']*)'|\"(?P<double>[^\"\\$`]*)\"")
_PLAIN_WORD = re.compile(r"[\w./+@%~-]+")
#: Words before a command, commands that start no program, and commands whose end is hard to find.
_BEFORE_COMMAND = frozenset(
    [
        *("{", "}", "!", "if", "then", "elif", "else", "fi", "while", "until", "do", "done"),
        *("command", "exec", "nohup", "time"),
    ]
)
_BUILTINS = frozenset(
    [
        *(".", ":", "[", "alias", "cd", "declare", "export", "for", "local", "read", "readonly", "set", "shopt"),
        *("source", "test", "trap", "true", "typeset", "ulimit", "umask", "unset", "wait"),
    ]
)
_UNSUPPORTED = frozenset({"[[", "case", "function", "select"})
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
    separate_ranks: bool = False,
    once: bool = False,
) -> Workload:
    """Return a workload that starts a command on every rank and measures its time.

    The names in ``assignments`` and ``matrix`` become parameters: ``{name}`` in the command is replaced with the value
    as typed. All other braces are kept.

    Args:
        command: Words of the command.
        directory: Directory in which the command starts.
        stack: Name of the stack; None selects the default.
        assignments: Values of ``--set``.
        matrix: Values of ``--matrix``.
        scaling: How the time scales (default: strongly).
        uses_mpi: Whether the command uses MPI.
        separate_ranks: Whether the ranks work independently of each other.
        once: Whether the command starts only once, like a batch script.

    Raises:
        InvalidInput: A name is not in the command, or depends on the rank, such as ``{rank}``.
        UsageError: The program's name is empty, or a word is not UTF-8.
    """
    if not command[0].strip():
        raise UsageError("the program's name is empty", hint="check for an unset shell variable")
    if undecodable := [word for word in command if not _is_text(word)]:
        raise UsageError(
            f"{undecodable[0]!r} is not UTF-8", hint="rename the file, or run a script that contains the name"
        )
    given = dict(_first_values([*assignments, *matrix]))
    used = {found["name"] for word in command for found in PLACEHOLDER.finditer(word)}
    invalid = {name for name in given if not _PARAMETER.fullmatch(name)}
    problems = [*_invalid(invalid), *_unused(given.keys() - used - invalid), *_rank_specific(used - given.keys())]
    if problems:
        raise InvalidInput(f"{len(problems)} invalid name(s) in the program's arguments", problems=problems)
    kind: ScalingKind = scaling or "strong"
    first, *rest = command
    return Workload(
        name=name_of(command),
        title=_title(command, given),
        program=Program(
            command=[first],
            arguments=rest,
            directory=directory,
            mpi=uses_mpi,
            separate_ranks=separate_ranks,
            once=once,
            timed=True,
        ),
        stacks=[StackChoice(stack=stack or STACK)],
        parameters={name: Parameter(type="str", default=value) for name, value in given.items()},
        metrics=dict(TIMES),
        scaling=Scaling(metric=TIME_OF[kind], kind=kind, target=OWN_TARGET),
        continues=True,
    )


def name_of(command: Sequence[str]) -> str:
    """Return the workload name for a program: the result of ``stem_of``, prefixed with ``own-`` if it is taken."""
    name = stem_of(command)
    taken = any(entry.name == name for entry in list_all("workload", bases=True))
    return f"own-{name}" if taken else name


def stem_of(command: Sequence[str]) -> str:
    """Return the program's file name without its suffix, as a valid workload name such as ``train``.

    The text of ``bash -c TEXT`` may contain secrets, so only the file name of its first program is used, or else the
    shell's name. The same applies to other interpreters.
    """
    stem = PurePath(_program_in(command) or command[0]).name.partition(".")[0].lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:48].strip("-")
    return name if name[:1].isalpha() else f"own-{name}".strip("-")


def _program_in(words: Sequence[str]) -> str | None:
    """Return the first word that is neither an option nor a variable nor an interpreter, or None if there is none."""
    interpreter = kind = ""
    is_script = False
    rest = iter(words)
    for word in rest:
        if kind:
            for _ in range(_count_values(kind, word)):
                next(rest, None)
            if _precedes_text(kind, word):
                is_script = kind in _SHELLS and "c" in word
                if not is_script:
                    return interpreter
        if word.startswith("-") or (kind in _SHELLS and word.startswith("+")):
            continue
        if is_script:
            return _program_in_script(word) or interpreter
        if _VARIABLE.match(word):
            continue
        found = _INTERPRETERS.fullmatch(PurePath(word).name)
        if not found:
            return word
        interpreter, kind = word, found["kind"]
    return interpreter if is_script else None


def _count_values(kind: str, option: str) -> int:
    """Return the number of words after an interpreter's option that are its values."""
    if option in _LONG_VALUE_OPTIONS:
        return 1
    if kind in _SHELLS:  # each "o" in -euo requires a name
        return option.lower().count("o") if re.fullmatch(r"[-+][A-Za-z]+", option) else 0
    letters = _VALUE_OPTIONS.get(kind)
    return 1 if letters and re.fullmatch(rf"-[^\W{letters}]*[{letters}]", option) else 0


def _precedes_text(kind: str, option: str) -> bool:
    """Return True if no program file follows an interpreter's option, because the program is text or standard input."""
    is_short = re.match(rf"-[^\W{_VALUE_OPTIONS.get(kind, '')}]*[{_TEXT_OPTIONS[kind]}]", option)
    return option == "-" or option.startswith(_LONG_TEXT_OPTIONS) or bool(is_short)


def _program_in_script(text: str) -> str | None:
    """Return the first program that a shell script starts, or None if there is any doubt about it."""
    for words in _commands(text):
        command = list(dropwhile(lambda word: word in _BEFORE_COMMAND or _VARIABLE.match(word), words))
        before = words[len(words) - len(command) - 1] if len(command) < len(words) else ""
        while before in _BEFORE_COMMAND and command and command[0].startswith("-"):
            has_name = before == "exec" and command[0].endswith("a")  # exec -a NAME
            command = command[2:] if has_name else command[1:]
        if not command or command[0] in _BUILTINS:
            continue
        if command[0] in _UNSUPPORTED:
            return None
        if found := _program_in(command):
            return found if _PLAIN_WORD.fullmatch(found) else None
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a shell script, up to the first construct that is not supported.

    Quotes are removed if a word contains nothing else. Here-documents, arrays and nested quotes are not supported.
    """
    text = _ESCAPED.sub(lambda found: "" if found[1] == "\n" else found[0], text)
    words: list[str] = []
    at, previous = 0, ""
    while (token := _TOKEN.match(text, at)) and not (previous == "word" and token[0].startswith("(")):
        at, previous = token.end(), token.lastgroup or ""
        if previous == "word":
            words.append(_unquoted(token[0]))
        elif previous == "separator":
            yield words
            words = []
    yield words


def _unquoted(word: str) -> str:
    found = _SIMPLY_QUOTED.fullmatch(word)
    return word if found is None else found["single"] or found["double"] or ""


def compiled_by(file: str) -> str | None:
    """Return the commands that compile and run a file, or None if it is not C, C++ or Fortran."""
    path = Path(file)
    suffix, program = path.suffix.lower(), str(path.with_suffix(""))
    words = ["-O2", file, "-o", program]
    if suffix in _FORTRAN:
        line = f"{sh_line(['mpifort', *words])} (from the site or a distribution: wheels have no mpifort)"
    elif suffix in _COMPILERS:
        line = sh_line(["hidl", "stack", "exec", STACK, "--", _COMPILERS[suffix], *words])
    else:
        return None
    run = ["hidl", "run", "--", program if "/" in program else f"./{program}"]
    return f"{line}, then: {sh_line(run)}"


def _is_text(word: str) -> bool:
    return "\0" not in word and not any("\ud800" <= character <= "\udfff" for character in word)


def _title(command: Sequence[str], given: Mapping[str, str]) -> str:
    secrets = Secrets().learn_environment().learn({"parameters": given}, list(command))
    line = " ".join(" ".join(secrets.hide_document(list(command))).split())
    return line if len(line) <= 100 else f"{line[:97]}..."


def _first_values(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each name with its first value, skipping words other than ``NAME=VALUE``, which ``resolve`` reports."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            yield name, value.partition(",")[0]


def _invalid(names: set[str]) -> Iterator[Problem]:
    for name in sorted(names):
        yield Problem(f"invalid parameter name {name!r}", "lower-case letters, digits and _, starting with a letter")


def _unused(names: set[str]) -> Iterator[Problem]:
    for name in sorted(names):
        yield Problem(f"{name} has a value, but {{{name}}} is not in the command", f"{{{name}}} in the command")


def _rank_specific(names: set[str]) -> Iterator[Problem]:
    for name in sorted(names & _EACH_RANK.keys()):
        variable = _EACH_RANK[name]
        yield Problem(
            f"{{{name}}} differs between ranks or runs, but all ranks get the same command",
            f"read {variable} from the environment of the program (in a shell: bash -c '... {variable} ...'), or keep "
            f"the braces with --set {name}={{{name}}}",
        )

"""What a shell is answered when it asks how a command line could go on.

The scripts that the shells get (``hidl --install-completion``) are typer's; the answers are made here, because typer's
load what formats help for terminals, which takes longer than people wait, and because bash takes ``NAME=VALUE`` for
three words. A shell asks with ``_HIDL_COMPLETE=complete_<shell>`` and

==== ===================================================================================================
bash ``COMP_WORDS``, the words with line ends between them, and ``COMP_CWORD``, which of them is meant
zsh  ``_TYPER_COMPLETE_ARGS``, the line up to the cursor
fish the same, and ``_TYPER_COMPLETE_FISH_ACTION``: ``get-args``, or ``is-args`` (are there any? else files)
==== ===================================================================================================
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hidl_cli.inputs.overlay import KindName


_DEPTH = 8  # files that extend each other


def complete_parameters(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """``--set``: parameters of the workload that is named before."""
    return list(_assignments(ctx, incomplete, _choices))


def complete_matrix(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """``--matrix``: the same, each with all its choices, and variables of MPI libraries (``mpi.NAME``)."""
    from hidl_cli.tuning.judge import COMPARED

    if incomplete.startswith(COMPARED):
        name, sign, _ = incomplete.removeprefix(COMPARED).partition("=")
        words = complete_tuning(f"{name}=") if sign else complete_variables(name)
        return [(f"{COMPARED}{word}" + ("" if sign else "="), "") for word in words]
    return list(_assignments(ctx, incomplete, lambda one: [",".join(_choices(one))]))


def complete_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ids of installations of the stack that is named before."""
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation

    where, stack = load_site(ctx.params.get("site")), str(ctx.params.get("name"))
    directory = installation.root_of(where, stack, ctx.params.get("prefix")) / where.name / stack
    return [prefix.name for prefix in installation.prefixes(directory) if prefix.name.startswith(incomplete)]


def complete_variables(incomplete: str) -> list[str]:
    """The names of variables that begin so."""
    from hidl_cli.tuning.catalogue import all_names

    return sorted(name for name in all_names() if name.startswith(incomplete))


def complete_tuning(incomplete: str) -> list[str]:
    """``--tune``: variables with their defaults; with values where the name is whole."""
    from hidl_cli.tuning.catalogue import variables

    name, sign, _ = incomplete.partition("=")
    found: dict[str, None] = {}
    for known in [name] if sign else complete_variables(name):
        for variable in variables(known):
            words = variable.words or (("0", "1") if variable.type == "bool" else ())
            values = words if sign and words else (variable.default,)
            found |= {f"{known}={value}": None for value in values if "*" not in value}
    return [word for word in found if word.startswith(incomplete)]


def complete_metrics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Metrics of the workload that is named, or of all."""
    from hidl_cli.inputs.overlay import list_all

    files = {entry.name: entry.path for entry in list_all("workload", bases=True)}
    named = next((name for key in ("workload", "name", "a") if (name := ctx.params.get(key)) in files), None)
    found = (
        _mapping("workload", named, "metrics") if named else {key for path in files.values() for key in _listed(path)}
    )
    return sorted(key for key in found if key.startswith(incomplete))


def complete_partitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Partitions of the site that is named."""
    return _of_the_site(ctx, incomplete, "partitions")


def complete_launchers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete launchers of the site that is named, and plug-ins."""
    from hidl_cli.plugins import entries

    added = (entry.name for entry in entries("hidl.launchers"))
    names = dict.fromkeys([*_of_the_site(ctx, incomplete, "launchers"), *added])
    return [name for name in names if name.startswith(incomplete)]


def complete_libraries(ctx: typer.Context, incomplete: str) -> list[str]:
    """MPI libraries of the site that is named, and the stack's own."""
    return [*_of_the_site(ctx, incomplete, "mpi"), *(["stack"] if "stack".startswith(incomplete) else [])]


def complete_hosts(incomplete: str) -> list[str]:
    """Complete the last of ``--hosts``: hosts of ``~/.ssh/config`` and of mpirun_rsh's ``~/.mpirun_hosts``."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    names = dict.fromkeys(name for name in _known_hosts() if name.startswith(last) and name not in given)
    return [f"{before}{comma}{name}" for name in names]


def _known_hosts() -> Iterator[str]:
    """Host names in the user's files; patterns (``gpu*``) name none."""
    lists = ((".ssh/config", r"^\s*Host(?:\s*=\s*|\s+)(.*)"), (".mpirun_hosts", r"^\s*([^\s:#]+)"))
    for file, line in lists:
        try:
            text = Path.home().joinpath(file).read_text(encoding="utf-8")
        except (OSError, ValueError, RuntimeError):
            continue
        for words in re.findall(line, text, re.MULTILINE | re.IGNORECASE):
            yield from (word for word in words.split() if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", word))


def _assignments(ctx: typer.Context, incomplete: str, values: Any) -> Iterator[tuple[str, str]]:
    workload, (name, sign, _) = ctx.params.get("workload"), incomplete.partition("=")
    for key, parameter in _mapping("workload", workload, "parameters").items() if workload else ():
        if not isinstance(parameter, dict) or not key.startswith(name) or (sign and key != name):
            continue
        for value in values(parameter) if sign or "choices" in parameter else [_word(parameter.get("default"))]:
            if f"{key}={value}".startswith(incomplete):
                yield f"{key}={value}", str(parameter.get("help", ""))


def _choices(parameter: dict[str, Any]) -> list[str]:
    if parameter.get("type") == "bool":
        return ["true", "false"]
    return list(map(str, parameter.get("choices") or [_word(parameter.get("default"))]))


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_the_site(ctx: typer.Context, incomplete: str, key: str) -> list[str]:
    site = ctx.params.get("site")
    return [name for name in _mapping("site", site, key) if name.startswith(incomplete)] if site else []


def _listed(file: Path) -> list[str]:
    """The keys of ``metrics`` as they stand in a file: to read some sixty as YAML takes longer than people wait."""
    try:
        block = re.search(r"^metrics:\n((?: .*\n|\n|#.*\n)+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):
        return []
    return re.findall(r"^  (\w+):", block[1], re.MULTILINE) if block else []


def _mapping(kind: KindName, name: str, key: str) -> dict[str, Any]:
    """One key of a file and of those that it extends; a list's items as keys. Empty where they cannot be read."""
    import yaml

    from hidl_cli.errors import HidlError
    from hidl_cli.inputs.overlay import list_all

    files = {entry.name: entry for entry in list_all(kind, bases=True)}
    found: dict[str, Any] = {}
    entry = files.get(name)
    for _ in range(_DEPTH):
        if entry is None:
            break
        try:
            document = yaml.load(entry.path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except (OSError, ValueError, yaml.YAMLError, HidlError):
            break
        if not isinstance(document, dict):
            break
        own = document.get(key) or {}
        below = own if isinstance(own, dict) else dict.fromkeys(own)
        found = {name: _laid_over(below.get(name), found.get(name)) for name in {**below, **found}}
        base = document.get("extends")
        # A file that extends its own name extends the one that it hides.
        entry = next(iter(entry.shadows), None) if base == entry.name else files.get(str(base))
    return found


def _laid_over(below: Any, above: Any) -> Any:
    """Return one value of a file over that of the file that it extends: of mappings, each key."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **above}
    return below if above is None else above


VARIABLE = "_HIDL_COMPLETE"


@dataclass(frozen=True)
class Candidate:
    """One way to go on: the whole word, and what it means."""

    word: str
    help: str = ""


def answer(environment: Mapping[str, str]) -> tuple[str, int]:
    """What the shell that asks in ``environment`` is told on stdout, and the exit status.

    Nothing where a file or directory cannot be read: a message would fall into the line that somebody types.
    """
    from hidl_cli.errors import HidlError

    try:
        return _SHELLS[environment[VARIABLE].removeprefix("complete_")](environment)
    except (HidlError, OSError):
        return "", 1


def asked(environment: Mapping[str, str]) -> bool:
    """Does a shell ask?"""
    return environment.get(VARIABLE, "").removeprefix("complete_") in _SHELLS


def candidates(words: Sequence[str], begun: str) -> list[Candidate]:
    """How the word that begins so may go on, after these words (without ``hidl`` itself)."""
    from typer.main import get_command

    from hidl_cli.commands.app import command_line

    command: Any = get_command(command_line(words[0] if words else None))
    rest = list(words)
    while at := next((at for at, word in enumerate(rest, 1) if word in _commands(command)), None):
        command, rest = _commands(command)[rest[at - 1]], rest[at:]
    if "--" in rest:
        return []  # a program and its arguments: the shell completes files
    by_name = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts) if name[0] == "-"}
    context = command.context_class(command, info_name=command.name)
    option, arguments = _given(command, by_name, rest, context.params)
    name, sign, value = begun.partition("=")
    if sign and name in by_name:
        return [Candidate(f"{name}={one.word}", one.help) for one in _values(by_name[name], context, value)]
    if option is not None:
        return _values(option, context, begun)
    if begun.startswith("-"):
        return _beginning(begun, _options(command, rest))
    below = [Candidate(name, _first_line(one.help)) for name, one in _commands(command).items() if not one.hidden]
    return _beginning(begun, below) or (_values(arguments[0], context, begun) if arguments else [])


def _commands(command: Any) -> dict[str, Any]:
    """The commands below it."""
    return getattr(command, "commands", {})


def _given(
    command: Any, by_name: Mapping[str, Any], words: Sequence[str], values: dict[str, str]
) -> tuple[Any, list[Any]]:
    """Read ``words`` into ``values``; the option that waits for its value (or None), and the arguments to come.

    Click's own reading of a line loads what checks values, which takes too long here.
    """
    arguments = [one for one in command.params if not one.opts[0].startswith("-")]
    waiting = None
    for word in words:
        name, sign, value = word.partition("=")
        if waiting is not None:
            values[waiting.name], waiting = word, None
        elif name in by_name:
            if sign:
                values[by_name[name].name] = value
            elif not by_name[name].is_flag:
                waiting = by_name[name]
        elif arguments and not word.startswith("-"):
            values[arguments[0].name] = word
            arguments = arguments if arguments[0].nargs == -1 else arguments[1:]
    return waiting, arguments


def _options(command: Any, given: Sequence[str]) -> list[Candidate]:
    """The names of its options, but for those that are given and count once."""
    found = []
    for one in command.params:
        names = [name for name in (*one.opts, *one.secondary_opts) if name.startswith("-")]
        if not getattr(one, "hidden", False) and (one.multiple or not {*names} & {*given}):
            found += [Candidate(name, one.help or "") for name in names]
    return [*found, Candidate("--help", "Show this message and exit.")]


def _values(parameter: Any, context: Any, begun: str) -> list[Candidate]:
    """What the parameter itself proposes; nothing where it takes files, which shells know better."""
    found = parameter.shell_complete(context, begun)
    return [Candidate(str(one.value), one.help or "") for one in found if one.type == "plain"]


def _beginning(begun: str, found: Sequence[Candidate]) -> list[Candidate]:
    return [one for one in found if one.word.startswith(begun)]


def _first_line(text: str | None) -> str:
    return (text or "").split("\n\n")[0].replace("\n", " ")


def _bash(environment: Mapping[str, str]) -> tuple[str, int]:
    words = environment["COMP_WORDS"].split("\n")[: int(environment["COMP_CWORD"]) + 1]
    joined = list(_rejoined(words))
    begun = _plain(joined[-1])
    found = candidates([_plain(word) for word in joined[1:-1]], begun)
    # Bash replaces what follows the last `=` alone.
    kept = len(begun.rpartition("=")[0]) + 1 if "=" in begun else 0
    return "".join(f"{one.word[kept:]}\n" for one in found), 0


def _rejoined(words: Sequence[str]) -> Iterator[str]:
    """The words of a line that bash has divided at each ``=``."""
    current = ""
    for word in words:
        if current and not (word.startswith("=") or current.endswith("=")):
            yield current
            current = ""
        current += word
        if not word:
            break
    yield current


def _line(environment: Mapping[str, str]) -> tuple[list[str], str]:
    """The words before the one that is meant, without ``hidl``, and that one."""
    line = environment["_TYPER_COMPLETE_ARGS"]
    words = [_plain(word) for word in line.split()]
    return (words[1:], "") if line[-1:].isspace() else (words[1:-1], words[-1])


def _zsh(environment: Mapping[str, str]) -> tuple[str, int]:
    found = candidates(*_line(environment))
    if not found:
        return "_files\n", 0
    described = "\n".join(_described(one) for one in found)
    return f"_arguments '*: :(({described}))'\n", 0


def _described(one: Candidate) -> str:
    """As ``_arguments`` takes it, within single quotes."""
    word, text = (
        part.replace("'", "''").replace('"', '""').replace("$", r"\$").replace("`", r"\`").replace(":", r"\\:")
        for part in (one.word, " ".join(one.help.split()))
    )
    return f'"{word}":"{text}"' if text else f'"{word}"'


def _fish(environment: Mapping[str, str]) -> tuple[str, int]:
    found = candidates(*_line(environment))
    if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return "", 0 if found else 1
    return "".join("\t".join(filter(None, (one.word, " ".join(one.help.split())))) + "\n" for one in found), 0


def _plain(word: str) -> str:
    """The word without its quotes; one that is not closed yet is taken as it is."""
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word.lstrip("'\"")


_SHELLS: dict[str, Callable[[Mapping[str, str]], tuple[str, int]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

"""Shell completion.

The scripts that are installed into the shells (``hidl --install-completion``) come from typer, but the completions are
computed here: typer's own code loads its formatting of help texts, which takes too long, and bash splits ``NAME=VALUE``
into three words. A shell calls hidl with ``_HIDL_COMPLETE=complete_<shell>`` and these variables:

==== ===================================================================================================
bash ``COMP_WORDS``, the words separated by newlines, and ``COMP_CWORD``, the index of the current word
zsh  ``_TYPER_COMPLETE_ARGS``, the line up to the cursor
fish ``_TYPER_COMPLETE_ARGS``, and ``_TYPER_COMPLETE_FISH_ACTION``: ``get-args``, or ``is-args`` to check for any
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


_DEPTH = 8  # maximum length of a chain of files that extend each other


def complete_parameters(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete ``--set``: parameters of the workload on the command line."""
    return list(_assignments(ctx, incomplete, _choices))


def complete_matrix(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete ``--matrix``: parameters with all their choices, and MPI library variables (``mpi.NAME``)."""
    from hidl_cli.tuning.judge import COMPARED

    if incomplete.startswith(COMPARED):
        name, sign, _ = incomplete.removeprefix(COMPARED).partition("=")
        words = complete_tuning(f"{name}=") if sign else complete_variables(name)
        return [(f"{COMPARED}{word}" + ("" if sign else "="), "") for word in words]
    return list(_assignments(ctx, incomplete, lambda one: [",".join(_choices(one))]))


def complete_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the installation ids of the stack on the command line."""
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation

    where, stack = load_site(ctx.params.get("site")), str(ctx.params.get("name"))
    directory = installation.root_of(where, stack, ctx.params.get("prefix")) / where.name / stack
    return [prefix.name for prefix in installation.prefixes(directory) if prefix.name.startswith(incomplete)]


def complete_variables(incomplete: str) -> list[str]:
    """Complete variable names."""
    from hidl_cli.tuning.catalogue import all_names

    return sorted(name for name in all_names() if name.startswith(incomplete))


def complete_tuning(incomplete: str) -> list[str]:
    """Complete ``--tune``: variables with their defaults, or all values of a variable whose name is complete."""
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
    """Complete the names of metrics: those of the workload given on the command line, or those of all workloads."""
    from hidl_cli.inputs.overlay import list_all

    files = {entry.name: entry.path for entry in list_all("workload", bases=True)}
    named = next((name for key in ("workload", "name", "a") if (name := ctx.params.get(key)) in files), None)
    found = (
        _mapping("workload", named, "metrics") if named else {key for path in files.values() for key in _listed(path)}
    )
    return sorted(key for key in found if key.startswith(incomplete))


def complete_partitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of the partitions of the site given on the command line."""
    return _of_the_site(ctx, incomplete, "partitions")


def complete_launchers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of launchers: those of the site given on the command line and those from plug-ins."""
    from hidl_cli.plugins import entries

    added = (entry.name for entry in entries("hidl.launchers"))
    names = dict.fromkeys([*_of_the_site(ctx, incomplete, "launchers"), *added])
    return [name for name in names if name.startswith(incomplete)]


def complete_libraries(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of MPI libraries: those of the site given on the command line, and ``stack``."""
    return [*_of_the_site(ctx, incomplete, "mpi"), *(["stack"] if "stack".startswith(incomplete) else [])]


def complete_hosts(incomplete: str) -> list[str]:
    """Complete the last host of ``--hosts`` from ``~/.ssh/config`` and mpirun_rsh's ``~/.mpirun_hosts``."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    names = dict.fromkeys(name for name in _known_hosts() if name.startswith(last) and name not in given)
    return [f"{before}{comma}{name}" for name in names]


def _known_hosts() -> Iterator[str]:
    """Yield the host names in the user's files, except for patterns such as ``gpu*``."""
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
    """Return the keys below ``metrics`` in a file. Parsing all sixty files as YAML would take too long."""
    try:
        block = re.search(r"^metrics:\n((?: .*\n|\n|#.*\n)+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):
        return []
    return re.findall(r"^  (\w+):", block[1], re.MULTILINE) if block else []


def _mapping(kind: KindName, name: str, key: str) -> dict[str, Any]:
    """Return the mapping below ``key``, merged from a file and from the files that it extends.

    The items of a list become keys. Files that cannot be read are skipped.
    """
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
        # A file that extends its own name extends the file that it shadows.
        entry = next(iter(entry.shadows), None) if base == entry.name else files.get(str(base))
    return found


def _laid_over(below: Any, above: Any) -> Any:
    """Merge the value in a file with the value in the file that it extends; only mappings are combined."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **above}
    return below if above is None else above


VARIABLE = "_HIDL_COMPLETE"


@dataclass(frozen=True)
class Candidate:
    """A completion: the whole word and its help text."""

    word: str
    help: str = ""


def answer(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the text to print for the shell, and the exit status.

    The text is empty if a file or directory cannot be read, because a message would end up in the user's command line.
    """
    from hidl_cli.errors import HidlError

    try:
        return _SHELLS[environment[VARIABLE].removeprefix("complete_")](environment)
    except (HidlError, OSError):
        return "", 1


def asked(environment: Mapping[str, str]) -> bool:
    """Return whether a shell requests completions."""
    return environment.get(VARIABLE, "").removeprefix("complete_") in _SHELLS


def candidates(words: Sequence[str], begun: str) -> list[Candidate]:
    """Return the completions of the partial word ``begun``, given the ``words`` between ``hidl`` and this word."""
    from typer.main import get_command

    from hidl_cli.commands.app import command_line

    command: Any = get_command(command_line(words[0] if words else None))
    rest = list(words)
    while at := next((at for at, word in enumerate(rest, 1) if word in _commands(command)), None):
        command, rest = _commands(command)[rest[at - 1]], rest[at:]
    if "--" in rest:
        return []  # the shell completes the program and its arguments
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
    """Return the subcommands of a command."""
    return getattr(command, "commands", {})


def _given(
    command: Any, by_name: Mapping[str, Any], words: Sequence[str], values: dict[str, str]
) -> tuple[Any, list[Any]]:
    """Parse ``words`` into ``values``; return the option that lacks its value (or None), and the remaining arguments.

    Click's own parser loads code that validates values, which takes too long here.
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
    """Return the names of the command's options, except non-repeatable ones that have already been given."""
    found = []
    for one in command.params:
        names = [name for name in (*one.opts, *one.secondary_opts) if name.startswith("-")]
        if not getattr(one, "hidden", False) and (one.multiple or not {*names} & {*given}):
            found += [Candidate(name, one.help or "") for name in names]
    return [*found, Candidate("--help", "Show this message and exit.")]


def _values(parameter: Any, context: Any, begun: str) -> list[Candidate]:
    """Return the completions that the parameter defines. Files are left to the shell, which completes them better."""
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
    # Bash only replaces the part after the last `=`.
    kept = len(begun.rpartition("=")[0]) + 1 if "=" in begun else 0
    return "".join(f"{one.word[kept:]}\n" for one in found), 0


def _rejoined(words: Sequence[str]) -> Iterator[str]:
    """Yield the original words of a line that bash has split at each ``=``."""
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
    """Return the words before the current one (without ``hidl``), and the current word."""
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
    """Format a completion for the single-quoted argument of zsh's ``_arguments``."""
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
    """Return the word without its quotes, even if a quote is not closed yet."""
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word.lstrip("'\"")


_SHELLS: dict[str, Callable[[Mapping[str, str]], tuple[str, int]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

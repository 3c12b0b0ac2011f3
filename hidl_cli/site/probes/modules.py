"""The modules that a site offers, and what they make of the environment (Lmod, Environment Modules, Cray's)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import process, templates
from hidl_cli.errors import MissingPrecondition, ProcessFailed
from hidl_cli.quoting import comment
from hidl_cli.site.probes.host import Host

_SECONDS = 20.0  # a cold cache on a parallel file system
_LOAD_SECONDS = 60.0
#: What follows a name, or several: Lmod's ``(D)``, ``(L,D)``, ``<L>``; Environment Modules' ``(default)``,
#: ``(default:stable)``, ``<L>``, ``<aL>``, and ``(@)`` of an alias.
_MARK = re.compile(r"\s*(?:\((?P<round>[^()]*)\)|<(?P<angle>[^<>]*)>)\s*$")
_USER = ("HOME", "USER", "LOGNAME")
#: A module tree, which can be set up by hand; modules that are loaded may have extended it.
_TREE = ("MODULEPATH", "MODULESHOME", "LMOD_CMD", "LMOD_PKG", "LMOD_DIR", "MODULES_CMD")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LONGEST = 300  # characters of what a module command says


@dataclass(frozen=True)
class Offered:
    """A module that the site offers: its name with its version, as ``module load`` takes it.

    ``after``: what must be loaded before it.
    """

    name: str
    is_default: bool = False
    is_loaded: bool = False
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """The environment of a clean login shell with some modules; ``files``: theirs, and of those that they load."""

    environment: Mapping[str, str]
    files: tuple[Path, ...] = ()


def available(host: Host) -> tuple[str, ...] | None:
    """Every module's name with its version; None where there is no module command, or it gives no answer."""
    found = offered(host)
    return None if found is None else tuple(each.name for each in found)


def offered(host: Host) -> tuple[Offered, ...] | None:
    """Every module; None where there is no module command, or it gives no answer.

    On a site of module trees these are the modules that can be loaded now, beside the compiler that is loaded.
    """
    if lmod := host.environment.get("LMOD_CMD"):
        text = host.ask(lmod, "bash", "--terse", "avail", seconds=_SECONDS, stderr=True)
    elif tcl := host.environment.get("MODULES_CMD"):
        text = host.ask(tcl, "bash", "avail", "--terse", seconds=_SECONDS, stderr=True)
    else:
        return None
    return None if text is None else tuple(filter(None, map(read_name, text.splitlines())))


def read_name(line: str) -> Offered | None:
    """Read a line of ``module avail --terse``; None for a directory, the name of several modules, and an alias."""
    name, words = line.strip(), set[str]()
    while mark := _MARK.search(name):
        name = name[: mark.start()]
        words |= set(re.split(r"[:,]", mark["round"] or mark["angle"] or ""))
    if not name or name.endswith((":", "/")) or " " in name or any(word.startswith("@") for word in words):
        return None
    return Offered(name, is_default=bool(words & {"default", "D"}), is_loaded=bool(words & {"L", "aL"}))


def load(host: Host, modules: Sequence[str]) -> Loaded:
    """The environment once a clean login shell has loaded the modules, in order.

    The shell reads ``/etc/profile``, but none of the user's own files, and no module that is loaded now counts.
    Raises ``MissingPrecondition`` with the module command's own words where a module cannot be loaded.
    """
    own = host.environment
    try:
        printed = _printed(modules, _clean(own, tree=not own.get("LOADEDMODULES")))
    except MissingPrecondition:
        if not own.get("LOADEDMODULES"):
            raise
        printed = _printed(modules, _clean(own, tree=True))  # a tree that no file in /etc knows
    pairs = (entry.partition("=") for entry in printed.split("\0"))
    environment = {name: value for name, equals, value in pairs if equals}
    files = [file for file in environment.get("_LMFILES_", "").split(":") if file.startswith("/")]
    return Loaded(environment, tuple(Path(file) for file in files))


def find_command(host: Host) -> dict[str, str]:
    """The variables by which a program finds the module command; none where it has them, or there is no such command.

    A process that no login shell started (cron's, say) has none of them, though the site has modules.
    """
    if "MODULESHOME" in host.environment:
        return {}
    try:
        found = load(host, ()).environment
    except MissingPrecondition:
        return {}
    return {name: found[name] for name in _TREE if name in found} if "MODULESHOME" in found else {}


def _printed(modules: Sequence[str], environment: Mapping[str, str]) -> str:
    """The environment that ``modules`` make of this one, its variables ended by NULs."""
    script = templates.render_script("loaded_modules.sh.j2", {"modules": modules})
    command = ("bash", "--noprofile", "--norc", "-c", script)
    try:
        return process.run(command, cwd=Path("/"), env=environment, timeout=_LOAD_SECONDS).stdout
    except ProcessFailed as failure:
        said = " ".join(comment(failure.output).split())[:_LONGEST]
        what = f"module load {' '.join(modules)}" if modules else "a login shell"
        raise MissingPrecondition(f"`{what}` failed: {said or failure.message}") from failure


def _clean(environment: Mapping[str, str], *, tree: bool) -> dict[str, str]:
    """The environment that a login begins with; ``tree``: with the module tree of this one."""
    return {
        **{name: environment[name] for name in (*_USER, *(_TREE if tree else ())) if name in environment},
        "PATH": _PATH,
        "LC_ALL": "C",
        "TERM": "dumb",
        "LMOD_PAGER": "none",
    }

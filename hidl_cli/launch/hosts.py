"""Hosts specified by the user with ``--hosts`` or ``--hostfile``.

A host file may have the format of MPICH (``host``, ``host:4``, ``host:4 binding=...``), Open MPI (``host slots=4
max-slots=8``) or MVAPICH (``host``, ``host:4``, ``host:4:mlx5_0``). If a host appears on several lines, its slots are
added up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from hidl_cli.batch_systems import SSH
from hidl_cli.errors import InvalidInput, Mark, Problem, UsageError
from hidl_cli.launch.hostlist import expand
from hidl_cli.launchers import through_ssh
from hidl_cli.site.schema import Policies, Site

WITHOUT_HOSTS = "its file names no hosts"

_NAME_OF_HOSTS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_LINE = re.compile(
    r"(?P<host>[^\s:]+)(?::(?P<slots>[^\s:]*))?(?::(?P<device>[A-Za-z0-9_.,:-]*))?(?P<rest>(?:\s+\S+)*)\s*"
)
_OPTION = re.compile(r"(?P<name>[A-Za-z_-]+)=(?P<value>[^\s=]+)")
_OPTIONS = ("slots", "max-slots", "max_slots", "binding", "map", "ifname", "if")
_EXPECTED = "a host name: letters, digits, dots, hyphens and underscores"
_USER = "a host name without a user (set `User` in ~/.ssh/config)"


@dataclass(frozen=True)
class Hosts:
    """Host names in the given order, without duplicates; ``slots`` contains the number of ranks per host, if given."""

    names: tuple[str, ...]
    slots: Mapping[str, int] = field(default_factory=dict)

    @property
    def expression(self) -> str:
        """The hosts in the syntax that ``parse_hosts`` accepts."""
        return ",".join(f"{name}:{self.slots[name]}" if name in self.slots else name for name in self.names)

    def ranks_per_node(self, nodes: int, wanted: int | None) -> int | None:
        """Return the number of ranks to start on each of the first ``nodes`` hosts.

        ``wanted`` takes precedence over the hosts' slots; the result is None if neither is given. Raises ``UsageError``
        if ``wanted`` exceeds the slots of a host, or if it is None and the slots differ.
        """
        given = {name: self.slots[name] for name in self.names[:nodes] if name in self.slots}
        if wanted is None and len(set(given.values())) > 1:
            listed = ", ".join(f"{name}:{slots}" for name, slots in given.items())
            raise UsageError(
                f"hosts have different numbers of slots: {listed}",
                hint=f"use --ranks-per-node {min(given.values())}: hidl starts the same number of ranks on each host",
            )
        for name, slots in given.items():
            if wanted is not None and wanted > slots:
                raise UsageError(f"{wanted} ranks per node requested; {name} has {slots} slot(s)")
        return wanted or next(iter(given.values()), None)


def named_hosts(hosts: Sequence[str] | str | None, hostfile: str | PathLike[str] | None) -> Hosts | None:
    """Return the hosts of ``--hosts`` or ``--hostfile``, or None if neither is given."""
    if hosts is not None and hostfile is not None:
        raise UsageError("hosts and a host file cannot be combined", hint="omit one of them")
    if hostfile is not None:
        return read_hostfile(Path(hostfile))
    return None if hosts is None else parse_hosts(hosts if isinstance(hosts, str) else ",".join(hosts))


def on_hosts(site: Site, hosts: Hosts | None) -> Site:
    """Return a copy of the site for runs on ``hosts`` over ssh, without the site's scheduler.

    The copy has no queues, limits or scheduler policies. It keeps those of the site's launchers that start ranks
    through ssh. If there are none, it gets the MPI libraries' own launchers. Without ``hosts``, the site is returned
    unchanged.
    """
    if hosts is None:
        return site
    named = {"hosts": ",".join(hosts.names), "count": len(hosts.names)}
    site = site.model_copy(
        update={"node_types": {name: each.model_copy(update=named) for name, each in site.node_types.items()}}
    )
    if site.scheduler == SSH:
        return site
    fitting = through_ssh()
    partitions = {
        name: each.model_copy(
            update={"min_nodes": 1, "max_nodes": None, "max_wall": None, "max_wall_by_nodes": [], "charge": None}
            | {"queue": None, "qos": None, "constraint": None}
        )
        for name, each in site.partitions.items()
    }
    kept = site.policies.model_dump(include={"environment", "modules"})
    return site.model_copy(
        update={
            "scheduler": SSH,
            "launchers": [name for name in site.launchers if name in fitting] or list(fitting),
            "partitions": partitions,
            "policies": Policies(**kept),
        }
    )


def is_host_name(text: str) -> bool:
    """Return whether the text is a host name or an IPv4 address, and not, for example, an option or a path."""
    return _NAME_OF_HOSTS.fullmatch(text) is not None


def parse_hosts(text: str) -> Hosts:
    """Parse ``gpu11,gpu12``, ``gpu[11-14]`` or ``gpu11:2,gpu12:2``; raises ``InvalidInput`` listing invalid hosts."""
    problems: list[Problem] = []
    found: list[tuple[str, int | None]] = []
    for word in _split(text):
        expression, colon, slots = word.partition(":")
        try:
            names = expand(expression) if "[" in expression else (expression,)
        except InvalidInput:
            names = (expression,)
        problem = next((each for name in names for each in _problems(name, slots if colon else None)), None)
        if problem is not None:
            problems.append(problem)
        found += [(name, int(slots) if slots.isdecimal() else None) for name in names]
    if problems:
        raise InvalidInput(f"{len(problems)} invalid host(s) in {text!r}", problems=problems)
    if not found:
        raise InvalidInput(f"no host in {text!r}", hint="use host names, as in --hosts gpu11,gpu12")
    return _merged(found, add=False)


def read_hostfile(path: Path) -> Hosts:
    """Read a host file in the format of MPICH, Open MPI or MVAPICH.

    Raises ``UsageError`` if the file cannot be read, and ``InvalidInput`` listing all invalid lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"host file {path} cannot be read: {error}") from error
    problems: list[Problem] = []
    found: list[tuple[str, int | None]] = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        at = Mark(path, number, line.index(text) + 1, len(text), line)
        matched = _LINE.fullmatch(text)
        if matched is None:
            problems.append(Problem(f"invalid line {text!r}", "host, host:slots or host slots=N", mark=at))
            continue
        options = dict(_options(matched["rest"].split(), at, problems))
        slots = matched["slots"] if matched["slots"] is not None else options.get("slots")
        problems += [Problem(each.message, each.expected, mark=at) for each in _problems(matched["host"], slots)]
        found.append((matched["host"], int(slots) if slots is not None and slots.isdecimal() else None))
    if problems:
        raise InvalidInput(f"host file {path} has {len(problems)} invalid line(s)", problems=problems)
    if not found:
        raise InvalidInput(f"host file {path} contains no hosts", hint="write one host per line")
    return _merged(found, add=True)


def _options(words: Sequence[str], at: Mark, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    for word in words:
        option = _OPTION.fullmatch(word)
        if option is None or option["name"] not in _OPTIONS:
            problems.append(Problem(f"unknown word {word!r}", "slots=N", mark=at))
        else:
            yield option["name"], option["value"]


def _problems(name: str, slots: str | None) -> Iterator[Problem]:
    if not is_host_name(name):
        yield Problem(f"invalid host name {name!r}", _USER if "@" in name else _EXPECTED)
    if slots is not None and not (slots.isdecimal() and 1 <= int(slots) <= 65536):
        yield Problem(f"invalid number of slots {slots!r} for host {name!r}", "a number of at least 1")


def _split(text: str) -> Iterator[str]:
    """Split at whitespace and at commas that are outside of brackets."""
    yield from (word for word in re.split(r"[,\s]+(?![^\[]*\])", text.strip()) if word)


def _merged(found: Iterable[tuple[str, int | None]], *, add: bool) -> Hosts:
    """Merge repeated hosts; with ``add``, sum their slots and count a line without a number as one slot."""
    entries = list(found)
    names = tuple(dict.fromkeys(name for name, _ in entries))
    slots: dict[str, int] = {}
    for name in names:
        given = [number for each, number in entries if each == name]
        if add and len(given) > 1:
            slots[name] = sum(number or 1 for number in given)
        elif given[-1] is not None:
            slots[name] = given[-1]
    return Hosts(names, slots)

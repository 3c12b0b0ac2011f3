"""Which site is this: the ``match`` of every known site against the host's name, the environment and the name that the
scheduler gives the cluster; with reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.inputs import overlay, yamlfile
from hidl_cli.inputs import source as tree
from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import Entry
from hidl_cli.inputs.source import Source, read_source
from hidl_cli.site.checks import RULES, conditions
from hidl_cli.site.probes.host import Cluster, Host, ThisHost, cluster
from hidl_cli.site.schema import Match, Site

_MATCH_BLOCK = re.compile(r"^match[ \t]*:.*(?:\n(?:[ \t#].*)?)*", re.MULTILINE)
_NOT_PLAIN_KEYS = re.compile(r"""^(?:[{?"'&!]|--- )""", re.MULTILINE)


@dataclass(frozen=True)
class Condition:
    """One condition of a ``match``: ``value`` must match the regular expression as a whole.

    Where the value is unknown (None), ``missing`` says why; it then does not hold.
    """

    subject: str
    pattern: str
    value: str | None
    missing: str = "is not set"

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.value is not None and re.fullmatch(self.pattern, self.value) is not None

    @property
    def reason(self) -> str:
        """Why it holds or not, for people."""
        if self.value is None:
            return f"{self.subject} {self.missing}"
        return f"{self.subject} '{self.value}' {'matches' if self.holds else 'does not match'} '{self.pattern}'"


@dataclass(frozen=True)
class Detection:
    """Whether this is that site: the conditions of its ``match``; ``problems``: why they could not be read."""

    site: str
    conditions: tuple[Condition, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def matched(self) -> bool:
        return bool(self.conditions) and all(condition.holds for condition in self.conditions)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this is that site or not, for people."""
        if self.problems:
            return ("invalid site file",)
        return tuple(condition.reason for condition in self.conditions) or ("no `match` in its file",)


@dataclass
class _Here:
    """What sites are held against. The scheduler is asked for the cluster's name once, when it is first needed."""

    host: Host

    @cached_property
    def cluster(self) -> Cluster:
        """The scheduler's name of the cluster."""
        return cluster(self.host)


def detect(host: Host | None = None, *, thorough: bool = False) -> tuple[Detection, ...]:
    """The outcome for every known site.

    The host's name is what the kernel says (``hostname``), without asking a name server. Only the ``match`` of a file
    is parsed where it is written plainly, and the scheduler is asked only where the other conditions of a site hold,
    so that dozens of sites cost milliseconds; if ``thorough``, it is asked if any site names its cluster.
    """
    here = _Here(host or ThisHost())
    return tuple(_outcome(entry, here, thorough) for entry in overlay.list_all("site"))


def choose(outcomes: Iterable[Detection]) -> str | None:
    """The site that matched by the most conditions, None where none did.

    Raises ``InvalidInput`` where two matched by equally many, or where a site's ``match`` could not be read.
    """
    outcomes = tuple(outcomes)
    name_it = "name the site with --site"
    if problems := [problem for outcome in outcomes for problem in outcome.problems]:
        faulty = ", ".join(outcome.site for outcome in outcomes if outcome.problems)
        raise InvalidInput(
            f"cannot determine whether this is {faulty}", problems=problems, hint=f"fix the file, or {name_it}"
        )
    matched = [outcome for outcome in outcomes if outcome.matched]
    most = max((len(outcome.conditions) for outcome in matched), default=0)
    best = [outcome.site for outcome in matched if len(outcome.conditions) == most]
    if len(best) > 1:
        raise InvalidInput(
            f"this machine matches more than one site: {' and '.join(best)}",
            hint=f"add a condition to `match` of one of them, or {name_it}",
        )
    return best[0] if best else None


def conditions_of(site: Site, host: Host) -> tuple[Condition, ...]:
    """The conditions of one site's ``match`` as they are on ``host``; none where it has no ``match``."""
    return _evaluate(site.name, site.match, _Here(host), thorough=False).conditions if site.match else ()


def _evaluate(site: str, match: Match, here: _Here, thorough: bool) -> Detection:
    """The conditions of a ``match`` with what they were held against."""
    found = [] if match.hostname is None else [Condition("host name", match.hostname, here.host.hostname)]
    found += [Condition(f"${name}", pattern, here.host.environment.get(name)) for name, pattern in match.env.items()]
    if match.cluster is not None:
        subject = "the scheduler's cluster name"
        if thorough or all(condition.holds for condition in found):
            name = here.cluster.name
            found.append(Condition(subject, match.cluster, name, f"is unknown: {here.cluster.source}"))
        else:
            found.append(Condition(subject, match.cluster, None, "not queried, as another condition does not match"))
    return Detection(site, tuple(found))


def _outcome(entry: Entry, here: _Here, thorough: bool) -> Detection:
    try:
        source = read_source(entry.path)
    except InvalidInput as error:
        return Detection(entry.name, problems=error.problems)
    text = source.text.replace("\r\n", "\n").replace("\r", "\n")
    block = _MATCH_BLOCK.search(text)
    inherits = bool(entry.shadows) and "extends" in text  # possibly the file of the same name that this one hides
    if not block and not inherits and not _NOT_PLAIN_KEYS.search(text):
        return Detection(entry.name)
    match = _read_plain(Source(entry.path, block[0])) if block else None
    if match is None:
        examined = examine(RULES, entry)
        if examined.model is None:
            return Detection(entry.name, problems=examined.problems)
        match = examined.model.match
    return _evaluate(entry.name, match, here, thorough) if match else Detection(entry.name)


def _read_plain(block: Source) -> Match | None:
    """The ``match`` that these lines of a site file hold; None if the whole file is needed."""
    document = yamlfile.parse(block)
    if document.root is None or document.problems:
        return None
    data = tree.plain(document.root)
    if any(conditions(data)):
        return None
    try:
        return Match.model_validate(data.get("match"))
    except ValidationError:
        return None

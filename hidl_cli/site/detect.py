"""Detect which site this machine belongs to.

Every site's ``match`` is compared with the host name, the environment and the cluster name that the scheduler reports.
"""

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
from hidl_cli.inputs.overlay import OverlayEntry
from hidl_cli.inputs.source import SourceText, read_source
from hidl_cli.site.checks import RULES, conditions
from hidl_cli.site.probes.host import Cluster, Host, ThisHost, cluster
from hidl_cli.site.schema import Match, Site

_MATCH_BLOCK = re.compile(r"^match[ \t]*:.*(?:\n(?:[ \t#].*)?)*", re.MULTILINE)
_NOT_PLAIN_KEYS = re.compile(r"""^(?:[{?"'&!]|--- )""", re.MULTILINE)


@dataclass(frozen=True)
class MatchCondition:
    """A condition in ``match``, whose regular expression must match the whole ``value``.

    If the value is unknown (None), the condition does not hold and ``missing`` is the reason.
    """

    subject: str
    pattern: str
    value: str | None
    missing: str = "is not set"

    @property
    def holds(self) -> bool:
        """True if the value is known and matches."""
        return self.value is not None and re.fullmatch(self.pattern, self.value) is not None

    @property
    def reason(self) -> str:
        """Explanation of the result."""
        if self.value is None:
            return f"{self.subject} {self.missing}"
        return f"{self.subject} '{self.value}' {'matches' if self.holds else 'does not match'} '{self.pattern}'"


@dataclass(frozen=True)
class Detection:
    """The result for one site: the conditions in its ``match``, or the problems that prevented reading them."""

    site: str
    conditions: tuple[MatchCondition, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def matched(self) -> bool:
        return bool(self.conditions) and all(condition.holds for condition in self.conditions)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Explanations of why this machine does or does not belong to the site."""
        if self.problems:
            return ("invalid site file",)
        return tuple(condition.reason for condition in self.conditions) or ("no `match` in its file",)


@dataclass
class _Here:
    """The host that sites are matched against.

    The scheduler is queried for the cluster name only when needed, and only once.
    """

    host: Host

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster's name according to the scheduler."""
        return cluster(self.host)


def detect(host: Host | None = None, *, thorough: bool = False) -> tuple[Detection, ...]:
    """Match this host against every known site.

    Matching dozens of sites takes only milliseconds: usually only a file's ``match`` block is parsed, and the scheduler
    is queried only if all of a site's other conditions hold or, if ``thorough`` is set, for every site with
    ``match.cluster``. The host name comes from the kernel (``hostname``); no name server is queried.
    """
    here = _Here(host or ThisHost())
    return tuple(_outcome(entry, here, thorough) for entry in overlay.list_all("site"))


def choose(outcomes: Iterable[Detection]) -> str | None:
    """Return the matching site with the most conditions, or None if no site matches.

    Raises ``InvalidInput`` if two sites match with the same number of conditions, or if a ``match`` could not be read.
    """
    outcomes = tuple(outcomes)
    choose_it = "select a site with --site"
    if problems := [problem for outcome in outcomes for problem in outcome.problems]:
        invalid = ", ".join(outcome.site for outcome in outcomes if outcome.problems)
        raise InvalidInput(
            f"cannot determine whether this is {invalid}", problems=problems, hint=f"fix the file, or {choose_it}"
        )
    matched = [outcome for outcome in outcomes if outcome.matched]
    most = max((len(outcome.conditions) for outcome in matched), default=0)
    best = [outcome.site for outcome in matched if len(outcome.conditions) == most]
    if len(best) > 1:
        raise InvalidInput(
            f"this machine matches more than one site: {' and '.join(best)}",
            hint=f"add a condition to `match` of one of them, or {choose_it}",
        )
    return best[0] if best else None


def conditions_of(site: Site, host: Host) -> tuple[MatchCondition, ...]:
    """Evaluate the conditions in a site's ``match`` on ``host``. The result is empty if the site has no ``match``."""
    return _evaluate(site.name, site.match, _Here(host), thorough=False).conditions if site.match else ()


def _evaluate(site: str, match: Match, here: _Here, thorough: bool) -> Detection:
    """Evaluate the conditions in ``match``."""
    found = [] if match.hostname is None else [MatchCondition("host name", match.hostname, here.host.hostname)]
    found += [
        MatchCondition(f"${name}", pattern, here.host.environment.get(name)) for name, pattern in match.env.items()
    ]
    if match.cluster is not None:
        subject = "the scheduler's cluster name"
        if thorough or all(condition.holds for condition in found):
            name = here.cluster.name
            found.append(MatchCondition(subject, match.cluster, name, f"is unknown: {here.cluster.source}"))
        else:
            missing = "was not queried: another condition does not match"
            found.append(MatchCondition(subject, match.cluster, None, missing))
    return Detection(site, tuple(found))


def _outcome(entry: OverlayEntry, here: _Here, thorough: bool) -> Detection:
    try:
        source = read_source(entry.path)
    except InvalidInput as error:
        return Detection(entry.name, problems=error.problems)
    text = source.text.replace("\r\n", "\n").replace("\r", "\n")
    block = _MATCH_BLOCK.search(text)
    inherits = bool(entry.shadows) and "extends" in text  # may extend the file of the same name that it shadows
    if not block and not inherits and not _NOT_PLAIN_KEYS.search(text):
        return Detection(entry.name)
    match = _read_plain(SourceText(entry.path, block[0])) if block else None
    if match is None:
        examined = examine(RULES, entry)
        if examined.model is None:
            return Detection(entry.name, problems=examined.problems)
        match = examined.model.match
    return _evaluate(entry.name, match, here, thorough) if match else Detection(entry.name)


def _read_plain(block: SourceText) -> Match | None:
    """Return the ``match`` in these lines of a site file, or None if the whole file must be read."""
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

"""An installation's packages against published vulnerabilities: those that hidl ships, and files brought along."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hidl_cli.doctor.advisories import find_advisories
from hidl_cli.inventory.components import Component, components
from hidl_cli.inventory.osv import Record, read
from hidl_cli.stack.installation import Installation


@dataclass(frozen=True)
class Vulnerability:
    """An affected package. ``fixed``: the first version without it; ``handled``: why it does not count here."""

    id: str
    aliases: tuple[str, ...]
    package: str
    version: str
    text: str
    fixed: str | None
    fix: str | None
    severity: str | None
    source: str
    handled: str | None = None

    @property
    def advice(self) -> str:
        """What to do about it."""
        return f"{self.package} {self.fixed} or newer" if self.fixed else self.fix or "read the advisory"

    def to_json(self) -> dict[str, Any]:
        """It, as part of a JSON document."""
        return asdict(self)


def audit(
    installations: Sequence[Installation], files: Sequence[Path] = (), ignored: Collection[str] = ()
) -> list[list[Vulnerability]]:
    """The known vulnerabilities of each installation's packages, each once, those that count first.

    ``files`` are advisories in OSV's format, ``ignored`` ids or aliases that do not count; neither do those that the
    stack's recipe says it has dealt with. Raises what ``read`` and ``components`` raise.
    """
    inventories = [components(installation) for installation in installations]
    packages = {component.name for found in inventories for component in found if component.is_of_pypi}
    records = [(record, str(file)) for file in files for record in read(file, packages)]
    return [
        _audit(found, installation.manifest.get("advisories", ()), records, ignored)
        for installation, found in zip(installations, inventories, strict=True)
    ]


def _audit(
    found: Sequence[Component],
    recipe: Sequence[Mapping[str, Any]],
    records: Sequence[tuple[Record, str]],
    ignored: Collection[str],
) -> list[Vulnerability]:
    told = {each["id"]: each["text"] for each in recipe if "id" in each}
    merged = _merge([*_of_osv(found, records), *_shipped(found)])
    judged = [replace(each, handled=_handled(each, told, ignored)) for each in merged]
    return sorted(judged, key=lambda each: (each.handled is not None, each.package, each.id))


def _handled(found: Vulnerability, told: Mapping[str, str], ignored: Collection[str]) -> str | None:
    names = (found.id, *found.aliases)
    if any(name in ignored for name in names):
        return "ignored (--ignore)"
    return next((told[name] for name in names if name in told), None)


def _shipped(found: Sequence[Component]) -> Iterator[Vulnerability]:
    versions = {component.name: component.version for component in found}
    for package, version, advisories in find_advisories(versions):
        for each in advisories:
            yield Vulnerability(each.id, (), package, version, each.text, each.fixed, each.fix, None, each.url)


def _of_osv(found: Sequence[Component], records: Sequence[tuple[Record, str]]) -> Iterator[Vulnerability]:
    versions = {component.name: component.version for component in found if component.is_of_pypi}
    for record, source in records:
        for package in sorted(record.packages() & set(versions)):
            version = versions[package]
            if record.affects(package, version):
                fixed = record.fixed(package, version)
                known = (record.id, tuple(record.aliases), package, version, record.text)
                yield Vulnerability(*known, fixed, None, record.severity, source)


def _merge(found: Sequence[Vulnerability]) -> list[Vulnerability]:
    """Each vulnerability of a package once: databases know the same one by different ids, which name each other."""
    kept: list[Vulnerability] = []
    for each in found:
        names = {each.id, *each.aliases}
        same = next((old for old in kept if old.package == each.package and names & {old.id, *old.aliases}), None)
        if same is None:
            kept.append(each)
        else:
            merged = replace(
                same,
                aliases=tuple(sorted((names | {*same.aliases}) - {same.id})),
                text=same.text or each.text,
                fixed=same.fixed or each.fixed,
                severity=same.severity or each.severity,
            )
            kept[kept.index(same)] = merged
    return kept

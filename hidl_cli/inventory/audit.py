"""An installation's packages against published vulnerabilities: those that hidl ships, and files brought along."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hidl_cli.doctor.examine import find_advisories
from hidl_cli.errors import InvalidInput, UsageError
from hidl_cli.inventory.bill import Component, components
from hidl_cli.stack.installation import Installation

ECOSYSTEM = "PyPI"

_SUFFIXES = (".json", ".yaml", ".yml")
_LARGEST = 16 * 1024 * 1024  # bytes of one record, or of a list of them
_MOST = 500_000  # records of one file; PyPI's export has 30,000 in 2026


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Event(_Record):
    introduced: str | None = None
    fixed: str | None = None
    last_affected: str | None = None


class _Range(_Record):
    type: str
    events: list[_Event]


class _Package(_Record):
    ecosystem: str
    name: str


class _Affected(_Record):
    package: _Package | None = None
    ranges: list[_Range] = Field(default_factory=list)
    versions: list[str] = Field(default_factory=list)


class _Specific(_Record):
    severity: Any = None


class Record(_Record):
    """One advisory. Only what hidl reads of it."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.:-]{2,80}$")]
    summary: str = ""
    details: str = ""
    aliases: list[str] = Field(default_factory=list)
    withdrawn: str | datetime | None = None  # a date in YAML
    affected: list[_Affected] = Field(default_factory=list)
    database_specific: _Specific | None = None

    @property
    def text(self) -> str:
        """What it is about, in a line."""
        return (self.summary or self.details.strip().partition("\n")[0]).strip()

    @property
    def severity(self) -> str | None:
        """``low`` to ``critical``, where the database rates it."""
        rated = self.database_specific.severity if self.database_specific else None
        return rated.lower() if isinstance(rated, str) else None

    @property
    def is_of_pypi(self) -> bool:
        """Whether it is about a package of PyPI, withdrawn or not."""
        return any(True for _ in self._of_pypi())

    def packages(self) -> set[str]:
        """The normalized names of the packages of PyPI that it is about; none if it was withdrawn."""
        return set() if self.withdrawn else {canonicalize_name(name) for name, _ in self._of_pypi()}

    def affects(self, package: str, version: str) -> bool:
        """Is that version of a package affected?"""
        found = [affected for name, affected in self._of_pypi() if canonicalize_name(name) == package]
        return any(_holds(affected, version) for affected in found)

    def fixed(self, package: str, version: str) -> str | None:
        """The first version after this one that is not affected; None if there is none."""
        now = _parsed(version)
        fixes = {
            fix
            for name, affected in self._of_pypi()
            if canonicalize_name(name) == package
            for each in affected.ranges
            if each.type == "ECOSYSTEM"
            for event in each.events
            if event.fixed and (fix := _parsed(event.fixed)) is not None and now is not None and fix > now
        }
        return str(min(fixes)) if fixes else None

    def _of_pypi(self) -> Iterator[tuple[str, _Affected]]:
        for each in self.affected:
            if each.package is not None and each.package.ecosystem.partition(":")[0] == ECOSYSTEM:
                yield each.package.name, each


def read(file: Path, packages: set[str]) -> list[Record]:
    """The records about ``packages`` (normalized names) in a file: JSON or YAML (a record, or a list of them), a zip
    archive of such files as osv.dev exports it, or a directory tree such as PyPA's advisory-database.

    Raises ``UsageError`` if it cannot be read, ``InvalidInput`` if it holds something else, or nothing about PyPI.
    """
    found, known = [], False
    try:
        for record in _records(file):
            known = known or record.is_of_pypi
            if record.packages() & packages:
                found.append(record)
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"cannot read the advisories {file}: {error}") from error
    if not known:
        raise InvalidInput(
            f"{file} holds no advisory about a package of PyPI",
            hint="--advisories takes PyPI's export of osv.dev (PyPI/all.zip), or a clone of PyPA's advisory-database",
        )
    return found


def _records(file: Path) -> Iterator[Record]:
    for count, (name, text) in enumerate(_texts(file)):
        if count >= _MOST:
            raise InvalidInput(f"{file} holds more than {_MOST:,} files")
        try:
            document = _document(name, text)
            yield from (
                Record.model_validate(each) for each in (document if isinstance(document, list) else [document])
            )
        except (ValueError, RecursionError, ValidationError, yaml.YAMLError) as error:
            raise InvalidInput(
                f"{name} is not an advisory of OSV: {_first(error)}",
                hint="--advisories takes JSON or YAML of the OSV format, or a zip archive or directory of it",
            ) from error


def _document(name: str, text: bytes) -> Any:
    if not name.endswith((".yaml", ".yml")):
        return json.loads(text)
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _texts(file: Path) -> Iterator[tuple[str, bytes]]:
    if file.is_dir():
        wanted = (*_SUFFIXES, ".zip")
        for each in sorted(each for each in file.rglob("*") if each.suffix in wanted and each.is_file()):
            yield from _texts(each)
    elif zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.filename.endswith(_SUFFIXES):
                    with archive.open(member) as opened:
                        yield f"{file}: {member.filename}", _bounded(opened.read(_LARGEST + 1), member.filename)
    else:
        with file.open("rb") as opened:
            yield str(file), _bounded(opened.read(_LARGEST + 1), str(file))


def _bounded(text: bytes, name: str) -> bytes:
    if len(text) > _LARGEST:
        raise InvalidInput(f"{name!r} is larger than {_LARGEST:,} bytes")
    return text


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, found['loc'])) or 'the document'}: {found['msg']}"
    return str(error)


def _holds(affected: _Affected, version: str) -> bool:
    """By the evaluation algorithm of OSV's specification: a version that is listed, or in a range."""
    now = _parsed(version)
    if version in affected.versions or (now is not None and any(_parsed(each) == now for each in affected.versions)):
        return True
    return now is not None and any(_in_range(each, now) for each in affected.ranges if each.type == "ECOSYSTEM")


def _in_range(range_: _Range, now: Version) -> bool:
    events = sorted(
        (
            (at, kind)
            for event in range_.events
            for kind, text in (("introduced", event.introduced), ("fixed", event.fixed), ("last", event.last_affected))
            if text is not None and (at := _parsed("0.dev0" if text == "0" else text)) is not None
        ),
        key=lambda event: event[0],
    )
    holds = False
    for at, kind in events:
        if kind == "introduced" and now >= at:
            holds = True
        elif (kind == "fixed" and now >= at) or (kind == "last" and now > at):
            holds = False
    return holds


def _parsed(version: str) -> Version | None:
    """A version of PEP 440 without its local part (``+cpu``), which advisories do not know; None if it is none."""
    try:
        return Version(Version(version).public)
    except InvalidVersion:
        return None


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

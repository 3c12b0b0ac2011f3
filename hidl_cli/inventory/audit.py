"""Audit an installation's packages for vulnerabilities, using hidl's own advisories and files in OSV format."""

from __future__ import annotations

import json
import tarfile
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
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_MAX_BYTES = 16 * 1024 * 1024  # limit per record or list of records
_MAX_FILES = 500_000  # limit per archive or directory; PyPI's export contains 30,000 in 2026


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


class OsvRecord(_Record):
    """An advisory in OSV format, reduced to the fields that hidl uses."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.:-]{2,80}$")]
    summary: str = ""
    details: str = ""
    aliases: list[str] = Field(default_factory=list)
    withdrawn: str | datetime | None = None  # YAML parses dates
    affected: list[_Affected] = Field(default_factory=list)
    database_specific: _Specific | None = None

    @property
    def text(self) -> str:
        """The summary, or the first line of the details."""
        return (self.summary or self.details.strip().partition("\n")[0]).strip()

    @property
    def severity(self) -> str | None:
        """The severity according to the database, from ``low`` to ``critical``, or None if it is not rated."""
        rated = self.database_specific.severity if self.database_specific else None
        return rated.lower() if isinstance(rated, str) else None

    @property
    def is_of_pypi(self) -> bool:
        """True if the advisory concerns a package on PyPI. Withdrawn advisories count as well."""
        return any(True for _ in self._of_pypi())

    def packages(self) -> set[str]:
        """Return the normalized names of the affected PyPI packages, or none if the advisory was withdrawn."""
        return set() if self.withdrawn else {canonicalize_name(name) for name, _ in self._of_pypi()}

    def affects(self, package: str, version: str) -> bool:
        """Return whether this version of a package is affected."""
        found = [affected for name, affected in self._of_pypi() if canonicalize_name(name) == package]
        return any(_includes(affected, version) for affected in found)

    def fixed(self, package: str, version: str) -> str | None:
        """Return the next version that fixes the vulnerability, or None if there is none."""
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


def read(file: Path, packages: set[str]) -> list[OsvRecord]:
    """Read the advisories for ``packages`` (normalized names) from a file.

    The file may be JSON or YAML with a record or a list of records, a zip or tar archive of such files (osv.dev
    exports zip), or a directory tree such as PyPA's advisory-database. Raises ``UsageError`` if it cannot be read, and
    ``InvalidInput`` if it contains anything else or no advisory about a PyPI package.
    """
    found, known = [], False
    try:
        for record in _records(file):
            known = known or record.is_of_pypi
            if record.packages() & packages:
                found.append(record)
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UsageError(f"cannot read the advisories {file}: {error}") from error
    if not known:
        raise InvalidInput(
            f"{file} contains no advisory about a PyPI package",
            hint="use PyPI's export from osv.dev (PyPI/all.zip) or a clone of PyPA's advisory-database",
        )
    return found


def _records(file: Path) -> Iterator[OsvRecord]:
    for count, (name, text) in enumerate(_texts(file)):
        if count >= _MAX_FILES:
            raise InvalidInput(f"{file} contains more than {_MAX_FILES:,} files")
        try:
            document = _document(name, text)
            records = document if isinstance(document, list) else [document]
            yield from (OsvRecord.model_validate(record) for record in records)
        except (ValueError, RecursionError, ValidationError, yaml.YAMLError) as error:
            raise InvalidInput(
                f"{name} is not an advisory in OSV format: {_first(error)}",
                hint="--advisories accepts JSON or YAML in OSV format, and archives or directories of such files",
            ) from error


def _document(name: str, text: bytes) -> Any:
    if not name.lower().endswith((".yaml", ".yml")):
        return json.loads(text)
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _texts(file: Path) -> Iterator[tuple[str, bytes]]:
    if file.is_dir():
        wanted = (*_SUFFIXES, *_ARCHIVES)
        for each in sorted(each for each in file.rglob("*") if each.name.lower().endswith(wanted) and each.is_file()):
            yield from _texts(each)
    elif zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.filename.lower().endswith(_SUFFIXES):
                    with archive.open(member) as opened:
                        yield f"{file}: {member.filename}", _bounded(opened.read(_MAX_BYTES + 1), member.filename)
    elif file.name.lower().endswith(_ARCHIVES):
        with tarfile.open(file) as tar:
            for entry in tar:
                if entry.name.lower().endswith(_SUFFIXES) and (content := tar.extractfile(entry)):
                    yield f"{file}: {entry.name}", _bounded(content.read(_MAX_BYTES + 1), entry.name)
    else:
        with file.open("rb") as opened:
            yield str(file), _bounded(opened.read(_MAX_BYTES + 1), str(file))


def _bounded(text: bytes, name: str) -> bytes:
    if len(text) > _MAX_BYTES:
        raise InvalidInput(f"{name!r} is larger than {_MAX_BYTES:,} bytes")
    return text


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, found['loc'])) or 'the document'}: {found['msg']}"
    return str(error)


def _includes(affected: _Affected, version: str) -> bool:
    """Return whether a version is affected, following the evaluation algorithm in the OSV specification."""
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
    included = False
    for at, kind in events:
        if kind == "introduced" and now >= at:
            included = True
        elif (kind == "fixed" and now >= at) or (kind == "last" and now > at):
            included = False
    return included


def _parsed(version: str) -> Version | None:
    """Parse a PEP 440 version without its local part (``+cpu``), which advisories never include.

    Returns None if it is invalid.
    """
    try:
        return Version(Version(version).public)
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class Vulnerability:
    """A vulnerability in a package.

    ``fixed`` is the first version without the vulnerability, and ``handled`` is the reason to ignore it.
    """

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
        """The recommended action."""
        return f"{self.package} {self.fixed} or newer" if self.fixed else self.fix or "read the advisory"

    def to_json(self) -> dict[str, Any]:
        """Return the vulnerability as JSON data."""
        return asdict(self)


def audit(
    installations: Sequence[Installation], files: Sequence[Path] = (), ignored: Collection[str] = ()
) -> list[list[Vulnerability]]:
    """Return each installation's known vulnerabilities without duplicates, with ignored ones at the end.

    Args:
        files: Advisories in OSV format.
        ignored: Identifiers or aliases to ignore, in addition to those that the stack's recipe declares as handled.

    Propagates errors raised by ``read`` and ``components``.
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
    records: Sequence[tuple[OsvRecord, str]],
    ignored: Collection[str],
) -> list[Vulnerability]:
    handled = {each["id"]: each["text"] for each in recipe if "id" in each}
    merged = _merge([*_of_osv(found, records), *_shipped(found)])
    judged = [replace(each, handled=_handled(each, handled, ignored)) for each in merged]
    return sorted(judged, key=lambda each: (each.handled is not None, each.package, each.id))


def _handled(found: Vulnerability, handled: Mapping[str, str], ignored: Collection[str]) -> str | None:
    names = (found.id, *found.aliases)
    if any(name in ignored for name in names):
        return "ignored (--ignore)"
    return next((handled[name] for name in names if name in handled), None)


def _shipped(found: Sequence[Component]) -> Iterator[Vulnerability]:
    versions = {component.name: component.version for component in found}
    for package, version, advisories in find_advisories(versions):
        for each in advisories:
            yield Vulnerability(each.id, (), package, version, each.text, each.fixed, each.fix, None, each.url)


def _of_osv(found: Sequence[Component], records: Sequence[tuple[OsvRecord, str]]) -> Iterator[Vulnerability]:
    versions = {component.name: component.version for component in found if component.is_of_pypi}
    for record, source in records:
        for package in sorted(record.packages() & set(versions)):
            version = versions[package]
            if record.affects(package, version):
                fixed = record.fixed(package, version)
                known = (record.id, tuple(record.aliases), package, version, record.text)
                yield Vulnerability(*known, fixed, None, record.severity, source)


def _merge(found: Sequence[Vulnerability]) -> list[Vulnerability]:
    """Merge duplicates, because databases list a vulnerability under different identifiers, linked as aliases."""
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

"""Bills of materials of installations in CycloneDX format (ECMA-424), and audits of their packages for vulnerabilities.

An audit uses hidl's own advisories and files in OSV format.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import tarfile
import uuid
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import yaml
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import AttachedText, HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component as Entry
from cyclonedx.model.component import ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hidl_cli import __version__
from hidl_cli.doctor.examine import find_advisories
from hidl_cli.documents import read_json
from hidl_cli.errors import InvalidInput, MissingPrecondition, UsageError
from hidl_cli.stack import lock
from hidl_cli.stack.installation import Installation

#: ``build`` is a wheel built by hidl, and ``program`` is a build without Python.
ComponentKind = Literal["wheel", "build", "program", "spack", "external", "rpm", "own"]

_MAX_LICENSE = 100  # maximum length; a longer `License` field contains the license's text instead of its name


@dataclass(frozen=True)
class Component:
    """A package in an installation.

    Attributes:
        hashes: SHA-256 of the files that may be installed (a wheel may have one file for each platform), or of the
            source.
        patches: Name and SHA-256 of each patch.
        notes: Other identifying information, by name.
    """

    kind: ComponentKind
    name: str
    version: str
    hashes: tuple[str, ...] = ()
    license: str | None = None
    patches: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def is_of_pypi(self) -> bool:
        """True if PyPI has the package under this name and version."""
        return self.kind in ("wheel", "build")


def components(installation: Installation) -> list[Component]:
    """Return all packages, sorted by kind, then by name. Raises ``MissingPrecondition`` if the lockfile is missing."""
    manifest = installation.manifest
    licenses = _licenses(installation.prefix)
    found = [*_built(manifest, licenses), *_spack(manifest), *_rpm(manifest), *_own(manifest, licenses)]
    built = {component.name for component in found if component.kind in ("build", "own")}
    found += [wheel for wheel in _wheels(installation, licenses) if wheel.name not in built]
    return sorted(found, key=lambda component: (component.kind, component.name, component.version))


def _wheels(installation: Installation, licenses: Mapping[str, str]) -> Iterator[Component]:
    file = installation.prefix / "lock.txt"
    if not file.is_file():
        raise MissingPrecondition(
            f"{installation.prefix} has no lock.txt", hint="hidl stack verify lists all missing files"
        )
    for package in lock.read(file).packages:
        yield Component("wheel", package.name, package.version, package.hashes, licenses.get(package.name))


def _built(manifest: Mapping[str, Any], licenses: Mapping[str, str]) -> Iterator[Component]:
    for build in manifest.get("builds", ()):
        yield Component(
            "build" if build["kind"] == "wheel" else "program",
            build["name"],
            build["version"],
            (build["source"]["sha256"],),
            licenses.get(canonicalize_name(build["name"])),
            tuple((patch["file"], patch["sha256"]) for patch in build["patches"]),
            (("source", build["source"]["file"]), *sorted(build["against"].items())),
        )


def _spack(manifest: Mapping[str, Any]) -> Iterator[Component]:
    part = manifest.get("spack")
    if part is None:
        return
    repositories = tuple((f"repository {name}", commit) for name, commit in sorted(part["repositories"].items()))
    for name, node in part["hashes"].items():
        external = part["externals"].get(name)
        notes = (("spack hash", node), *((("path", external),) if external else repositories))
        yield Component("external" if external else "spack", name, str(manifest["packages"][name]), notes=notes)


def _rpm(manifest: Mapping[str, Any]) -> Iterator[Component]:
    part = manifest.get("rpm")
    if part is not None:
        version = manifest["mpi"]["version"] or "unknown"
        yield Component("rpm", part["name"], version, (part["sha256"],), notes=(("file", Path(part["file"]).name),))


def _own(manifest: Mapping[str, Any], licenses: Mapping[str, str]) -> Iterator[Component]:
    for name, wheel in manifest.get("own", {}).items():
        notes = (("digest of its files", wheel["digest"]),)
        yield Component("own", name, wheel["version"], license=licenses.get(name), notes=notes)


def _licenses(prefix: Path) -> dict[str, str]:
    """Return the licenses of the distributions in a prefix as SPDX expressions or names, taken from their metadata."""
    places = [str(place) for place in prefix.glob("lib/python3*/site-packages")]
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=places):
        metadata = distribution.metadata
        named = next((metadata[key].strip() for key in ("License-Expression", "License") if key in metadata), "")
        classifiers = [
            line.rpartition(" :: ")[2]
            for line in metadata.get_all("Classifier") or ()
            if line.startswith("License ::") and line != "License :: OSI Approved"
        ]
        license_ = named if named and len(named) <= _MAX_LICENSE and "\n" not in named else ", ".join(classifiers)
        if license_ and "Name" in metadata:
            found[canonicalize_name(metadata["Name"])] = license_
    return found


_NAMESPACE = uuid.UUID("5a2c2f0e-6a1d-4f0b-8a5e-0c5b1f1d7a11")
_TYPES = {"wheel": "pypi", "build": "pypi", "rpm": "rpm"}  # purl types; other kinds have the type generic
_BUILT = ("build", "program")  # kinds whose hash identifies the source


def is_bill(file: Path) -> bool:
    """Return whether a file is a bill of materials that ``cyclonedx`` has written."""
    try:
        tools = read_json(file)["metadata"]["tools"]["components"]
        return any(tool["name"] == "hidl" for tool in tools)
    except (LookupError, TypeError, ValueError, RecursionError):
        return False


def cyclonedx(installation: Installation) -> str:
    """Return the bill of materials as CycloneDX 1.6 JSON. The text is the same for every call.

    Raises ``MissingPrecondition`` if the installation is incomplete.
    """
    manifest = installation.manifest
    stack = Entry(
        name=manifest["stack"],
        version=manifest["id"],
        type=ComponentType.APPLICATION,
        bom_ref=f"stack:{manifest['site']}/{manifest['stack']}/{manifest['id']}",
        description=manifest["title"],
        properties=[
            Property(name=f"hidl:{key}", value=str(manifest[key]))
            for key in ("site", "provider", "python", "platform", "accelerator")
        ],
    )
    entries = [_entry(component) for component in components(installation)]
    bill = Bom(
        components=entries,
        serial_number=uuid.uuid5(_NAMESPACE, f"{manifest['site']} {manifest['stack']} {manifest['id']}"),
        metadata=BomMetaData(
            component=stack,
            tools=ToolRepository(components=[Entry(name="hidl", version=__version__, type=ComponentType.APPLICATION)]),
            timestamp=datetime.fromisoformat(manifest["created"]),
        ),
        dependencies=[
            Dependency(stack.bom_ref, [Dependency(entry.bom_ref) for entry in entries]),
            *(Dependency(entry.bom_ref) for entry in entries),
        ],
    )
    return f"{JsonV1Dot6(bill).output_as_string(indent=2)}\n"


def _entry(component: Component) -> Entry:
    spack = dict(component.notes).get("spack hash")
    qualifiers = {"spack_hash": spack} if spack else None
    purl = PackageURL(_TYPES.get(component.kind, "generic"), None, component.name, component.version, qualifiers)
    one = component.hashes if len(component.hashes) == 1 and component.kind not in _BUILT else ()
    patches = [
        Patch(
            type=PatchClassification.UNOFFICIAL,
            diff=Diff(text=AttachedText(content=f"{file} sha256:{sha256}", content_type="text/plain")),
        )
        for file, sha256 in component.patches
    ]
    return Entry(
        name=component.name,
        version=component.version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256) for sha256 in one],
        licenses=[LicenseFactory().make_from_string(component.license)] if component.license else None,
        pedigree=Pedigree(patches=patches) if patches else None,
        properties=list(_properties(component)),
    )


def _properties(component: Component) -> Iterator[Property]:
    yield Property(name="hidl:kind", value=component.kind)
    if component.kind in _BUILT:
        yield Property(name="hidl:source-sha256", value=component.hashes[0])
    elif len(component.hashes) > 1:
        for sha256 in component.hashes:
            yield Property(name="hidl:wheel-sha256", value=sha256)
    for name, value in component.notes:
        yield Property(name=f"hidl:{name.replace(' ', '-')}", value=value)


ECOSYSTEM = "PyPI"

_SUFFIXES = (".json", ".yaml", ".yml")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
#: Suffixes of other files that may contain advisories: formats that hidl does not read, and incomplete downloads.
_UNSUPPORTED = frozenset(
    [
        *(".7z", ".bz2", ".gz", ".lz4", ".rar", ".tbz2", ".txz", ".xz", ".zst"),
        *(".csv", ".db", ".jsonl", ".ndjson", ".sqlite", ".xml"),
        *(".crdownload", ".download", ".part", ".partial"),
        *(*_SUFFIXES, *_ARCHIVES),
    ]
)
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

    def affects(self, package: str, version: str) -> bool | None:
        """Return whether this version of a package is affected, or None if the advisory does not determine it."""
        found = [affected for name, affected in self._of_pypi() if canonicalize_name(name) == package]
        answers = {_includes(affected, version) for affected in found}
        return True if True in answers else None if None in answers else False

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


def read(file: Path, packages: set[str], unread: list[str] | None = None) -> list[OsvRecord]:
    """Read the advisories for ``packages`` (normalized names) from a file.

    The file may be JSON or YAML with a record or a list of records, a zip or tar archive of such files (osv.dev
    exports zip), or a directory tree such as PyPA's advisory-database. Files in an archive or a directory that may
    contain advisories in another form are added to ``unread``. Raises ``UsageError`` if the file cannot be read, and
    ``InvalidInput`` if it contains anything else or no advisory about a PyPI package.
    """
    found, known = [], False
    skipped: list[str] = []
    try:
        for record in _records(file, skipped):
            known = known or record.is_of_pypi
            if record.packages() & packages:
                found.append(record)
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UsageError(f"cannot read the advisories {file}: {error}") from error
    if not known:
        others = f" in a supported form (not read: {', '.join(skipped[:3])})" if skipped else ""
        raise InvalidInput(
            f"{file} contains no advisory about a PyPI package{others}",
            hint="use PyPI's export from osv.dev (PyPI/all.zip) or a clone of PyPA's advisory-database",
        )
    if unread is not None:
        unread += skipped
    return found


def _records(file: Path, unread: list[str]) -> Iterator[OsvRecord]:
    for count, (name, text) in enumerate(_texts(file, unread)):
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


def _texts(file: Path, unread: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and texts of advisories in a file or directory, and add other files' names to ``unread``."""
    if file.is_dir():
        yield from _texts_in_directory(file, unread)
    elif zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.filename.lower().endswith(_SUFFIXES):
                    with archive.open(member) as opened:
                        yield f"{file}: {member.filename}", _bounded(opened.read(_MAX_BYTES + 1), member.filename)
                elif _may_contain_advisories(member.filename):
                    unread.append(f"{file}: {member.filename}")
    elif file.name.lower().endswith(_ARCHIVES):
        with tarfile.open(file) as tar:
            for entry in tar:
                if entry.name.lower().endswith(_SUFFIXES) and (content := tar.extractfile(entry)):
                    yield f"{file}: {entry.name}", _bounded(content.read(_MAX_BYTES + 1), entry.name)
                elif not entry.isdir() and _may_contain_advisories(entry.name):
                    unread.append(f"{file}: {entry.name}")
    else:
        with file.open("rb") as opened:
            yield str(file), _bounded(opened.read(_MAX_BYTES + 1), str(file))


def _texts_in_directory(directory: Path, unread: list[str]) -> Iterator[tuple[str, bytes]]:
    for each in _files(directory):
        if each.name.lower().endswith((*_SUFFIXES, *_ARCHIVES)) and each.is_file():
            yield from _texts(each, unread)
        elif each.is_dir() or _may_contain_advisories(each.name):  # a directory behind a link is not entered
            unread.append(str(each))


def _files(directory: Path) -> list[Path]:
    """Return the files and links below a directory; raises ``OSError`` if a directory cannot be read."""

    def fail(error: OSError) -> None:
        raise error

    found = []
    for place, directories, names in os.walk(directory, onerror=fail):
        links = [name for name in directories if Path(place, name).is_symlink()]
        found += [Path(place, name) for name in (*names, *links)]
    return sorted(found)


def _may_contain_advisories(name: str) -> bool:
    return any(suffix in _UNSUPPORTED for suffix in PurePath(name.lower()).suffixes)


def _bounded(text: bytes, name: str) -> bytes:
    if len(text) > _MAX_BYTES:
        raise InvalidInput(f"{name!r} is larger than {_MAX_BYTES:,} bytes")
    return text


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, found['loc'])) or 'the document'}: {found['msg']}"
    return str(error)


def _includes(affected: _Affected, version: str) -> bool | None:
    """Return whether a version is affected, following the evaluation algorithm in the OSV specification.

    Returns None if the entry only has ranges of commits, or if versions that must be compared are not valid.
    """
    now = _parsed(version)
    if version in affected.versions or (now is not None and any(_parsed(each) == now for each in affected.versions)):
        return True
    ranges = [each for each in affected.ranges if each.type == "ECOSYSTEM"]
    if now is not None and any(_in_range(each, now) for each in ranges):
        return True
    begins = [event.introduced for each in ranges for event in each.events if event.introduced is not None]
    is_complete = bool(begins or affected.versions) and all(text == "0" or _parsed(text) for text in begins)
    return False if now is not None and is_complete else None


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

    ``fixed`` is the first version without the vulnerability, and ``handled`` is the reason to ignore it. If it is
    ``undecided``, the advisory does not determine whether the version is affected.
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
    undecided: bool = False

    @property
    def advice(self) -> str:
        """The recommended action."""
        if self.undecided:
            return f"read the advisory, and use --ignore {self.id} if it does not apply to this version"
        return f"{self.package} {self.fixed} or newer" if self.fixed else self.fix or "read the advisory"

    def to_json(self) -> dict[str, Any]:
        """Return the vulnerability as JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Audit:
    """The vulnerabilities of each installation, and files that may contain more advisories but were not read."""

    found: Sequence[Sequence[Vulnerability]]
    unread: Sequence[str]

    @property
    def counted(self) -> int:
        """The number of vulnerabilities to fix."""
        return sum(one.handled is None and not one.undecided for each in self.found for one in each)

    @property
    def undecided(self) -> int:
        """The number of advisories that may apply."""
        return sum(one.handled is None and one.undecided for each in self.found for one in each)

    @property
    def is_complete(self) -> bool:
        """True if there are no other vulnerabilities according to the advisories."""
        return not self.unread and not self.undecided


def audit(installations: Sequence[Installation], files: Sequence[Path] = (), ignored: Collection[str] = ()) -> Audit:
    """Find each installation's known vulnerabilities without duplicates, with ignored ones at the end.

    Args:
        files: Advisories in OSV format.
        ignored: Identifiers or aliases to ignore, in addition to those that the stack's recipe declares as handled.

    Propagates errors raised by ``read`` and ``components``.
    """
    inventories = [components(installation) for installation in installations]
    packages = {component.name for found in inventories for component in found if component.is_of_pypi}
    unread: list[str] = []
    records = [(record, str(file)) for file in files for record in read(file, packages, unread)]
    found = [
        _audit(inventory, installation.manifest.get("advisories", ()), records, ignored)
        for installation, inventory in zip(installations, inventories, strict=True)
    ]
    return Audit(found, unread)


def _audit(
    found: Sequence[Component],
    recipe: Sequence[Mapping[str, Any]],
    records: Sequence[tuple[OsvRecord, str]],
    ignored: Collection[str],
) -> list[Vulnerability]:
    handled = {each["id"]: each["text"] for each in recipe if "id" in each}
    merged = _merge([*_of_osv(found, records), *_shipped(found)])
    judged = [replace(each, handled=_handled(each, handled, ignored)) for each in merged]
    return sorted(judged, key=lambda each: (each.handled is not None, each.undecided, each.package, each.id))


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
            affected = record.affects(package, version)
            if affected is not False:
                fixed = record.fixed(package, version)
                known = (record.id, tuple(record.aliases), package, version, record.text)
                yield Vulnerability(*known, fixed, None, record.severity, source, undecided=affected is None)


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
                undecided=same.undecided and each.undecided,
            )
            kept[kept.index(same)] = merged
    return kept

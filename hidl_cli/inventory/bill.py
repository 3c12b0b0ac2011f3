"""Software bills of materials for installations, in CycloneDX format (ECMA-424)."""

from __future__ import annotations

import importlib.metadata
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

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

from hidl_cli import __version__
from hidl_cli.documents import read_json
from hidl_cli.errors import MissingPrecondition
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

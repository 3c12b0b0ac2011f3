"""The software bill of materials of an installation, in CycloneDX's format (ECMA-424)."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import AttachedText, HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component as Entry
from cyclonedx.model.component import ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from hidl_cli import __version__
from hidl_cli.inventory.components import Component, components
from hidl_cli.stack.installation import Installation

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMESPACE = uuid.UUID("5a2c2f0e-6a1d-4f0b-8a5e-0c5b1f1d7a11")
_TYPES = {"wheel": "pypi", "build": "pypi", "rpm": "rpm"}  # of purls; anything else is generic
_BUILT = ("build", "program")  # their hash is that of the source


def cyclonedx(installation: Installation) -> str:
    """The bill as JSON of CycloneDX 1.6; the same installation gives the same text.

    Raises ``MissingPrecondition`` if the installation is not complete.
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

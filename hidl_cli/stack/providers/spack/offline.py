"""What an air-gapped machine has: named before anything is built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli.documents import read_json
from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack.builds.sources import sha256

if TYPE_CHECKING:
    from hidl_cli.stack.providers.spack.lock import LockedSpec
    from hidl_cli.stack.providers.spack.part import SpackPart

#: What a directory of ``hidl stack fetch`` holds, in its ``manifest.json``.
SCHEMA = "hidl.mirror/1"


def refuse_what_is_missing(part: SpackPart, stack: str, cached: frozenset[str] = frozenset()) -> None:
    """Raise ``MissingPrecondition`` with the name of each package whose source is not here, or is not what it was.

    Packages in ``cached`` come from build caches, and need none. Without a mirror, Spack's own fetching tells the first
    that its cache does not hold; it comes before any build.
    """
    mirror = part.places.mirror
    lacking: list[str] = []
    if mirror is not None:
        brought, there = _brought(mirror), installed(part) | cached
        wanted = [node for node in part.lock.nodes if node.external is None and node.hash not in there]
        lacking = [reason for node in wanted if (reason := _why_missing(node, mirror, brought))]
    if part.places.builtin is None and not part.places.clone.is_dir():
        lacking.insert(0, "Spack's packages (a clone of spack-packages)")
    if lacking:
        raise MissingPrecondition(
            f"stack {stack} cannot be installed offline; what is not here: {', '.join(lacking)}",
            hint=f"on a machine with a network: hidl stack fetch {stack} --site {part.lock.site} --to DIR; "
            "then, here: --offline --mirror DIR",
        )


def installed(part: SpackPart) -> frozenset[str]:
    """The hashes of the packages that Spack's store holds, read from its index."""
    try:
        index = json.loads((part.places.spack / "store" / ".spack-db" / "index.json").read_text(encoding="utf-8"))
        records = index["database"]["installs"]
        return frozenset(key for key, record in records.items() if record.get("installed"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return frozenset()


def _brought(mirror: Path) -> Mapping[str, Any]:
    try:
        document = read_json(mirror / "manifest.json")
        if document["schema"] == SCHEMA:
            return dict(document["packages"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise MissingPrecondition(
        f"{mirror} holds nothing that `hidl stack fetch` brought", hint="--mirror DIR is the directory given to --to"
    )


def _why_missing(node: LockedSpec, mirror: Path, brought: Mapping[str, Any]) -> str | None:
    """What of a package is not here; None: all is. A package without a source needs none."""
    what = f"{node.name} {node.version}"
    if node.hash not in brought:
        return what
    for name, digest in brought[node.hash]["files"].items():
        file = mirror / "sources" / name
        if not file.is_file():
            return f"{what} ({name})"
        if sha256(file) != digest:
            return f"{what} ({name} is damaged: its SHA-256 is not the one that was noted)"
    return None

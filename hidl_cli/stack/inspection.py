"""Compare an installation with its recorded content, and repair it on request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hidl_cli.stack import content
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.content import ContentDifference
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.order import Order
from hidl_cli.stack.target import site_for_accelerator

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.order import Progress

_SHOWN = 10


@dataclass(frozen=True)
class Inspection:
    """The differences before and after a repair; ``seconds`` is the duration of the first comparison."""

    installation: Installation
    first: ContentDifference
    now: ContentDifference
    seconds: float

    @property
    def row(self) -> dict[str, str]:
        """A row of the table."""
        found, now = self.first, self.now
        repaired = len({*found.damaged, *found.missing} - {*now.damaged, *now.missing})
        summary = [
            *([f"{repaired} repaired"] if repaired else []),
            *([f"{len(now.damaged)} damaged"] if now.damaged else []),
            *([f"{len(now.missing)} missing"] if now.missing else []),
            *([f"{len(now.foreign)} foreign"] if now.foreign else []),
        ]
        return {
            "stack": self.installation.prefix.parent.name,
            "installation": str(self.installation.prefix),
            "files": f"{found.files:,}",
            "read": f"{found.read / 2**20:,.0f} MiB, {found.read / 1e9 / max(self.seconds, 1e-9):.1f} GB/s",
            "": ", ".join(summary) or "unchanged",
        }

    @property
    def lines(self) -> Iterator[str]:
        """The first few files of each kind, one per line."""
        for kind in ("damaged", "missing", "foreign"):
            paths = getattr(self.now, kind)
            yield from (f"{kind}: {self.installation.prefix / path}" for path in paths[:_SHOWN])
            if len(paths) > _SHOWN:
                yield f"{kind}: and {len(paths) - _SHOWN} more (--json lists all)"

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        repaired = sorted({*self.first.damaged, *self.first.missing} - {*self.now.damaged, *self.now.missing})
        return {
            "stack": self.installation.prefix.parent.name,
            "prefix": str(self.installation.prefix),
            "current": self.installation.is_current,
            "files": self.first.files,
            "bytes": self.first.read,
            "seconds": round(self.seconds, 3),
            "damaged": list(self.now.damaged),
            "missing": list(self.now.missing),
            "foreign": list(self.now.foreign),
            "repaired": repaired,
        }


def inspect(
    found: Installation, site: Site, progress: Progress, *, repair: bool = False, offline: bool = False
) -> Inspection:
    """Compare all of an installation's files with their record. If ``repair`` is set, replace damaged or missing files.

    Raises ``MissingPrecondition`` if the installation cannot be repaired.
    """
    name = found.prefix.parent.name
    began = time.monotonic()
    with progress.step(f"read {name}"):
        first = content.compare(found.prefix, content.read(found.prefix), deep=True)
    seconds = time.monotonic() - began
    if first.is_whole or not repair:
        return Inspection(found, first, first, seconds)
    from hidl_cli.stack import repair as repairing  # imports uv and Jinja2, which a comparison does not need

    site = site_for_accelerator(site, found.manifest.get("accelerator"))
    order = Order(site, load_stack(name), found.root, locked=True, offline=offline)
    return Inspection(found, first, repairing.repair(order, found.prefix, first, progress), seconds)

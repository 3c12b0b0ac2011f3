"""Compare an installation with its recorded content, and repair it on request."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import documents
from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack import activation, content, own_wheel
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.content import Content, ContentDifference
from hidl_cli.stack.install import new_log, plan_install
from hidl_cli.stack.installation import Installation, hold_lock, site_permissions
from hidl_cli.stack.order import Order, Progress
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers.venv import FromWheels
from hidl_cli.stack.target import site_for_accelerator

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site

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

    site = site_for_accelerator(site, found.manifest.get("accelerator"))
    order = Order(site, load_stack(name), found.root, locked=True, offline=offline)
    return Inspection(found, first, restore(order, found.prefix, first, progress), seconds)


def restore(order: Order, prefix: Path, wrong: ContentDifference, progress: Progress) -> ContentDifference:
    """Replace damaged and missing files with those of a temporary installation, and return the remaining differences.

    Files are replaced by renaming, so running jobs keep their open files. A file is only replaced if the new content
    matches the record, so a damaged cache does no additional harm.

    The files are first taken from the caches; if these are damaged too, the wheels are downloaded again. Raises
    ``MissingPrecondition`` if the stack's plan has changed, or if the stack was not installed from wheels.
    """
    planned = plan_install(order)
    plan = planned.plan
    if plan is None or plan.prefix != prefix or plan.provider != "wheels":
        from_wheels = plan is None or plan.provider == "wheels"
        reason = "its lockfile or hidl has changed" if from_wheels else "it was not installed from wheels"
        raise MissingPrecondition(
            f"{prefix} cannot be repaired: {reason}",
            hint=f"run hidl uninstall {plan.stack if plan else order.stack.name} --all, then install it again",
        )
    log = new_log(plan)
    with site_permissions(order.site, order.root), hold_lock(order.stack_directory / ".lock", progress.say):
        expected = content.read(prefix)
        _relink(prefix, expected, wrong)
        left = [path for path in (*wrong.damaged, *wrong.missing) if path in expected.files]
        owners = {expected.files[path].owner.partition("==")[0].replace("_", "-").lower() for path in left}
        for fresh in (False, True):
            if not left or (fresh and order.offline):
                break
            with _beside(_only(plan, owners)) as (other, empty):
                provider = FromWheels(order.site, order.mirror, cache=empty if fresh else None)
                for wheel in other.own:
                    own_wheel.build(wheel)
                provider.fill(other, log, progress, lambda: None)
                _complete(other.prefix, plan)
                left = [path for path in left if not _replaced(path, prefix, other.prefix, expected)]
    return content.compare(prefix, expected, deep=True)


@contextmanager
def _beside(plan: InstallPlan) -> Iterator[tuple[InstallPlan, Path]]:
    """Yield the plan with a temporary root on the same file system, and the path of an empty cache."""
    with tempfile.TemporaryDirectory(dir=plan.stack_directory, prefix=".repair-") as directory:
        yield replace(plan, root=Path(directory)), Path(directory, "cache")


def _complete(other: Path, plan: InstallPlan) -> None:
    """Write hidl's own files into the temporary prefix, with the content that they have in the planned prefix."""
    rendered = activation.render(plan)
    for file, text in (
        (Installation.at(other).activate, rendered.script),
        (other / "modulefile", rendered.modulefile),
        (other / plan.lock_file.name, plan.lock.wheels.text()),
    ):
        documents.write_text(file, text)


def _replaced(path: str, prefix: Path, other: Path, expected: Content) -> bool:
    """Replace a file with its counterpart in the temporary installation.

    Returns False if the counterpart's content does not match the record.
    """
    source, digest = other / path, expected.files[path].digest
    if not source.is_file() or source.is_symlink():
        return False
    if content.digest_of(source) != digest:  # the first line of each script contains the path of Python
        source.write_bytes(source.read_bytes().replace(os.fsencode(other), os.fsencode(prefix)))
        if content.digest_of(source) != digest:
            return False
    (prefix / path).parent.mkdir(parents=True, exist_ok=True)
    source.chmod(source.stat().st_mode & ~0o222)
    source.replace(prefix / path)
    return True


def _only(plan: InstallPlan, owners: set[str]) -> InstallPlan:
    """Restrict the plan to packages that own damaged files.

    The plan is unchanged if a file belongs to a build or to an unknown package.
    """
    own = {wheel.name for wheel in plan.own}
    built = {build.name for build in plan.builds}
    packages = {package.name for package in plan.lock.wheels.packages}
    if owners & built or not owners <= (own | packages | {""}):
        return plan
    return replace(
        plan,
        lock=plan.lock.wheels.without(packages - owners),
        own=tuple(wheel for wheel in plan.own if wheel.name in owners),
        builds=(),
    )


def _relink(prefix: Path, expected: Content, wrong: ContentDifference) -> None:
    for path in (*wrong.damaged, *wrong.missing):
        if path in expected.links:
            link = prefix / path
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.is_dir() and not link.is_symlink():
                shutil.rmtree(link)
            link.unlink(missing_ok=True)
            link.symlink_to(expected.links[path])

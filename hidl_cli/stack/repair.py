"""Replace the damaged files of an installation by those of a second one, made beside it from the same plan.

A file is put in place by a rename, and only if it has the content that was recorded: jobs that run keep what they have
opened, and a damaged cache cannot make matters worse.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hidl_cli import documents
from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack import activation, content, own_wheel
from hidl_cli.stack.content import Content, Difference
from hidl_cli.stack.install import draft, new_log
from hidl_cli.stack.installation import Installation, held, shared
from hidl_cli.stack.order import Order, Progress
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers.venv import FromWheels


def repair(order: Order, prefix: Path, wrong: Difference, progress: Progress) -> Difference:
    """Repair what is damaged or missing; return what still is.

    First from the caches; what they hold is compared, and if it is damaged too, wheels are downloaded again. Raises
    ``MissingPrecondition`` if the stack's plan is another one now, or its provider installs no wheels.
    """
    drafted = draft(order)
    plan = drafted.plan
    if plan is None or plan.prefix != prefix or plan.provider != "wheels":
        why = "is not from wheels" if plan is not None and plan.provider != "wheels" else "has another lock or hidl"
        raise MissingPrecondition(
            f"{prefix} cannot be repaired: it {why} than is installed now",
            hint=f"hidl uninstall {plan.stack if plan else order.stack.name} --all, and install it again",
        )
    log = new_log(plan)
    with shared(order.site, order.root), held(order.stack_directory / ".lock", progress.say):
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
    """The same plan for another prefix on the same file system, which is gone afterwards; and an empty cache."""
    with tempfile.TemporaryDirectory(dir=plan.stack_directory, prefix=".repair-") as directory:
        yield replace(plan, root=Path(directory)), Path(directory, "cache")


def _complete(other: Path, plan: InstallPlan) -> None:
    """The files that hidl itself writes into a prefix, as in that of the plan."""
    rendered = activation.render(plan)
    for file, text in (
        (Installation.at(other).activate, rendered.script),
        (other / "modulefile", rendered.modulefile),
        (other / plan.lock_file.name, plan.lock.wheels.text()),
    ):
        documents.write_text(file, text)


def _replaced(path: str, prefix: Path, other: Path, expected: Content) -> bool:
    """Put a file of the second installation into the first, unless its content is another one than was recorded."""
    source, digest = other / path, expected.files[path].digest
    if not source.is_file() or source.is_symlink():
        return False
    if content.digest_of(source) != digest:  # a script names its Python in the first line
        source.write_bytes(source.read_bytes().replace(os.fsencode(other), os.fsencode(prefix)))
        if content.digest_of(source) != digest:
            return False
    (prefix / path).parent.mkdir(parents=True, exist_ok=True)
    source.chmod(source.stat().st_mode & ~0o222)
    source.replace(prefix / path)
    return True


def _only(plan: InstallPlan, owners: set[str]) -> InstallPlan:
    """The plan with those of its packages alone that brought what is damaged; all of it where nobody is known to."""
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


def _relink(prefix: Path, expected: Content, wrong: Difference) -> None:
    for path in (*wrong.damaged, *wrong.missing):
        if path in expected.links:
            link = prefix / path
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.is_dir() and not link.is_symlink():
                shutil.rmtree(link)
            link.unlink(missing_ok=True)
            link.symlink_to(expected.links[path])

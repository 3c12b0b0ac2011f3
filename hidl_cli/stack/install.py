"""The act of installing: lock, fill the prefix, verify, publish. It can be killed at any moment and begun again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hidl_cli import __version__, documents
from hidl_cli.errors import BuildFailed, MissingPrecondition
from hidl_cli.stack import installation, own_wheel
from hidl_cli.stack.installation import MANIFEST, Installation
from hidl_cli.stack.lock import Choice, Locked
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.target import Target, detect

if TYPE_CHECKING:
    from hidl_cli.site.schema import ProviderName, Site
    from hidl_cli.stack.activation import Activation
    from hidl_cli.stack.schema import Stack

Action = Literal["installed", "switched", "nothing to do"]


class Progress(Protocol):
    """Who tells the user how it goes."""

    def say(self, text: str) -> None:
        """Tell one line."""
        ...

    def step(self, title: str, log: Path | None = None) -> AbstractContextManager[None]:
        """Show that a step is under way; its program's output goes to ``log``."""
        ...


@dataclass(frozen=True)
class Order:
    """What is to be installed: a stack, for a site, below a root; ``locked`` forbids to make a new lock.

    ``sources``: archives that the user names, by the build that they are for. ``provider``: who installs it, None: as
    the site says. ``spack``: where Spack is, ``mirror``: what ``hidl stack fetch`` brought, ``jobs``: how many
    compilers may run at once; None: as the site says, or nowhere.
    """

    site: Site
    stack: Stack
    root: Path
    locked: bool = False
    offline: bool = False
    sources: Mapping[str, Path] = field(default_factory=dict)
    provider: ProviderName | None = None
    spack: Path | None = None
    mirror: Path | None = None
    jobs: int | None = None

    @property
    def stack_directory(self) -> Path:
        """What holds all installations of the stack."""
        return self.root / self.site.name / self.stack.name


@dataclass(frozen=True)
class Outcome:
    """What came of an order. ``switched``: it was installed already, but another one was in use."""

    action: Action
    installation: Installation


@dataclass(frozen=True)
class Draft:
    """How far an order can be planned without touching anything: ``plan`` is None where a lock must be made first."""

    target: Target
    choice: Choice
    plan: InstallPlan | None


def draft(order: Order) -> Draft:
    """Plan the order; ``MissingPrecondition`` where it insists on a lock and none fits."""
    from hidl_cli.stack.providers import provider_for

    target = detect(order.site)
    provider = provider_for(order.site, order.provider, order.mirror)
    choice = provider.choose(order, target)
    if choice.lock is None or choice.file is None:
        if order.locked:
            raise _unlocked(order, choice)
        return Draft(target, choice, None)
    return Draft(target, choice, provider.plan(order, target, choice.lock, choice.file))


def preview(order: Order, progress: Progress) -> dict[str, Any]:
    """What ``install`` would do with the order, as part of a JSON document; nothing is touched, no secret is shown.

    Where Spack has no lock yet, it resolves the stack for this answer alone.
    """
    from hidl_cli.stack import verify
    from hidl_cli.stack.pip_settings import redact
    from hidl_cli.stack.providers import Preview, provider_for

    planned = draft(order)
    plan = planned.plan
    shown = Preview(())
    provider = provider_for(order.site, order.provider, order.mirror)
    if plan is None and provider.resolves_in_previews:
        file = order.root / "locks" / "not written yet"
        plan = provider.plan(order, planned.target, provider.resolve(order, planned.target, progress), file)
    if plan is None:
        action = "make a lock, install what it holds, verify, publish"
    elif _published(plan):
        action = "nothing to do"
    elif installation.at(plan.prefix):
        action = "switch to what is installed"
    else:
        action = "install, verify, publish"
        shown = provider.preview(plan)
    return {
        "site": order.site.name,
        "stack": order.stack.name,
        "action": action,
        "builds": list(shown.builds),
        "passed_over": [{"file": str(lock.file), "reason": lock.reason} for lock in planned.choice.passed_over],
        "plan": plan.to_json() if plan else None,
        "environment": plan.spack.environment.text if plan and plan.spack else None,
        "steps": [
            {
                "title": step.title,
                "argv": list(step.argv),
                "without_network": list(step.without_network) if step.without_network else None,
                "variables": {name: redact(value) for name, value in step.variables.items()},
            }
            for step in ((*shown.steps, verify.step(plan)) if plan and shown.steps else ())
        ],
    }


def install(order: Order, progress: Progress) -> Outcome:
    """Carry out the order, unless it is done already.

    Raises ``BuildFailed`` or ``MissingPrecondition``; nothing is published then.
    """
    done = _published(draft(order).plan)
    if done:
        return Outcome("nothing to do", done)
    with _writing(order), _alone(order, progress):
        planned = draft(order)  # whoever was waited for may have made the lock, or the whole installation
        for passed_over in planned.choice.passed_over:
            progress.say(f"the lock {passed_over.file} does not serve: {passed_over.reason}")
        plan = planned.plan or _plan_with_new_lock(order, planned.target, progress)
        done = _published(plan)
        if done:
            return Outcome("nothing to do", done)
        already = installation.at(plan.prefix)
        made = already or _build(order, plan, progress)
        installation.publish(plan.prefix)
        return Outcome("switched" if already else "installed", made)


def make_lock(order: Order, progress: Progress) -> tuple[Locked, Path]:
    """Resolve the stack anew, and write its lock to the root's ``locks``, where the next installation finds it."""
    with _writing(order), _alone(order, progress):
        plan = _plan_with_new_lock(order, detect(order.site), progress)
        return plan.lock, plan.lock_origin


def _plan_with_new_lock(order: Order, target: Target, progress: Progress) -> InstallPlan:
    from hidl_cli.stack.providers import provider_for

    provider = provider_for(order.site, order.provider, order.mirror)
    for note in provider.notes:
        progress.say(note)
    new = provider.resolve(order, target, progress)
    file = order.root / "locks" / new.filename
    documents.write_text(file, new.text())
    progress.say(f"wrote the lock {file}")
    return provider.plan(order, target, new, file)


def _published(plan: InstallPlan | None) -> Installation | None:
    """The plan's installation, if it is whole and in use."""
    if plan is None or installation.current(plan.stack_directory) != plan.prefix:
        return None
    shown = installation.modulefiles(plan.root, plan.site, plan.stack) / plan.id
    return installation.at(plan.prefix) if shown.is_file() else None


def _build(order: Order, plan: InstallPlan, progress: Progress) -> Installation:
    """Fill the prefix, verify it, and make it count by its manifest."""
    from hidl_cli.stack import verify
    from hidl_cli.stack.providers import provider_for

    provider = provider_for(order.site, order.provider, order.mirror)
    for note in provider.notes:
        progress.say(note)
    for advisory in plan.advisories:
        progress.say(f"{advisory['id']}: {advisory['text']}")
    for wheel in plan.own:
        if not wheel.file.is_file():
            with progress.step(f"build {wheel.name} {wheel.version}"):
                own_wheel.build(wheel)
    log = new_log(plan)
    rendered: list[Activation] = []

    def render() -> None:
        from hidl_cli.stack import activation

        rendered.append(activation.render(plan))

    try:
        provider.fill(plan, log, progress, render)
        with progress.step(verify.step(plan).title):
            checks = verify.run(plan, log)
        return _complete(plan, rendered[0], checks)
    except Exception:
        discard(plan.prefix)
        raise


def _complete(plan: InstallPlan, activation: Activation, checks: list[dict[str, Any]]) -> Installation:
    """Write what makes the prefix an installation, the manifest last."""
    from hidl_cli.stack import verify

    documents.write_text(Installation.at(plan.prefix).activate, activation.script)
    documents.write_text(plan.prefix / "modulefile", activation.modulefile)
    manifest = {
        "schema": installation.SCHEMA,
        **plan.to_json(),
        "title": plan.title,
        "hidl": __version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "activation": str(Installation.at(plan.prefix).activate),
        "modulefile": str(installation.modulefiles(plan.root, plan.site, plan.stack) / plan.id),
        "verification": {"schema": verify.SCHEMA, "checks": checks},
    }
    documents.write_json(plan.prefix / MANIFEST, manifest)
    return Installation(plan.prefix, manifest)


def discard(prefix: Path) -> None:
    """Remove a prefix, published or begun: it vanishes at once, and what links in it lead to stays."""
    for left in prefix.parent.glob(".removed-*"):
        shutil.rmtree(left)
    if prefix.is_dir() and not prefix.is_symlink():
        gone = prefix.with_name(f".removed-{prefix.name}")
        prefix.rename(gone)
        shutil.rmtree(gone)


@contextmanager
def _alone(order: Order, progress: Progress) -> Iterator[None]:
    """No other hidl works on this stack meanwhile."""
    from hidl_cli.stack.exclusive import held

    with held(order.stack_directory / ".lock", progress.say):
        yield


@contextmanager
def _writing(order: Order) -> Iterator[None]:
    """Say what an ``OSError`` means: the root cannot be written, or the disk is full."""
    try:
        yield
    except OSError as error:
        where = error.filename or order.root
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BuildFailed(
                f"the disk is full: {error.strerror}: {where}", hint="make room, or choose another place with --prefix"
            ) from error
        raise MissingPrecondition(
            f"cannot install below {order.root}: {error.strerror or error}: {where}",
            hint="choose a place that you may write to, with --prefix or with `install.root` in the site's file",
        ) from error


def new_log(plan: InstallPlan) -> Path:
    """A file for what is said while installing; it outlives the prefix."""
    now = datetime.now(timezone.utc)
    log = plan.root / "logs" / f"{plan.site}-{plan.stack}-{now:%Y%m%d-%H%M%S}-{os.getpid()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch(mode=0o600)
    return log


def _unlocked(order: Order, choice: Choice) -> MissingPrecondition:
    words = [f"stack {order.stack.name} has no lock that fits, and --locked forbids to make one"]
    words += [f"  {passed_over.file}: {passed_over.reason}" for passed_over in choice.passed_over]
    return MissingPrecondition("\n".join(words), hint=f"make a lock with: hidl stack lock {order.stack.name}")

"""The act of installing: lock, fill the prefix, verify, publish. It can be killed at any moment and begun again."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli import __version__, documents, process
from hidl_cli.errors import BuildFailed, ExitCode, HidlError, MissingPrecondition, UsageError
from hidl_cli.redaction import redact, redact_variable
from hidl_cli.stack import installation, own_wheel, verify
from hidl_cli.stack.builds import sources
from hidl_cli.stack.installation import MANIFEST, Installation, held, is_shared, shared
from hidl_cli.stack.lock import Choice, Locked
from hidl_cli.stack.order import Order, Progress
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers import provider_for
from hidl_cli.stack.providers.contract import Preview, Provider, WithEnvironment
from hidl_cli.stack.target import Target, detect
from hidl_cli.stack.verify import Here
from hidl_workloads import kernels

if TYPE_CHECKING:
    from hidl_cli.stack.activation import Activation
    from hidl_cli.stack.verify import Verified, Verifier


@dataclass(frozen=True)
class Result:
    """What came of one stack: an installation, or the error; ``seconds`` that it took."""

    stack: str
    action: Action | Literal["failed"]
    seconds: float
    installation: Installation | None = None
    error: HidlError | None = None

    def to_json(self) -> dict[str, Any]:
        """As part of a JSON document: the manifest with what was done, or the error."""
        if self.installation is not None:
            return {**self.installation.manifest, "action": self.action}
        assert self.error is not None
        code = int(self.error.exit_code)
        return {"stack": self.stack, "error": self.error.message, "hint": self.error.hint, "exit_code": code}


@dataclass(frozen=True)
class LeftOut:
    """A stack that was not asked for by its name, and needs what only the user can bring."""

    stack: str
    reason: str
    hint: str | None


def with_what_they_need(orders: Sequence[Order]) -> tuple[list[Order], list[LeftOut]]:
    """The orders that can be carried out, and the stacks whose source archive is not here and cannot be fetched."""
    able, left_out = [], []
    for order in orders:
        missing = _missing_source(order)
        if missing is None:
            able.append(order)
        else:
            left_out.append(LeftOut(order.stack.name, missing.message, missing.hint))
    return able, left_out


def _missing_source(order: Order) -> HidlError | None:
    if (order.provider or order.site.install.provider) != "wheels":
        return None
    for build in order.stack.builds:
        brought = build.name in order.sources or sources.newest(build, order.root) is not None
        if build.source.pypi is None and not brought:
            return sources.missing(build, order.root)
    return None


def install_each(
    orders: Sequence[Order], carry_out: Callable[[Order, Progress], InstallResult], progress: Progress
) -> Iterator[Result]:
    """Carry the orders out, one after another; the error of one does not stop the next."""
    for number, order in enumerate(orders, start=1):
        name, began = order.stack.name, time.monotonic()
        if len(orders) > 1:
            progress.say(f"[{number}/{len(orders)}] {name}")
        try:
            outcome = carry_out(order, progress)
        except UsageError:  # it would be said of each
            raise
        except HidlError as error:
            yield Result(name, "failed", time.monotonic() - began, error=error)
        else:
            yield Result(name, outcome.action, time.monotonic() - began, outcome.installation)


def exit_code(results: Sequence[Result]) -> ExitCode:
    """That of the one error, where a single stack was asked for; else 5 where one failed."""
    errors = [result.error for result in results if result.error is not None]
    if not errors:
        return ExitCode.OK
    return errors[0].exit_code if len(results) == 1 else ExitCode.BUILD_FAILED


Action = Literal["installed", "switched", "nothing to do"]


@dataclass(frozen=True)
class InstallResult:
    """What came of an order. ``switched``: it was installed already, but another one was in use."""

    action: Action
    installation: Installation


@dataclass(frozen=True)
class Draft:
    """How far an order can be planned without touching anything: ``plan`` is None where a lock must be made first."""

    provider: Provider
    target: Target
    choice: Choice
    plan: InstallPlan | None


def draft(order: Order) -> Draft:
    """Plan the order; ``MissingPrecondition`` where it insists on a lock and none fits."""
    target = _target(order)
    provider = provider_for(order.site, order.provider, order.mirror)
    choice = provider.choose(order, target)
    if choice.lock is None or choice.file is None:
        if order.locked:
            raise _unlocked(order, choice)
        return Draft(provider, target, choice, None)
    return Draft(provider, target, choice, provider.plan(order, target, choice.lock, choice.file))


def preview(order: Order, progress: Progress, verified: str = "here") -> dict[str, Any]:
    """What ``install`` would do with the order, as part of a JSON document; nothing is touched, no secret is shown.

    ``verified``: where, ``here``, in a ``job`` or not at all (``skip``).

    Where Spack has no lock yet, it resolves the stack for this answer alone.
    """
    planned = draft(order)
    plan = planned.plan
    shown = Preview(())
    provider = planned.provider
    obstacle: HidlError | None = None
    if plan is None and provider.resolves_in_previews:
        file = order.root / "locks" / "not written yet"
        try:
            plan = provider.plan(order, planned.target, provider.resolve(order, planned.target, progress), file)
        except HidlError as error:
            obstacle = error
    if obstacle is not None:
        action = "cannot be resolved"
    elif plan is None:
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
        "verified": verified,
        "builds": list(shown.builds),
        "passed_over": [{"file": str(lock.file), "reason": lock.reason} for lock in planned.choice.passed_over],
        "plan": plan.to_json() if plan else None,
        "environment": _environment(plan, provider, order, planned.target),
        "obstacle": {"error": obstacle.message, "hint": obstacle.hint, "exit_code": int(obstacle.exit_code)}
        if obstacle
        else None,
        "steps": [
            {
                "title": step.title,
                "argv": [redact(word) for word in step.argv],
                "without_network": list(step.without_network) if step.without_network else None,
                "variables": {name: redact_variable(name, value) for name, value in step.variables.items()},
            }
            for step in (*shown.steps, *([verify.step(plan)] if plan and shown.steps and verified == "here" else ()))
        ],
    }


def _environment(plan: InstallPlan | None, provider: Provider, order: Order, target: Target) -> str | None:
    """The input of the program that resolves the stack, if the provider has one."""
    if plan is not None:
        return plan.part.environment_text if plan.part else None
    return provider.environment_text(order, target) if isinstance(provider, WithEnvironment) else None


def install(order: Order, progress: Progress, verifier: Verifier | None = None) -> InstallResult:
    """Carry out the order, unless it is done already. ``verifier``: who proves that it works; None: ``verify.Here``.

    Raises ``BuildFailed`` or ``MissingPrecondition``; nothing is published then.
    """
    done = _published(draft(order).plan)
    if done:
        return InstallResult("nothing to do", done)
    verifier = verifier or Here(progress)
    verifier.check()
    with _writing(order), _alone(order, progress):
        planned = draft(order)  # another hidl may have made the lock, or the whole installation, meanwhile
        for passed_over in planned.choice.passed_over:
            progress.say(f"the lock {passed_over.file} does not serve: {passed_over.reason}")
        plan = planned.plan or _plan_with_new_lock(order, planned.provider, planned.target, progress)
        done = _published(plan)
        if done:
            return InstallResult("nothing to do", done)
        already = installation.at(plan.prefix)
        compiles = is_shared(order.site, order.root)
        made = already or _build(planned.provider, plan, progress, verifier, compiles=compiles)
        installation.publish(plan.prefix)
        return InstallResult("switched" if already else "installed", made)


def make_lock(order: Order, progress: Progress) -> tuple[Locked, Path]:
    """Resolve the stack again, and write its lock to the root's ``locks``, where the next installation finds it."""
    with _writing(order), _alone(order, progress):
        provider = provider_for(order.site, order.provider, order.mirror)
        plan = _plan_with_new_lock(order, provider, _target(order), progress)
        return plan.lock, plan.lock_origin


def _target(order: Order) -> Target:
    return detect(order.site, order.stack, order.platform)


def _plan_with_new_lock(order: Order, provider: Provider, target: Target, progress: Progress) -> InstallPlan:
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


def _build(
    provider: Provider, plan: InstallPlan, progress: Progress, verifier: Verifier, *, compiles: bool
) -> Installation:
    """Fill the prefix, verify it, and make it count by its manifest. ``compiles``: its Python modules beforehand."""
    from hidl_cli.stack import activation  # imports Jinja2, which "nothing to do" has no need of

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
        rendered.append(activation.render(plan))

    try:
        if verifier.is_under_way(plan):
            render()
        else:
            provider.fill(plan, log, progress, render)
            if compiles:
                _compile(plan, log, progress)
        documents.write_text(Installation.at(plan.prefix).activate, rendered[0].script)
        verified = verifier(plan, log)
        for check in verified.checks:
            if check["name"] == kernels.CHECK:  # how far GPUs are verified without one
                progress.say(f"{check['name']}: {check['detail']}")
        return _complete(plan, rendered[0], verified)
    except BuildFailed as failure:
        installation.discard(plan.prefix)
        raise _explain(failure, log) from failure
    except Exception:
        installation.discard(plan.prefix)
        raise


def _compile(plan: InstallPlan, log: Path, progress: Progress) -> None:
    """Compile its Python modules: users who may not write there would do so in each process of each run."""
    python = str(Installation.at(plan.prefix).python)
    words = (
        python,
        "-I",
        "-m",
        "compileall",
        "-q",
        "-j",
        "0",
        *map(str, plan.prefix.glob("lib/python*/site-packages")),
    )
    with progress.step("compile Python modules"):  # a package may hold one that is not for this Python: no failure
        process.run(words, cwd=plan.prefix, env=os.environ, log=log, check=False)


def _explain(failure: BuildFailed, log: Path) -> BuildFailed:
    """The failure with its likely cause, if the log or the failure itself shows a known one."""
    from hidl_cli.diagnoses import (  # reads the catalogue, which only failures need
        format_causes,
        read_blocks,
        search,
    )

    with log.open("rb") as file:
        found = search(chain(read_blocks(file), [f"{failure.message}\n".encode()]))
    causes = [cause.finding for cause in found if cause.finding.severity == "error"]
    if not causes:
        return failure
    hint = f"{causes[0].fix}\n      {failure.hint}" if failure.hint else causes[0].fix
    return BuildFailed(f"{failure.message}\n{format_causes(causes)}", hint=hint)


def _complete(plan: InstallPlan, activation: Activation, verified: Verified) -> Installation:
    """Write what makes the prefix an installation, the manifest last."""
    from hidl_cli.stack import content  # imports threads, which "nothing to do" has no need of

    documents.write_text(plan.prefix / "modulefile", activation.modulefile)
    content.make_read_only(plan.prefix, content.record(plan.prefix))
    manifest = {
        "schema": installation.SCHEMA,
        **plan.to_json(),
        "title": plan.title,
        "hidl": __version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "activation": str(Installation.at(plan.prefix).activate),
        "modulefile": str(installation.modulefiles(plan.root, plan.site, plan.stack) / plan.id),
        "verification": {
            "schema": verify.SCHEMA,
            "checks": [dict(check) for check in verified.checks],
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **verified.record,
        },
    }
    documents.write_json(plan.prefix / MANIFEST, manifest)
    return Installation(plan.prefix, manifest)


@contextmanager
def _alone(order: Order, progress: Progress) -> Iterator[None]:
    """No other hidl works on this stack meanwhile."""
    with held(order.stack_directory / ".lock", progress.say):
        yield


@contextmanager
def _writing(order: Order) -> Iterator[None]:
    """Share the root as the site says; say what an ``OSError`` means: it cannot be written, or the disk is full."""
    try:
        with shared(order.site, order.root):
            yield
    except OSError as error:
        where = error.filename or order.root
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BuildFailed(
                f"the disk is full: {error.strerror}: {where}", hint="make room, or choose another place with --prefix"
            ) from error
        raise MissingPrecondition(
            f"cannot install below {order.root}: {error.strerror or error}: {where}",
            hint="install it for yourself alone with --own, or choose a place that you may write to with --prefix"
            if order.root != installation.own_root()
            else "choose a place that you may write to, with --prefix or with `install.root` in the site's file",
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

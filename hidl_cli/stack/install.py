"""Install stacks: lock them, fill their prefixes, verify them and publish them.

An installation can be interrupted and restarted at any time.
"""

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
from hidl_cli.stack.builds.plan import missing_source, newest_source
from hidl_cli.stack.installation import MANIFEST, Installation, hold_lock, is_shared, site_permissions
from hidl_cli.stack.lock import Choice, Locked
from hidl_cli.stack.order import Order, Progress
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers import provider_for
from hidl_cli.stack.providers.contract import Preview, Provider, WithEnvironment
from hidl_cli.stack.target import Target, detect
from hidl_cli.stack.verify import Here, Verified, Verifier
from hidl_workloads import kernels

if TYPE_CHECKING:
    from hidl_cli.stack.activation import Activation


@dataclass(frozen=True)
class Result:
    """The outcome for one stack: the installation or the error, and the elapsed time in seconds."""

    stack: str
    action: Action | Literal["failed"]
    seconds: float
    installation: Installation | None = None
    error: HidlError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the manifest with the action, or the error, as plain data."""
        if self.installation is not None:
            return {**self.installation.manifest, "action": self.action}
        assert self.error is not None
        code = int(self.error.exit_code)
        return {"stack": self.stack, "error": self.error.message, "hint": self.error.hint, "exit_code": code}


@dataclass(frozen=True)
class SkippedStack:
    """A stack that was not requested by name, and that requires a file only the user can provide."""

    stack: str
    reason: str
    hint: str | None


def split_installable(orders: Sequence[Order]) -> tuple[list[Order], list[SkippedStack]]:
    """Separate installable requests from those for stacks whose source archives the user must provide."""
    installable, left_out = [], []
    for order in orders:
        missing = _missing_source(order)
        if missing is None:
            installable.append(order)
        else:
            left_out.append(SkippedStack(order.stack.name, missing.message, missing.hint))
    return installable, left_out


def _missing_source(order: Order) -> HidlError | None:
    if (order.provider or order.site.install.provider) != "wheels":
        return None
    for build in order.stack.builds:
        available = build.name in order.sources or newest_source(build, order.root) is not None
        if build.source.pypi is None and not available:
            return missing_source(build, order.root)
    return None


def install_each(
    orders: Sequence[Order], carry_out: Callable[[Order, Progress], InstallResult], progress: Progress
) -> Iterator[Result]:
    """Install stacks one after another. An error does not prevent the installation of the next stack."""
    for number, order in enumerate(orders, start=1):
        name, began = order.stack.name, time.monotonic()
        if len(orders) > 1:
            progress.say(f"[{number}/{len(orders)}] {name}")
        try:
            outcome = carry_out(order, progress)
        except UsageError:  # the error would be repeated for every stack
            raise
        except HidlError as error:
            yield Result(name, "failed", time.monotonic() - began, error=error)
        else:
            yield Result(name, outcome.action, time.monotonic() - began, outcome.installation)


def exit_code(results: Sequence[Result]) -> ExitCode:
    """Return a single stack's exit code, or 5 if any of several stacks failed."""
    errors = [result.error for result in results if result.error is not None]
    if not errors:
        return ExitCode.OK
    return errors[0].exit_code if len(results) == 1 else ExitCode.BUILD_FAILED


Action = Literal["installed", "switched", "nothing to do"]


@dataclass(frozen=True)
class InstallResult:
    """The result of an installation request.

    The action is ``switched`` if the stack was already installed, but not in use.
    """

    action: Action
    installation: Installation


@dataclass(frozen=True)
class PlannedInstall:
    """The planned installation of a stack; ``plan`` is None if the stack must be locked first."""

    provider: Provider
    target: Target
    choice: Choice
    plan: InstallPlan | None


def plan_install(order: Order) -> PlannedInstall:
    """Plan an installation without changing anything.

    Raises ``MissingPrecondition`` if the order requires a lockfile and no existing one can be used.
    """
    target = _target(order)
    provider = provider_for(order.site, order.provider, order.mirror)
    choice = provider.choose(order, target)
    if choice.lock is None or choice.file is None:
        if order.locked:
            raise _no_lockfile(order, choice)
        return PlannedInstall(provider, target, choice, None)
    return PlannedInstall(provider, target, choice, provider.plan(order, target, choice.lock, choice.file))


def preview(order: Order, progress: Progress, verified: str = "here") -> dict[str, Any]:
    """Return what ``install`` would do, as plain data without secrets. Nothing is changed.

    If the stack has no lockfile, Spack resolves the stack just for the preview.

    Args:
        order: The request.
        progress: Reports the steps.
        verified: How the installation is verified: ``here``, ``job`` or ``skip``.
    """
    planned = plan_install(order)
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
        action = "lock, install, verify, publish"
    elif _published(plan):
        action = "nothing to do"
    elif installation.at(plan.prefix):
        action = "switch to the existing installation"
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
    """Return the resolver's input, if the provider has one."""
    if plan is not None:
        return plan.part.environment_text if plan.part else None
    return provider.environment_text(order, target) if isinstance(provider, WithEnvironment) else None


def install(order: Order, progress: Progress, verifier: Verifier | None = None) -> InstallResult:
    """Install the stack unless it is already installed. ``verifier`` defaults to ``verify.Here``.

    Raises ``BuildFailed`` or ``MissingPrecondition``, in which case nothing is published.
    """
    if found := _published(plan_install(order).plan):
        return InstallResult("nothing to do", found)
    verifier = verifier or Here(progress)
    verifier.check()
    with _explain_os_errors(order), _stack_lock(order, progress):
        planned = plan_install(order)  # another process may have locked or installed the stack in the meantime
        for passed_over in planned.choice.passed_over:
            progress.say(f"lockfile {passed_over.file} cannot be used: {passed_over.reason}")
        plan = planned.plan or _plan_with_new_lock(order, planned.provider, planned.target, progress)
        if found := _published(plan):
            return InstallResult("nothing to do", found)
        existing = installation.at(plan.prefix)
        compiles = is_shared(order.site, order.root)
        installed = existing or _build(planned.provider, plan, progress, verifier, compiles=compiles)
        installation.publish(plan.prefix)
        return InstallResult("switched" if existing else "installed", installed)


def make_lock(order: Order, progress: Progress) -> tuple[Locked, Path]:
    """Resolve the stack again and write its lockfile to ``<root>/locks``, where the next installation will find it."""
    with _explain_os_errors(order), _stack_lock(order, progress):
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
    progress.say(f"wrote lockfile {file}")
    return provider.plan(order, target, new, file)


def _published(plan: InstallPlan | None) -> Installation | None:
    """Return the plan's installation if it is complete and in use."""
    if plan is None or installation.current(plan.stack_directory) != plan.prefix:
        return None
    modulefile = installation.modulefiles(plan.root, plan.site, plan.stack) / plan.id
    return installation.at(plan.prefix) if modulefile.is_file() else None


def _build(
    provider: Provider, plan: InstallPlan, progress: Progress, verifier: Verifier, *, compiles: bool
) -> Installation:
    """Fill and verify the prefix, and write its manifest. If ``compiles`` is set, also compile its Python modules."""
    from hidl_cli.stack import activation  # imports Jinja2, which is not needed if nothing is installed

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
            if check["name"] == kernels.CHECK:  # on a machine without GPUs, shows how GPU code was verified
                progress.say(f"{check['name']}: {check['detail']}")
        return _complete(plan, rendered[0], verified)
    except BuildFailed as failure:
        installation.discard(plan.prefix)
        raise _explain(failure, log) from failure
    except Exception:
        installation.discard(plan.prefix)
        raise


def _compile(plan: InstallPlan, log: Path, progress: Progress) -> None:
    """Compile the Python modules.

    Otherwise, a run's processes, which may lack write permission, would compile them every time.
    """
    packages = map(str, plan.prefix.glob("lib/python*/site-packages"))
    argv = (str(Installation.at(plan.prefix).python), "-I", "-m", "compileall", "-q", "-j", "0", *packages)
    with progress.step("compile Python modules"):  # errors are ignored; a module may be for another Python version
        process.run(argv, cwd=plan.prefix, env=os.environ, log=log, check=False)


def _explain(failure: BuildFailed, log: Path) -> BuildFailed:
    """Add the likely cause to the failure, if the log or the message matches a known one."""
    from hidl_cli.diagnoses import format_causes, read_blocks, search  # reads the catalogue, only needed after failures

    with log.open("rb") as file:
        found = search(chain(read_blocks(file), [f"{failure.message}\n".encode()]))
    causes = [cause.finding for cause in found if cause.finding.severity == "error"]
    if not causes:
        return failure
    hint = f"{causes[0].fix}\n      {failure.hint}" if failure.hint else causes[0].fix
    return BuildFailed(f"{failure.message}\n{format_causes(causes)}", hint=hint)


def _complete(plan: InstallPlan, activation: Activation, verified: Verified) -> Installation:
    """Write the modulefile, the recorded content and, last of all, the manifest."""
    from hidl_cli.stack import content  # imports threading code, which is not needed if nothing is installed

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
def _stack_lock(order: Order, progress: Progress) -> Iterator[None]:
    """Hold the stack's lock."""
    with hold_lock(order.stack_directory / ".lock", progress.say):
        yield


@contextmanager
def _explain_os_errors(order: Order) -> Iterator[None]:
    """Apply the site's group and umask, and explain an ``OSError`` (no permission or a full disk)."""
    try:
        with site_permissions(order.site, order.root):
            yield
    except OSError as error:
        where = error.filename or order.root
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BuildFailed(
                f"the disk is full: {error.strerror}: {where}",
                hint="free some space, or choose another directory with --prefix",
            ) from error
        raise MissingPrecondition(
            f"cannot install in {order.root}: {error.strerror or error}: {where}",
            hint="install it for yourself with --own, or choose a writable directory with --prefix"
            if order.root != installation.own_root()
            else "choose a writable directory with --prefix or `install.root` in the site file",
        ) from error


def new_log(plan: InstallPlan) -> Path:
    """Create an installation's log file, which is kept when the prefix is removed."""
    now = datetime.now(timezone.utc)
    log = plan.root / "logs" / f"{plan.site}-{plan.stack}-{now:%Y%m%d-%H%M%S}-{os.getpid()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch(mode=0o600)
    return log


def _no_lockfile(order: Order, choice: Choice) -> MissingPrecondition:
    lines = [f"stack {order.stack.name} has no suitable lockfile, and --locked forbids creating one"]
    lines += [f"  {passed_over.file}: {passed_over.reason}" for passed_over in choice.passed_over]
    return MissingPrecondition("\n".join(lines), hint=f"create one with: hidl stack lock {order.stack.name}")

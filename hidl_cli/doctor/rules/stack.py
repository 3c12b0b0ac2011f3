"""A stack's packages, read from its installation or lockfile, and the state of the installation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from hidl_cli.doctor import examine
from hidl_cli.doctor.context import Context, Fix, Subject, stack_directories
from hidl_cli.doctor.examine import SecurityAdvisory
from hidl_cli.errors import HidlError, MissingPrecondition
from hidl_cli.quoting import sh
from hidl_cli.site.schema import Site
from hidl_cli.stack import content, installation, own_wheel
from hidl_cli.stack import installation as installations
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.installation import Installation, hold_lock
from hidl_workloads.doctor.finding import Evidence, Finding, Rules

_SPACK_PYTHON = "py-"
_KERAS_3 = "lib/python*/site-packages/horovod/_keras/keras3.py"  # added by hidl's patches
_HOROVOD = "lib/python*/site-packages/horovod"


@dataclass(frozen=True)
class StackContents:
    """A stack's packages.

    Attributes:
        source: Prefix of the installation, or the lockfile.
        versions: Versions of packages and builds, by PyPI name.
        horovod_supports_keras_3: Whether Horovod supports Keras 3, or None if it is not part of the stack.
        faults: Problems with the installation.
        reinstall: Command that installs the stack again.
        before_run: Whether a run is about to start.
        damage: Damaged files, which are not searched for before runs.
    """

    stack: str | None = None
    source: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    horovod_supports_keras_3: bool | None = None
    faults: tuple[str, ...] = ()
    reinstall: str = ""
    before_run: bool = False
    damage: Evidence | None = None


def probe(context: Context) -> StackContents:
    """Read the installation in use, even if it is damaged, or else one of the stack's lockfiles."""
    if context.installation is not None:
        found = replace(_installed(context.installation, context.site), before_run=context.plan is not None)
        return found if found.before_run else replace(found, damage=content.look(Path(found.source), deep=context.deep))
    if context.stack is None:
        return StackContents()
    try:
        root = next(iter(context.roots), None) or installations.root_of(context.site, context.stack)
        prefix = installations.current(root / context.site.name / context.stack)
        if prefix is not None:
            return _installed(installations.at(prefix) or Installation(prefix, {}), context.site)
        return _locked(context.stack, context.site, root)
    except HidlError:
        return StackContents(stack=context.stack)


def _installed(installed: Installation, site: Site) -> StackContents:
    manifest, prefix = installed.manifest, installed.prefix
    versions = {_pypi(name): str(version) for name, version in manifest.get("packages", {}).items()}
    versions |= {build["name"]: str(build["version"]) for build in manifest.get("builds", ())}
    stack = prefix.parent.name
    return StackContents(
        stack=stack,
        source=str(prefix),
        versions=versions,
        horovod_supports_keras_3=_horovod(prefix),
        faults=tuple(_faults(installed)),
        reinstall=installations.install_command(stack, site, prefix.parents[2]),
    )


def _locked(name: str, site: Site, root: Path) -> StackContents:
    """Read the first lockfile found, for any Python version."""
    stack, reinstall = load_stack(name), installations.install_command(name, site, root)
    from hidl_cli.stack import lock as locks  # not loaded for installed stacks

    files = (file for directory in locks.directories(root) for file in sorted(directory.glob(f"{name}-cp*.txt")))
    file = next(files, None)
    if file is None:
        return StackContents(stack=name, reinstall=reinstall)
    versions = {package.name: package.version for package in locks.read(file).packages}
    versions |= {build.name: build.version for build in stack.builds}
    patched = [bool(build.patches) for build in stack.builds if build.name == "horovod"]
    supports = patched[0] if patched else False if "horovod" in versions else None
    return StackContents(name, str(file), versions, supports, reinstall=reinstall)


def _horovod(prefix: Path) -> bool | None:
    """Return whether the installed Horovod has hidl's patches for Keras 3, or None if Horovod is not installed."""
    if not any(prefix.glob(_HOROVOD)):
        return None
    return any(prefix.glob(_KERAS_3))


def _faults(installed: Installation) -> Iterator[str]:
    """Yield parts that are missing, and libraries that belong to a different version of hidl."""
    whole = installations.at(installed.prefix)
    if whole is None:
        yield "its manifest or Python is missing or damaged"
        return
    for part in (whole.activate, whole.mpiexec):
        if not part.exists():
            yield f"{part} is missing"
    installed_wheels = whole.manifest["own"]
    shipped = (own_wheel.library(name) for name in own_wheel.libraries() if name in installed_wheels)
    for wheel in (own_wheel.workloads(), *shipped):
        if installed_wheels.get(wheel.name, {}).get("digest") != wheel.digest:
            yield f"its {wheel.name} belongs to another version of hidl"


def _pypi(name: str) -> str:
    """Convert a Spack package name to its PyPI name: ``py-torch`` is ``torch``."""
    return name.removeprefix(_SPACK_PYTHON)


RULES: Rules[StackContents] = Rules()
_SHOWN = 4


@RULES.rule(
    "HD080",
    "Keras 3 with an unpatched Horovod",
    severity="error",
    why="Horovod 0.28.1 overrides methods that Keras 3 never calls. model.fit succeeds but does not average gradients, "
    "and each rank trains its own model.",
)
def unpatched_horovod(facts: StackContents) -> Iterator[Evidence]:
    """Report an error if Keras 3 is installed together with a Horovod that lacks hidl's patches."""
    keras, horovod = facts.versions.get("keras"), facts.versions.get("horovod")
    if facts.horovod_supports_keras_3 is False and keras is not None and _major(keras) >= 3:
        name = f"Horovod {horovod}" if horovod else "Horovod"
        yield Evidence(
            f"{facts.source} contains Keras {keras} and {name} without patches for Keras 3",
            "hidl install horovod (which is patched and tested), or use keras<3 in the recipe",
            where=facts.source,
        )


@RULES.rule(
    "HD081",
    "A package has published vulnerabilities",
    severity="warning",
    why="Anyone who can supply input files or reach an open port may exploit them. hidl only ships advisories for the "
    "packages of its own stacks.",
)
def vulnerable(facts: StackContents) -> Iterator[Evidence]:
    """Report a warning, or an informational finding if no fixed version exists. This rule is skipped before runs."""
    if facts.before_run:
        return
    for package, version, found in examine.find_advisories(facts.versions):
        fixes = [each.fixed for each in found if each.fixed is not None]
        listed = "; ".join(f"{each.id}: {each.text}" for each in found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        yield Evidence(
            f"{package} {version}: {listed}{more} ({found[0].url})",
            _update(package, max(fixes, key=Version), facts) if fixes else _workarounds(found),
            where=facts.source,
            severity=None if fixes else "info",
        )


def _update(package: str, fixed: str, facts: StackContents) -> str:
    update = f"hidl stack lock {facts.stack}, then: {facts.reinstall}" if facts.reinstall else "create a new lockfile"
    return f"{package}>={fixed}: {update}"


def _workarounds(found: list[SecurityAdvisory]) -> str:
    return "no fixed version; " + "; ".join(each.fix for each in found if each.fix)


@RULES.rule(
    "HD082",
    "The installation is damaged or belongs to another version of hidl",
    severity="error",
    why="hidl refuses to run it, because programs inside jobs must match the hidl that starts them.",
)
def not_whole(facts: StackContents) -> Iterator[Evidence]:
    """Report an error if parts of the stack are missing, or if it contains libraries of a different hidl version."""
    if facts.faults:
        fix = f"{facts.reinstall} (keeps the lockfile)" if facts.reinstall else "install the stack again"
        yield Evidence(f"{facts.source}: {'; '.join(facts.faults)}", fix, where=facts.source)


@RULES.rule(content.RULE, content.TITLE, severity="error", why=content.WHY)
def damaged_files(facts: StackContents) -> Iterator[Evidence]:
    """Report an error if files have changed in size or, with --deep, in content. This is not checked before runs."""
    if facts.damage is not None:
        yield facts.damage


def _major(version: str) -> int:
    try:
        return Version(version).major
    except InvalidVersion:
        return 0


#: Variables set by Lmod and Environment Modules.
_MODULE_VARIABLES = {"LMOD_CMD", "MODULES_CMD", "MODULESHOME"}


@dataclass(frozen=True)
class InUse:
    """A stack's installations.

    Attributes:
        complete: Ids of all complete installations.
        current: Id that the link ``current`` points to, or None if the link is missing or dangling.
        has_modulefile: Whether the installation in use has a modulefile in the module tree.
        has_modules: Whether this shell has the ``module`` command.
    """

    stack: str
    directory: Path
    complete: tuple[str, ...]
    current: str | None
    has_modulefile: bool
    has_modules: bool


def probe_installation(context: Context) -> tuple[InUse, ...]:
    """Examine the context's stack (default: all stacks installed for the site)."""
    try:
        roots = context.roots or installation.roots(context.site)
    except MissingPrecondition:
        return ()
    directories = stack_directories(roots, context.site.name, context.stack)
    has_modules = not _MODULE_VARIABLES.isdisjoint(context.host.environment)
    return tuple(_in_use(directory, has_modules) for directory in directories)


def _in_use(directory: Path, has_modules: bool) -> InUse:
    complete = tuple(prefix.name for prefix in installation.prefixes(directory) if installation.at(prefix))
    current = installation.current(directory)
    name = current.name if current and current.name in complete else None
    modulefiles = installation.modulefiles(directory.parents[1], directory.parent.name, directory.name)
    has_modulefile = (modulefiles / (name or "")).is_file()
    return InUse(directory.name, directory, complete, name, has_modulefile, has_modules)


INSTALLATION_RULES: Rules[tuple[InUse, ...]] = Rules()


@INSTALLATION_RULES.rule(
    "HD083",
    "A stack is installed, but none of its installations is in use",
    severity="warning",
    why="hidl and `module load` find an installation through the link `current`; without it, the stack counts as not "
    "installed.",
)
def none_in_use(stacks: tuple[InUse, ...]) -> Iterator[Evidence]:
    """Report a warning if the link is missing or dangling although a complete installation exists."""
    for facts in stacks:
        if facts.complete and facts.current is None:
            if len(facts.complete) == 1:
                fix = f"restore the link to {facts.complete[0]} with: hidl doctor --fix"
            else:
                stack = sh(facts.stack)
                fix = f"hidl install {stack} (reuses the existing installation), or: hidl stack use {stack} ID"
            yield Evidence(
                f"{facts.directory} contains {', '.join(facts.complete)}, but no link `current`",
                fix,
                where=str(facts.directory),
            )


@INSTALLATION_RULES.rule(
    "HD084",
    "The modulefile of an installation is missing",
    severity="warning",
    why="`module avail` does not show the stack, and `module load` does not find it; hidl run does not need it.",
)
def not_shown(stacks: tuple[InUse, ...]) -> Iterator[Evidence]:
    """Report a warning, or an informational finding if the shell has no `module` command.

    --fix restores the modulefile from the copy in the installation.
    """
    for facts in stacks:
        if facts.current is not None and not facts.has_modulefile:
            yield Evidence(
                f"{facts.stack}/{facts.current} is in use, but has no modulefile",
                "restore it with: hidl doctor --fix",
                where=str(facts.directory),
                severity=None if facts.has_modules else "info",
            )


def _publish(finding: Finding, say: Callable[[str], None]) -> str | None:
    """Publish the only complete installation in a stack directory, as ``hidl install`` does."""
    directory = Path(finding.where or "")
    with hold_lock(directory / ".lock", say):
        current = installation.current(directory)
        complete = [prefix for prefix in installation.prefixes(directory) if installation.at(prefix)]
        chosen = current if current in complete else complete[0] if len(complete) == 1 else None
        if chosen is None:
            return None
        installation.publish(chosen)
    return f"{directory.name}: {chosen.name} is in use and has a modulefile"


SUBJECTS = (
    Subject(probe, RULES, before_runs=True),
    Subject(
        probe_installation,
        INSTALLATION_RULES,
        fixes={
            "HD083": Fix(
                "links `current` to the only complete installation and writes its modulefile",
                "remove the link `current`",
                _publish,
            ),
            "HD084": Fix("restores the modulefile from the installation's copy", "remove the modulefile", _publish),
        },
    ),
)

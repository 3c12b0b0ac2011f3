"""The packages of a stack, from its installation or lock, and the state of the installation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from hidl_cli.doctor import examine
from hidl_cli.doctor.context import Context, Subject
from hidl_cli.doctor.examine import Advisory
from hidl_cli.errors import HidlError
from hidl_cli.site.schema import Site
from hidl_cli.stack import content, own_wheel
from hidl_cli.stack import installation as installations
from hidl_cli.stack import lock as locks
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.installation import Installation
from hidl_workloads.doctor.finding import Evidence, Rules

_SPACK_PYTHON = "py-"
_KERAS_3 = "lib/python*/site-packages/horovod/_keras/keras3.py"  # added by hidl's patches
_HOROVOD = "lib/python*/site-packages/horovod"


@dataclass(frozen=True)
class Held:
    """The packages of a stack.

    ``source``: the prefix or lock. ``versions``: of packages and builds, by their PyPI name. ``horovod_knows_keras_3``:
    None without Horovod. ``faults``: what is wrong with the installation; ``again``: the command that installs it.
    ``about_to_run``: a run is about to start on it. ``damage``: of its files, which are not looked at before runs.
    """

    stack: str | None = None
    source: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    horovod_knows_keras_3: bool | None = None
    faults: tuple[str, ...] = ()
    again: str = ""
    about_to_run: bool = False
    damage: Evidence | None = None


def probe(context: Context) -> Held:
    """From the installation in use, even if damaged, else from a lock of the stack."""
    if context.installation is not None:
        held = replace(_installed(context.installation, context.site), about_to_run=context.plan is not None)
        return held if held.about_to_run else replace(held, damage=content.look(Path(held.source), deep=context.deep))
    if context.stack is None:
        return Held()
    try:
        root = next(iter(context.roots), None) or installations.root_of(context.site, context.stack)
        prefix = installations.current(root / context.site.name / context.stack)
        if prefix is not None:
            return _installed(installations.at(prefix) or Installation(prefix, {}), context.site)
        return _locked(context.stack, context.site, root)
    except HidlError:
        return Held(stack=context.stack)


def _installed(installed: Installation, site: Site) -> Held:
    manifest, prefix = installed.manifest, installed.prefix
    versions = {_pypi(name): str(version) for name, version in manifest.get("packages", {}).items()}
    versions |= {build["name"]: str(build["version"]) for build in manifest.get("builds", ())}
    stack = prefix.parent.name
    return Held(
        stack=stack,
        source=str(prefix),
        versions=versions,
        horovod_knows_keras_3=_horovod(prefix),
        faults=tuple(_faults(installed)),
        again=installations.install_command(stack, site, prefix.parents[2]),
    )


def _locked(name: str, site: Site, root: Path) -> Held:
    """From the first lock found, of any Python version."""
    stack, again = load_stack(name), installations.install_command(name, site, root)
    files = (file for place in locks.directories(root) for file in sorted(place.glob(f"{name}-cp*.txt")))
    file = next(files, None)
    if file is None:
        return Held(stack=name, again=again)
    versions = {package.name: package.version for package in locks.read(file).packages}
    versions |= {build.name: build.version for build in stack.builds}
    patched = [bool(build.patches) for build in stack.builds if build.name == "horovod"]
    knows = patched[0] if patched else False if "horovod" in versions else None
    return Held(name, str(file), versions, knows, again=again)


def _horovod(prefix: Path) -> bool | None:
    """Whether the installed Horovod has hidl's patches for Keras 3; None without Horovod."""
    if not any(prefix.glob(_HOROVOD)):
        return None
    return any(prefix.glob(_KERAS_3))


def _faults(installed: Installation) -> Iterator[str]:
    """Missing parts, and libraries of another version of hidl."""
    whole = installations.at(installed.prefix)
    if whole is None:
        yield "its manifest or Python is missing or damaged"
        return
    for part in (whole.activate, whole.mpiexec):
        if not part.exists():
            yield f"{part} is missing"
    held = whole.manifest["own"]
    shipped = (own_wheel.library(name) for name in own_wheel.libraries() if name in held)
    for wheel in (own_wheel.workloads(), *shipped):
        if held.get(wheel.name, {}).get("digest") != wheel.digest:
            yield f"its {wheel.name} belongs to another version of hidl"


def _pypi(name: str) -> str:
    """Spack's ``py-torch`` is PyPI's ``torch``."""
    return name.removeprefix(_SPACK_PYTHON)


RULES: Rules[Held] = Rules()
_SHOWN = 4


@RULES.rule(
    "HD080",
    "Keras 3 with an unpatched Horovod",
    severity="error",
    why="Horovod 0.28.1 overrides methods that Keras 3 never calls: model.fit succeeds but never averages gradients, "
    "and each rank trains its own model.",
)
def unpatched_horovod(facts: Held) -> Iterator[Evidence]:
    """Keras 3 and Horovod are installed, without hidl's patches."""
    keras, horovod = facts.versions.get("keras"), facts.versions.get("horovod")
    if facts.horovod_knows_keras_3 is False and keras is not None and _major(keras) >= 3:
        which = f"Horovod {horovod}" if horovod else "Horovod"
        yield Evidence(
            f"{facts.source} contains Keras {keras}, and {which} without the patches for it",
            "hidl install horovod (patched, and verified by equal weights), or keras<3 in the recipe",
            where=facts.source,
        )


@RULES.rule(
    "HD081",
    "A package has published vulnerabilities",
    severity="warning",
    why="Someone who can give it files or reach its port can exploit it. hidl ships the advisories of its own stacks' "
    "packages only.",
)
def vulnerable(facts: Held) -> Iterator[Evidence]:
    """An info if no version fixes it. Not checked before runs."""
    if facts.about_to_run:
        return
    for package, version, found in examine.find_advisories(facts.versions):
        fixes = [each.fixed for each in found if each.fixed is not None]
        told = "; ".join(f"{each.id}: {each.text}" for each in found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        yield Evidence(
            f"{package} {version}: {told}{more} ({found[0].url})",
            _update(package, max(fixes, key=Version), facts) if fixes else _live_with(found),
            where=facts.source,
            severity=None if fixes else "info",
        )


def _update(package: str, fixed: str, facts: Held) -> str:
    again = f"hidl stack lock {facts.stack}, then: {facts.again}" if facts.again else "create a new lock"
    return f"{package}>={fixed}: {again}"


def _live_with(found: list[Advisory]) -> str:
    return "no fixed version; " + "; ".join(each.fix for each in found if each.fix)


@RULES.rule(
    "HD082",
    "The installation is damaged, or of another version of hidl",
    severity="error",
    why="hidl does not run it: programs inside jobs must match the hidl that starts them.",
)
def not_whole(facts: Held) -> Iterator[Evidence]:
    """Parts are missing, or its libraries belong to another version of hidl."""
    if facts.faults:
        fix = f"{facts.again} (keeps the lock)" if facts.again else "install the stack again"
        yield Evidence(f"{facts.source}: {'; '.join(facts.faults)}", fix, where=facts.source)


@RULES.rule(content.RULE, content.TITLE, severity="error", why=content.WHY)
def damaged_files(facts: Held) -> Iterator[Evidence]:
    """Files have another size than as installed, or with --deep another content. Not checked before runs."""
    if facts.damage is not None:
        yield facts.damage


def _major(version: str) -> int:
    try:
        return Version(version).major
    except InvalidVersion:
        return 0


SUBJECT = Subject(probe, RULES, before_runs=True)

"""What a stack holds, by its installation or its lock, and whether the installation is whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hidl_cli.doctor.context import Context
from hidl_cli.errors import HidlError
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation as installations
from hidl_cli.stack import lock as locks
from hidl_cli.stack import own_wheel
from hidl_cli.stack.installation import Installation

_SPACK_PYTHON = "py-"
_KERAS_3 = "lib/python*/site-packages/horovod/_keras/keras3.py"  # hidl's patches bring it
_HOROVOD = "lib/python*/site-packages/horovod"


@dataclass(frozen=True)
class Held:
    """What a stack holds.

    ``source``: the prefix or the lock that tells. ``versions``: of its packages and builds, by the name that PyPI has
    for them. ``horovod_knows_keras_3``: None where no Horovod is to be seen. ``faults``: what is wrong with the
    installation, in sentences; ``again``: the command that installs it. ``about_to_run``: a run is to start on it.
    """

    stack: str | None = None
    source: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    horovod_knows_keras_3: bool | None = None
    faults: tuple[str, ...] = ()
    again: str = ""
    about_to_run: bool = False


def probe(context: Context) -> Held:
    """By the installation in use where there is one, however damaged, else by a lock of the stack."""
    if context.installation is not None:
        return replace(_installed(context.installation, context.site), about_to_run=context.plan is not None)
    if context.stack is None:
        return Held()
    try:
        root = context.root or installations.root(context.site)
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
        again=installations.hint(stack, site, prefix.parents[2]),
    )


def _locked(name: str, site: Site, root: Path) -> Held:
    """No Python is asked which lock it would take: the first that is found holds."""
    from hidl_cli.stack.load import load_stack

    stack, again = load_stack(name), installations.hint(name, site, root)
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
    """Does the installed Horovod hold what hidl's patches bring for Keras 3?"""
    if not any(prefix.glob(_HOROVOD)):
        return None
    return any(prefix.glob(_KERAS_3))


def _faults(installed: Installation) -> Iterator[str]:
    """What hidl itself would find: parts that are missing, and libraries of another hidl than this one."""
    whole = installations.at(installed.prefix)
    if whole is None:
        yield "its manifest or its Python is missing or damaged"
        return
    for part in (whole.activate, whole.mpiexec):
        if not part.exists():
            yield f"{part} is missing"
    held = whole.manifest["own"]
    shipped = (own_wheel.library(name) for name in own_wheel.libraries() if name in held)
    for wheel in (own_wheel.workloads(), *shipped):
        if held.get(wheel.name, {}).get("digest") != wheel.digest:
            yield f"its {wheel.name} is of another hidl than this one"


def _pypi(name: str) -> str:
    """Spack's ``py-torch`` is PyPI's ``torch``."""
    return name.removeprefix(_SPACK_PYTHON)

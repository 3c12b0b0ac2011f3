"""Modules that a stack's Python imports from outside: ``PYTHONPATH``, and the user's site-packages.

Nothing is started: the names in the directories show which modules are found first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.doctor.examine import plan_job
from hidl_cli.site.probes.host import Host
from hidl_cli.stack.installation import Installation
from hidl_workloads.doctor.finding import Evidence, Rules, Severity

_LIBRARY = re.compile(r"python(3\.\d+)")
_MODULE = re.compile(r"([A-Za-z_]\w*)(?:\.py|\.(?:cpython|abi3)[\w.-]*\.so|\.so)?", re.ASCII)
_OF_PYTHON = sys.stdlib_module_names - {"test"}  # Python's own tests are not imported, and `test` is a common name
_NO_MODULES = ("__pycache__", "__init__")


@dataclass(frozen=True)
class Place:
    """A directory searched before the stack's own, and the modules in it that the stack or Python has too. ``python``:
    the version in the directory's name, such as 3.9."""

    directory: str
    shadows: tuple[str, ...] = ()
    python: str | None = None


@dataclass(frozen=True)
class Python:
    """Directories outside the stack that its Python searches.

    ``version``: of its Python, such as 3.11. ``given``: PYTHONPATH that the site file sets for jobs; ``shell``: of the
    user's shell, if the stack is activated there (activation unsets an earlier one, and so do jobs of hidl).
    ``user_site``: the user's site-packages if this Python searches it, else None.
    """

    stack: str | None = None
    version: str | None = None
    given: tuple[Place, ...] = ()
    shell: tuple[Place, ...] = ()
    user_site: Place | None = None


def probe(context: Context) -> Python:
    """The directories of the installation's Python; nothing is known without an installation."""
    installation = context.installation
    if installation is None:
        return Python()
    host, prefix = context.host, str(installation.prefix)
    version = next((found[1] for name in host.list(f"{prefix}/lib") if (found := _LIBRARY.fullmatch(name))), None)
    one = plan_job(context)
    given = _entries(one.given.get("PYTHONPATH", ""))
    shell = _entries(host.environment.get("PYTHONPATH", "")) if context.is_active and not one.planned else []
    user = _user_site(host, installation, version)
    if version is None or not (given or shell or user):
        return Python(context.stack, version)
    own = _modules(host, f"{prefix}/lib/python{version}/site-packages")
    for library in ("lib", "lib64"):  # what Spack shows
        own |= _modules(host, f"{prefix}/view/{library}/python{version}/site-packages")
    return Python(
        context.stack,
        version,
        given=_places(host, given, own | _OF_PYTHON),
        shell=_places(host, shell, own | _OF_PYTHON),
        user_site=next(iter(_places(host, [user] if user else [], own)), None),
    )


def _entries(path: str) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if entry]


def _places(host: Host, directories: Iterable[str], own: Iterable[str]) -> tuple[Place, ...]:
    """The directories that contain modules."""
    found = []
    for directory in directories:
        if modules := _modules(host, directory):
            of = _LIBRARY.search(directory)
            found.append(Place(directory, tuple(sorted(modules.intersection(own))), of[1] if of else None))
    return tuple(found)


def _modules(host: Host, directory: str) -> set[str]:
    """Modules and packages in a directory, from the names of its entries."""
    found = (_MODULE.fullmatch(name) for name in host.list(directory))
    return {match[1] for match in found if match and match[1] not in _NO_MODULES}


def _user_site(host: Host, installation: Installation, version: str | None) -> str | None:
    """The user's site-packages if the stack's Python searches it (site.py of CPython): a virtual environment does only
    with ``include-system-site-packages``."""
    settings = host.read(str(installation.prefix / "pyvenv.cfg"))
    shut = re.search(r"^include-system-site-packages\s*=\s*false\s*$", settings, re.MULTILINE | re.IGNORECASE)
    environment = host.environment
    if shut or version is None or environment.get("PYTHONNOUSERSITE"):
        return None
    base = environment.get("PYTHONUSERBASE") or f"{environment.get('HOME', '')}/.local"
    return f"{base}/lib/python{version}/site-packages"


RULES: Rules[Python] = Rules()
_SHOWN = 6


@RULES.rule(
    "HD063",
    "Packages of the Python user site shadow the stack",
    severity="error",
    why="Packages from `pip install --user` take precedence over the stack's own, or add to them: ranks on every node "
    "import other versions than locked, often built for another NumPy or MPI.",
)
def user_site(facts: Python) -> Iterator[Evidence]:
    """An error if it contains a package of the stack, else an info."""
    place = facts.user_site
    if place is None:
        return
    what = f"the stack's Python {facts.version} searches {place.directory}"
    if place.shadows:
        what += f", which contains {_shown(place.shadows)} of the stack"
    severity: Severity | None = None if place.shadows else "info"
    yield Evidence(what, "export PYTHONNOUSERSITE=1", where=place.directory, severity=severity)


@RULES.rule(
    "HD064",
    "PYTHONPATH shadows the stack's packages",
    severity="error",
    why="Its directories are searched before the stack's own: ranks import other versions than locked, built for "
    "another Python, NumPy or MPI. Activating a stack unsets it; a value set afterwards applies.",
)
def python_path(facts: Python) -> Iterator[Evidence]:
    """An error if a directory contains modules of the stack or of Python, or belongs to another Python."""
    for places, origin, fix in (
        (facts.given, "PYTHONPATH of the site file", "remove PYTHONPATH from `environment` in the site file"),
        (facts.shell, "PYTHONPATH of your shell", "unset PYTHONPATH"),
    ):
        for place in places:
            yield _of(facts, place, origin, fix)


def _of(facts: Python, place: Place, origin: str, fix: str) -> Evidence:
    stack = f"stack {facts.stack}" if facts.stack else "the stack"
    if place.shadows:
        return Evidence(f"{origin} adds {place.directory}, whose {_shown(place.shadows)} shadows that of {stack}", fix)
    if place.python not in (None, facts.version):
        return Evidence(
            f"{origin} adds {place.directory} of Python {place.python}; {stack} has Python {facts.version}", fix
        )
    return Evidence(f"{origin} adds {place.directory} to {stack}", fix, severity="info")


def _shown(names: tuple[str, ...]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


SUBJECT = Subject(probe, RULES, before_runs=True)

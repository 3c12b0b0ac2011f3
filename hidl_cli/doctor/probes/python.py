"""What a stack's Python would import from elsewhere: ``PYTHONPATH``, and the user's own site-packages.

Nothing is started: the names in the directories tell which modules would be found first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes import job
from hidl_cli.site.probes.host import Host
from hidl_cli.stack.installation import Installation

_LIBRARY = re.compile(r"python(3\.\d+)")
_MODULE = re.compile(r"([A-Za-z_]\w*)(?:\.py|\.(?:cpython|abi3)[\w.-]*\.so|\.so)?", re.ASCII)
_OF_PYTHON = sys.stdlib_module_names - {"test"}  # nobody imports Python's own tests, and many call theirs so
_NO_MODULES = ("__pycache__", "__init__")


@dataclass(frozen=True)
class Place:
    """A directory that is looked into before the stack's own, and the modules in it that the stack, or Python itself,
    has as well. ``python``: the version that the directory's name tells, such as 3.9."""

    directory: str
    shadows: tuple[str, ...] = ()
    python: str | None = None


@dataclass(frozen=True)
class Python:
    """What leaks into a stack.

    ``version``: of its Python, 3.11. ``given``: the directories of a PYTHONPATH that the site's file gives to jobs;
    ``shell``: those of the user's shell, which has the stack activated (activation drops an earlier one; jobs of hidl
    activate again). ``user_site``: where the user's packages are seen by this Python, else None.
    """

    stack: str | None = None
    version: str | None = None
    given: tuple[Place, ...] = ()
    shell: tuple[Place, ...] = ()
    user_site: Place | None = None


def probe(context: Context) -> Python:
    """What leaks into the installation; nothing is known without one."""
    installation = context.installation
    if installation is None:
        return Python()
    host, prefix = context.host, str(installation.prefix)
    version = next((found[1] for name in host.list(f"{prefix}/lib") if (found := _LIBRARY.fullmatch(name))), None)
    one = job.probe(context)
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
    """Those of the directories that hold modules."""
    found = []
    for directory in directories:
        if modules := _modules(host, directory):
            of = _LIBRARY.search(directory)
            found.append(Place(directory, tuple(sorted(modules.intersection(own))), of[1] if of else None))
    return tuple(found)


def _modules(host: Host, directory: str) -> set[str]:
    """The modules and packages in a directory, by the names of its entries."""
    found = (_MODULE.fullmatch(name) for name in host.list(directory))
    return {match[1] for match in found if match and match[1] not in _NO_MODULES}


def _user_site(host: Host, installation: Installation, version: str | None) -> str | None:
    """The user's site-packages where the stack's Python looks into them (site.py of CPython): a virtual environment
    does so only if it includes those of the system."""
    settings = host.read(str(installation.prefix / "pyvenv.cfg"))
    shut = re.search(r"^include-system-site-packages\s*=\s*false\s*$", settings, re.MULTILINE | re.IGNORECASE)
    environment = host.environment
    if shut or version is None or environment.get("PYTHONNOUSERSITE"):
        return None
    base = environment.get("PYTHONUSERBASE") or f"{environment.get('HOME', '')}/.local"
    return f"{base}/lib/python{version}/site-packages"

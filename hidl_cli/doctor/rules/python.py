"""Modules that a stack's Python imports from outside the stack: ``PYTHONPATH`` and the user's site-packages.

No Python is started. The names of files in the directories determine which modules are found first.
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
_OF_PYTHON = sys.stdlib_module_names - {"test"}  # `test` is a common name, and Python's own tests are never imported
_NO_MODULES = ("__pycache__", "__init__")


@dataclass(frozen=True)
class SearchedDirectory:
    """A directory that Python searches before the stack's directories.

    ``shadows`` lists modules that are also part of the stack or of Python. ``python`` is the Python version in the
    directory's name, such as 3.9.
    """

    directory: str
    shadows: tuple[str, ...] = ()
    python: str | None = None


@dataclass(frozen=True)
class Python:
    """Directories outside the stack that its Python searches.

    Attributes:
        version: Version of the stack's Python, such as 3.11.
        configured: Directories in the PYTHONPATH that the site file sets for jobs.
        shell: Directories in the PYTHONPATH of a shell in which the stack is activated. Activating a stack unsets an
            earlier PYTHONPATH, and so do jobs.
        user_site: The user's site-packages, if this Python searches it.
    """

    stack: str | None = None
    version: str | None = None
    configured: tuple[SearchedDirectory, ...] = ()
    shell: tuple[SearchedDirectory, ...] = ()
    user_site: SearchedDirectory | None = None


def probe(context: Context) -> Python:
    """Examine the directories that the installation's Python searches."""
    installation = context.installation
    if installation is None:
        return Python()
    host, prefix = context.host, str(installation.prefix)
    version = next((found[1] for name in host.list(f"{prefix}/lib") if (found := _LIBRARY.fullmatch(name))), None)
    job = plan_job(context)
    configured = _entries(job.configured.get("PYTHONPATH", ""))
    shell = _entries(host.environment.get("PYTHONPATH", "")) if context.is_active and not job.planned else []
    user = _user_site(host, installation, version)
    if version is None or not (configured or shell or user):
        return Python(context.stack, version)
    own = _modules(host, f"{prefix}/lib/python{version}/site-packages")
    for library in ("lib", "lib64"):  # locations in Spack views
        own |= _modules(host, f"{prefix}/view/{library}/python{version}/site-packages")
    return Python(
        context.stack,
        version,
        configured=_searched(host, configured, own | _OF_PYTHON),
        shell=_searched(host, shell, own | _OF_PYTHON),
        user_site=next(iter(_searched(host, [user] if user else [], own)), None),
    )


def _entries(path: str) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if entry]


def _searched(host: Host, directories: Iterable[str], own: Iterable[str]) -> tuple[SearchedDirectory, ...]:
    """Return the directories that contain modules."""
    found = []
    for directory in directories:
        if modules := _modules(host, directory):
            match = _LIBRARY.search(directory)
            shadows = tuple(sorted(modules.intersection(own)))
            found.append(SearchedDirectory(directory, shadows, match[1] if match else None))
    return tuple(found)


def _modules(host: Host, directory: str) -> set[str]:
    """Return the names of modules and packages in a directory."""
    found = (_MODULE.fullmatch(name) for name in host.list(directory))
    return {match[1] for match in found if match and match[1] not in _NO_MODULES}


def _user_site(host: Host, installation: Installation, version: str | None) -> str | None:
    """Return the user's site-packages, if the stack's Python searches it.

    As in CPython's site.py, a virtual environment only searches it with ``include-system-site-packages``.
    """
    settings = host.read(str(installation.prefix / "pyvenv.cfg"))
    is_isolated = re.search(r"^include-system-site-packages\s*=\s*false\s*$", settings, re.MULTILINE | re.IGNORECASE)
    environment = host.environment
    if is_isolated or version is None or environment.get("PYTHONNOUSERSITE"):
        return None
    base = environment.get("PYTHONUSERBASE") or f"{environment.get('HOME', '')}/.local"
    return f"{base}/lib/python{version}/site-packages"


RULES: Rules[Python] = Rules()
_SHOWN = 6


@RULES.rule(
    "HD063",
    "Packages of the Python user site shadow the stack",
    severity="error",
    why="Packages from `pip install --user` take precedence over those of the stack. Ranks on all nodes import other "
    "versions than locked, often built for another NumPy or MPI.",
)
def user_site(facts: Python) -> Iterator[Evidence]:
    """Report an error if the user site contains a package that is part of the stack, and an info otherwise."""
    directory = facts.user_site
    if directory is None:
        return
    seen = f"the stack's Python {facts.version} searches {directory.directory}"
    if directory.shadows:
        seen += f", which contains {_shown(directory.shadows)} of the stack"
    severity: Severity | None = None if directory.shadows else "info"
    yield Evidence(seen, "export PYTHONNOUSERSITE=1", where=directory.directory, severity=severity)


@RULES.rule(
    "HD064",
    "PYTHONPATH shadows the stack's packages",
    severity="error",
    why="Its directories are searched before those of the stack. Ranks import other versions than locked, possibly "
    "built for another Python, NumPy or MPI. Activating a stack unsets it; a value set afterwards applies.",
)
def python_path(facts: Python) -> Iterator[Evidence]:
    """Report an error if a directory contains modules of the stack or of Python, or is for another Python version."""
    for directories, origin, fix in (
        (facts.configured, "PYTHONPATH of the site file", "remove PYTHONPATH from `environment` in the site file"),
        (facts.shell, "PYTHONPATH of your shell", "unset PYTHONPATH"),
    ):
        for directory in directories:
            yield _python_path_evidence(facts, directory, origin, fix)


def _python_path_evidence(facts: Python, searched: SearchedDirectory, origin: str, fix: str) -> Evidence:
    stack = f"stack {facts.stack}" if facts.stack else "the stack"
    added = f"{origin} adds {searched.directory}"
    if searched.shadows:
        return Evidence(f"{added}, which shadows {_shown(searched.shadows)} of {stack}", fix)
    if searched.python not in (None, facts.version):
        return Evidence(f"{added} of Python {searched.python}, but {stack} has Python {facts.version}", fix)
    return Evidence(f"{added} to {stack}", fix, severity="info")


def _shown(names: tuple[str, ...]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


SUBJECT = Subject(probe, RULES, before_runs=True)
